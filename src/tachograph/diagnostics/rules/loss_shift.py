"""The loss moves to another level."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median, no_change
from tachograph.diagnostics._text import figure, percent

__all__ = ["LossShift"]

_SCALES = (2, 4, 8, 16, 32)
"""Numbers of blocks that are compared. A small shift under strong noise needs many."""
_MAX_LEVELS = 2 * _SCALES[-1] + 1
_LR_RISE = 1.1
"""Factor by which a learning rate must be higher to explain a higher loss."""
_SLOPE_SHARE = 0.2
"""Share of the rise by which one of the levels drifts if there is no shift between them."""
_LEVEL_ERROR = 1.25 / math.sqrt(BLOCK)
"""Standard error of the median of a block, as a share of the spread of its values."""


class _LevelRise(NamedTuple):
    """A level that may have changed to a higher one."""

    old: float
    new: float
    drift: float
    """Change of the level since."""
    hidden: float
    """What a drift downwards hides of the rise."""
    error: float
    """Standard error of the difference of both levels."""


class LossShift(Rule):
    """The loss has moved to a higher level, or has suddenly dropped to a fraction of its level, and stays there.

    The rule compares the last 2, 4, 8, 16 or 32 blocks of sixteen values with as many blocks before, leaving one
    block between for the change itself. A rise must exceed a share of the level and several times its error. A rise
    is a warning if the recorded learning rate and batch size do not explain it; if no learning rate is recorded,
    the alert is for information only, because a schedule may be the reason. A drop must be sudden, as a loss that
    falls fast is healthy; it is a warning: a loss that suddenly needs no learning is rarely earned. Large rises are
    spikes or divergences: see `loss_spike` and `divergence`.

    The rule starts over after a sudden change of the learning rate or the batch size. It is inactive in reinforcement
    learning, where the loss does not measure progress.
    """

    name = "loss_shift"
    meaning = (
        "Something changed at this step. After a rise: other or harder data, a different batch composition, another "
        "weight of a loss term, or an optimizer that lost part of its state. After a drop: data that repeat or leak "
        "the answer, masked labels, or a loss that is scaled or averaged in another way."
    )
    advice = (
        "Compare data, code and settings before and after the step in the alert.",
        "After a rise, check the validation loss: if it rose too, resume from a checkpoint before that step.",
        "After a drop, look at a batch and its labels: a loss this low is rarely earned within a few steps.",
    )
    block_signals = ("loss",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        rise: Annotated[float, Meta(description="Minimum rise, as a share of the level before.", gt=0)] = 0.1
        sigmas: Annotated[float, Meta(description="Minimum rise, in standard errors.", ge=1)] = 6.0
        drop: Annotated[float, Meta(description="Minimum sudden drop, as a share of the level before.", gt=0, lt=1)] = (
            0.75
        )

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all levels."""
        self._levels: deque[float] = deque(maxlen=_MAX_LEVELS)
        self._steps: deque[int | None] = deque(maxlen=_MAX_LEVELS)
        self._lrs: deque[float | None] = deque(maxlen=_MAX_LEVELS)
        self._num_blocks = 0
        self._normal: tuple[float, float] | None = None

    def on_change(self, change: str) -> None:
        """Start over at the new level."""
        self.resolve("the learning rate or the batch size changed" if change != "restart" else "training restarted")
        if self._num_blocks:
            self.reset()

    def on_block(self, stats: SignalStats) -> None:
        """Compare the last blocks with the blocks before them."""
        level = stats.level
        if level is None or not stats.is_spread_known or self.context.is_reinforcement:
            return
        self._levels.append(level)
        self._steps.append(self.context.step)
        self._lrs.append(self.signals["lr"].level if "lr" in self.signals else None)
        self._num_blocks += 1
        if self._normal is not None:
            self._check_return(level)
            return
        levels = self._levels
        for num in _SCALES:
            if len(levels) < 2 * num + 1 or self._num_blocks % (num // 2):
                break
            # Most blocks need no closer look: neither end of the stretch is higher than the block before it.
            if max(level, levels[-num], levels[1 - num]) > (1 + 0.7 * self.thresholds.rise) * levels[-num - 2]:
                self._check_rise(stats, num)
        if len(levels) >= 7 and level < (1 - self.thresholds.drop) * levels[-4]:
            self._check_drop(stats)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Skip blocks that need no closer look."""
        if self.context.is_reinforcement:
            return no_change
        if self._normal is not None:
            return None
        levels = [*self._levels, *batch.levels]
        lrs = batch.lr_levels(self.signals["lr"].level if "lr" in self.signals else None)
        lowest, ratio = min(levels), 1 + 0.7 * self.thresholds.rise
        if max(levels) > ratio * lowest or lowest <= 0:
            for index, level in enumerate(batch.levels):
                end, num_blocks = len(self._levels) + index + 1, self._num_blocks + index + 1
                for num in _SCALES:
                    if min(end, _MAX_LEVELS) < 2 * num + 1 or num_blocks % (num // 2):
                        break
                    if max(level, levels[end - num], levels[end - num + 1]) > ratio * levels[end - num - 2]:
                        recent = levels[max(0, end - _MAX_LEVELS) : end]
                        if self._find_rise(recent, num, batch.lowest_sigma(index)) is not None:
                            batch.num_quiet = index
                            return None
                if end >= 7 and level < (1 - self.thresholds.drop) * levels[end - 4]:
                    batch.num_quiet = index
                    return None

        def commit() -> None:
            self._levels.extend(batch.levels)
            self._steps.extend(batch.steps)
            self._lrs.extend(lrs)
            self._num_blocks += len(batch.levels)

        return commit

    def _check_return(self, level: float) -> None:
        before, after = self._normal or (0.0, 0.0)
        if abs(level - before) < 0.5 * abs(after - before) or (level < before < after):
            self._normal = None
            self.resolve(f"the loss is back at {figure(level)}")

    def _find_rise(self, levels: list[float], num: int, lowest_sigma: float) -> _LevelRise | None:
        """Compare the last levels with those before; return the rise unless it is too small for the lowest spread."""
        after, before = sorted(levels[-num:]), sorted(levels[-2 * num - 1 : -num - 1])
        old, new = median(before), median(after)
        half = num // 2
        drift = median(sorted(levels[-half:])) - median(sorted(levels[-num:-half]))
        hidden = max(0.0, -drift * (num + 1) / half)  # a falling loss hides part of the rise
        lowest_error = _LEVEL_ERROR * lowest_sigma * math.sqrt(2 / num)
        if old <= 0 or new - old + hidden < max(self.thresholds.rise * old, self.thresholds.sigmas * lowest_error):
            return None
        if self._is_slope(levels, num, new - old):
            return None
        # Not a short peak: almost all blocks after the change are higher than the blocks before it.
        middle = 0.5 * (old + new)
        if after[num // 4] < middle or before[-1 - num // 4] > middle:
            return None
        changes = [later - earlier for earlier, later in itertools.pairwise(levels)]
        trend = median(sorted(changes))
        scatter = median(sorted(abs(change - trend) for change in changes)) / 0.954
        # Of a level; noise can be correlated.
        error = max(lowest_error, scatter * math.sqrt(2 / num))
        if new - old + hidden < self.thresholds.sigmas * error:
            return None
        return _LevelRise(old, new, drift, hidden, error)

    def _is_slope(self, levels: list[float], num: int, rise: float) -> bool:
        """Return whether the loss rose before or after the change as well: it drifts, which is no shift."""
        half = num // 2
        after, before = levels[-num:], levels[-2 * num - 1 : -num - 1]
        drifts = (median(sorted(part[-half:])) - median(sorted(part[:half])) for part in (after, before))
        return any(drift > _SLOPE_SHARE * rise for drift in drifts)

    def _check_rise(self, stats: SignalStats, num: int) -> None:
        change = self._find_rise(list(self._levels), num, stats.sigma or 0.0)
        if change is None:
            return
        old, new, drift, hidden, error = change
        rise = new - old
        if drift < -6 * error:
            rise += hidden
            error *= 3  # the drift is known less well than the levels
        if rise < self.thresholds.rise * old or rise < self.thresholds.sigmas * error:
            return
        lrs = list(self._lrs)
        before, after = lrs[-2 * num - 1], lrs[-1]
        severity, note = "warning", ""
        if "lr" not in self.signals:
            severity, note = "info", " No learning rate is recorded; a schedule may be the reason."
        elif before is not None and after is not None and after > _LR_RISE * before:
            severity, note = "info", f" The learning rate rose from {figure(before)} to {figure(after)}."
        self._report(stats, num, old, new, f"{percent(rise / old)} higher", severity, note)

    def _check_drop(self, stats: SignalStats) -> None:
        *before, _, first, second = list(self._levels)[-7:]
        old, new = median(sorted(before)), max(first, second)
        first_step, change_step, last_step = (self._steps[index] or 0 for index in (-7, -4, -1))
        if last_step - change_step > 2 * (change_step - first_step):
            return  # recorded more rarely than before, so the loss had time to fall
        if new < (1 - self.thresholds.drop) * old and max(before) < 1.5 * min(before):
            self._report(stats, 2, old, new, f"{percent(1 - new / old)} lower", "warning", "")

    def _report(
        self, stats: SignalStats, num: int, old: float, new: float, change: str, severity: str, note: str
    ) -> None:
        since = self._steps[-num - 2]
        self._normal = (old, new)
        evidence: dict[str, Any] = {
            "metric": stats.metric,
            "level_before": old,
            "level": new,
            "from_step": since,
            "step": self.context.step,
            "window_values": BLOCK * num,
            "expected": [None, old * (1 + self.thresholds.rise)]
            if new > old
            else [old * (1 - self.thresholds.drop), None],
        }
        title = f"Loss has been {change} since about step {since}: {figure(new)}, from {figure(old)}"
        message = f"It has stayed there for {BLOCK * num} values.{note}"
        self.report(title, message, severity=severity, evidence=evidence)
