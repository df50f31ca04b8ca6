"""The loss rises and stays up."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Annotated, NamedTuple

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median, no_change
from tachograph.diagnostics._text import figure

__all__ = ["Divergence"]

_NUM_BLOCKS = 8
_NUM_WIDTHS = 2 * _NUM_BLOCKS
_MIN_LENIENT_BLOCKS = 8
"""Blocks after a change of the learning rate or the batch size for which a rise may be its consequence."""
_LR_STEP = math.log(1.25)
_LR_RISE = 1.2
"""Factor above the learning rate of the best level from which on it has risen."""
_AFTER_RECOVERY = 1.5
"""Minimum rise as a multiple of one from which the loss has recovered on its own."""
_MAX_AS_HIGH = 2
"""Values of a loss that is new at its height, itself included."""
_OFTEN_HIGH_SHARE = 15 / 16
"""Share of at least sixteen values that must be high in a loss that is often this high anyway."""
_CRITICAL_SHARE_OF_BEST = 0.3
_CRITICAL_SHARE_OF_GAIN = 0.5
_MIN_LOST_GAIN = 0.25
"""Improvement, as a share of the best level, from which on its loss is critical."""


class _HighValue(NamedTuple):
    """A value above the limit."""

    value_index: int
    step: int | None
    value: float


class _Excursions:
    """How far the level of the loss was above its best in slow rises from which it has recovered."""

    __slots__ = ("_current", "_num_blocks", "highest")

    def __init__(self) -> None:
        self.highest = 0.0
        self._current = 0.0
        self._num_blocks = 0

    def copy(self) -> _Excursions:
        """Return an independent copy."""
        other = _Excursions()
        other.highest, other._current, other._num_blocks = self.highest, self._current, self._num_blocks
        return other

    def add(self, rise: float, is_calm: bool) -> None:
        """Add the rise of a block above the best level. A short excursion is a spike, and does not count."""
        self._num_blocks += 1
        if not is_calm:
            self._current = max(self._current, rise)
            return
        if self._num_blocks > _NUM_BLOCKS:
            self.highest = max(self.highest, self._current)
        self._current, self._num_blocks = 0.0, 0


class Divergence(Rule):
    """The loss has risen far above its best level and stays there.

    The best level is the level of the best block of sixteen values, or of several consecutive blocks in a long run.
    Most of the recent values must exceed it by a share of the total improvement or of the best level, whichever is
    smaller, and by several standard deviations. The longer the run, the more values are required. A slow rise is
    detected when eight consecutive blocks are that high. Spikes and losses that alternate between two levels are
    therefore ignored.

    A loss that jumps back to its initial value is a different fault: see `loss_reset`. After a sudden change of the
    learning rate or the batch size, such as a warm restart, most of the improvement must be lost, until the loss
    has recovered once. If the learning rate has risen since the best level, the loss must exceed the level that it
    had when the learning rate was last as high: cyclic schedules raise both. A slow rise from which the loss has
    recovered on its own is usual in this run, and only a clearly larger one is reported again. The alert is
    critical if the loss is 30 % above the best level or has lost half of a noticeable improvement. Otherwise it is a
    warning; if no learning rate is recorded, it is for information, because a schedule may be the reason.
    The rule is inactive in reinforcement learning, where the loss does not measure progress.
    """

    name = "divergence"
    severity = "critical"
    meaning = (
        "The optimizer has left the region in which it made progress, and the model is getting worse. Most often the "
        "learning rate is too high or was raised too fast. Sometimes a change of the data mix, a numerical fault in "
        "one layer or a collapsed loss scale comes first."
    )
    advice = (
        "Stop the run and restart from the last checkpoint before the step in the alert.",
        "Resume with a lower learning rate (half, for example), or skip the batches around that step.",
        "Lengthen the warm-up, clip gradients by norm, and check weight decay and the optimizer's epsilon.",
        "Check what changed at that step: data mix, batch size, schedule, precision.",
    )
    block_signals = ("loss",)
    absorbs = ("loss_spike", "loss_shift", "plateau", "exploding_gradients", "validation_blow_up", "overfitting")

    class Thresholds(RuleSettings):
        """When the rule fires."""

        share_of_best: Annotated[
            float, Meta(description="Minimum rise above the best level, as a share of that level.", gt=0)
        ] = 0.33
        share_of_gain: Annotated[
            float, Meta(description="Minimum rise as a share of the total improvement, if that is smaller.", gt=0)
        ] = 0.3
        share_after_change: Annotated[
            float,
            Meta(
                description=(
                    "Minimum rise after a change of learning rate or batch size, as a share of the total improvement "
                    "or of the best level, whichever is larger."
                ),
                gt=0,
            ),
        ] = 0.6
        least_gain: Annotated[
            float, Meta(description="Lower limit of the rise, as a share of the total improvement.", ge=0, lt=1)
        ] = 0.05
        sigmas: Annotated[
            float, Meta(description="Lower limit of the rise, in standard deviations of a calm block.", ge=1)
        ] = 5.0
        window_values: Annotated[
            int,
            Meta(description="Recent values that are checked together; up to four times as many in a long run.", ge=4),
        ] = 8
        runaway: Annotated[
            float,
            Meta(description="Multiple of the first level at which three values are enough.", gt=1),
        ] = 10.0
        least_above: Annotated[
            float, Meta(description="Minimum share of the recent values that must be that high.", gt=0, le=1)
        ] = 0.75

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all values."""
        self._best: float | None = None
        self._best_step: int | None = None
        self._levels: deque[float] = deque(maxlen=_NUM_BLOCKS)
        self._lows: deque[float] = deque(maxlen=_NUM_BLOCKS)
        self._widths: deque[float] = deque(maxlen=_NUM_WIDTHS)
        self._width = 0.0
        self._calm_step: int | None = None
        self._calm_value_index = 0
        self._suspended_index = -math.inf
        self._last_step: int | None = None
        self._num_lenient_blocks = 0
        self._is_lenient = False
        self._levels_by_lr: dict[int, float] = {}
        self._lr_at_best = 0.0
        self._lr_limit = -math.inf
        self._excursions = _Excursions()
        self._reported_severity = ""
        self._runaway_indices: deque[int] = deque(maxlen=3)
        self._high: deque[_HighValue] = deque(maxlen=4 * self.thresholds.window_values)

    def on_change(self, change: str) -> None:
        """Start over with fresh weights; tolerate a rise after other changes."""
        if change == "restart":
            self.reset()
        else:
            self._is_lenient, self._num_lenient_blocks = True, _MIN_LENIENT_BLOCKS

    def on_block(self, stats: SignalStats) -> None:
        """Update the best level, watch for values far above it, and detect a slow rise."""
        level, first = stats.level, stats.first_level
        if level is None or first is None or self.context.is_reinforcement:
            return
        values, low = stats.values, stats.values[BLOCK // 4]
        lr = self.signals["lr"].level if "lr" in self.signals else None
        best = self._update_best(level, stats.num_in_blocks // BLOCK, lr)
        rise = self._usual_rise(best, first, self._width)
        self._num_lenient_blocks -= 1
        if level < best + 0.5 * rise or not self._widths:
            self._is_lenient = self._is_lenient and self._num_lenient_blocks > 0
            # The upper half may contain the fault, and both halves the fall of the loss.
            self._widths.append(1.48 * min(values[BLOCK // 2] - low, stats.half_width))
            self._width = _usual_width([*self._widths])
        usual_rise = self._usual_rise(best, first, self._width)
        self._lr_limit = self._follow_lr(lr, level, self._lr_at_best, self._levels_by_lr)
        self._excursions.add(level - best, level <= best + 0.25 * usual_rise)
        limit = self._limit(best, first)
        rise = limit - best
        self._lows.append(low)
        if self.is_open():
            if values[-BLOCK // 4] < best + 0.5 * rise:  # most of the block is at most halfway up
                self.resolve(f"{stats.metric} is back at {figure(level)}", evidence={"level": level, "best": best})
            elif self._reported_severity != "critical" and self._severity_of(level, best, first) == "critical":
                self._report(stats, level, limit, BLOCK)
            return
        if level <= best + 0.25 * rise:
            self._calm_step, self._calm_value_index = self.context.step, stats.num_in_blocks
        self._last_step = self.context.step
        if low > limit and len(self._lows) == _NUM_BLOCKS and min(self._lows) > limit:
            self._report(stats, level, limit, _NUM_BLOCKS * BLOCK)
        else:
            stats.watch(self, limit if rise > 0 else None)

    def _update_best(self, level: float, num_blocks: int, lr: float | None) -> float:
        """Return the best level.

        A long run smooths over several blocks: the minimum over single blocks would be biased low.
        """
        self._levels.append(level)
        if self._best is not None and min(self._levels) >= self._best:
            return self._best
        smoothed_level = _smoothed_level([*self._levels], num_blocks)
        if self._best is None or smoothed_level < self._best:
            self._best, self._best_step = smoothed_level, self.context.step
            self._lr_at_best = lr or 0.0
            if self._high and self._high[-1].value_index >= BLOCK * (num_blocks - 1) and self._last_step is not None:
                self._best_step = self._last_step  # the rise may have begun within this block
        return self._best

    def _follow_lr(self, lr: float | None, level: float, lr_at_best: float, levels_by_lr: dict[int, float]) -> float:
        """Return the level of the loss when the learning rate was last as high, if it has risen since the best level.

        Otherwise note the level in `levels_by_lr`, which comes before the levels noted so far.
        """
        if lr is None or not 0 < lr < math.inf:
            return -math.inf
        lr_bin = _lr_bin(lr)
        if lr > _LR_RISE * lr_at_best > 0:
            return levels_by_lr.get(lr_bin, self._levels_by_lr.get(lr_bin, -math.inf))
        levels_by_lr[lr_bin] = level
        return -math.inf

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Follow the best level and the usual width over blocks without a high value."""
        best, first, step = self._best, stats.first_level, self._best_step
        if self.context.is_reinforcement:
            return no_change
        lrs, lr_at_best = self._lrs_of(batch), self._lr_at_best
        if best is None or first is None or not self._widths or self._is_lenient or self.is_open():
            return None
        if self._high and self._high[-1].value_index >= batch.num_before:
            batch.num_quiet = 0
            return None
        excursions = self._excursions.copy()
        levels, widths = [*self._levels, *batch.levels], [*self._widths]
        num_levels, num_blocks, peaks = len(self._levels), batch.num_before // BLOCK, batch.peaks
        # The rise is at least this, whatever the width is. Most blocks need no more.
        least_rise, calm_index = self._least_rise(best, first), -1
        if least_rise <= 0:
            return None
        num_lower = _NUM_BLOCKS if min(levels[:num_levels]) < best else 0  # blocks with a lower level not far back
        levels_by_lr: dict[int, float] = {}
        lr_limit = -math.inf
        for index, level in enumerate(batch.levels):
            values, end = batch.sorted_blocks[index], num_levels + index + 1
            num_lower = _NUM_BLOCKS if level < best else num_lower - 1
            if num_lower > 0:
                smoothed_level = _smoothed_level(levels[max(0, end - _NUM_BLOCKS) : end], num_blocks + index + 1)
                if smoothed_level < best:
                    best, step = smoothed_level, batch.steps[index]
                    lr_at_best = lrs[index] or 0.0 if lrs else 0.0
                    least_rise = self._least_rise(best, first)
                    if least_rise <= 0:
                        return None
            low = values[BLOCK // 4]
            if level < best + 0.5 * least_rise or level < best + 0.5 * self._rise_of(least_rise, widths):
                widths.append(1.48 * min(values[BLOCK // 2] - low, batch.half_widths[index]))
            is_calm = level <= best + 0.25 * least_rise or level <= best + 0.25 * self._rise_of(least_rise, widths)
            excursions.add(level - best, is_calm)
            lr_limit = self._follow_lr(lrs[index] if lrs else None, level, lr_at_best, levels_by_lr)
            if is_calm or level <= best + 0.25 * self._rise_after(
                least_rise, widths, excursions, best, first, lr_limit
            ):
                calm_index = index
            if peaks[index + 1] >= best + least_rise or low > best + least_rise:
                limit = best + self._rise_after(least_rise, widths, excursions, best, first, lr_limit)
                if peaks[index + 1] >= limit or low > limit:
                    batch.num_quiet = index
                    return None
        limit = best + self._rise_after(least_rise, widths, excursions, best, first, lr_limit)

        def commit() -> None:
            self._best, self._best_step, self._width = best, step, _usual_width(widths)
            self._excursions, self._lr_at_best, self._lr_limit = excursions, lr_at_best, lr_limit
            self._levels_by_lr |= levels_by_lr
            self._num_lenient_blocks -= len(batch.levels)
            self._widths.extend(widths[-_NUM_WIDTHS:])
            self._levels.extend(batch.levels)
            self._lows.extend([values[BLOCK // 4] for values in batch.sorted_blocks[-_NUM_BLOCKS:]])
            if calm_index >= 0:
                self._calm_step = batch.steps[calm_index]
                self._calm_value_index = batch.num_before + BLOCK * (calm_index + 1)
            self._last_step = batch.steps[-1]
            stats.watch(self, limit)

        return commit

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Check whether most of the recent values are that high, and whether that is new."""
        if self._best is None or stats.first_level is None or self.is_open() or self.context.is_reinforcement:
            return False
        limit = self._limit(self._best, stats.first_level)
        if value < limit or limit <= self._best:
            return False
        limits, value_index = self.thresholds, stats.num_added
        self._high.append(_HighValue(value_index, self.context.step, value))
        window = max(limits.window_values, min(value_index // 16, 4 * limits.window_values))
        if not self._runs_away(stats, value, value_index):
            min_above = math.ceil(limits.least_above * window)
            if len(self._high) < min_above or value_index - self._high[-min_above].value_index >= window:
                return False
            trend = self._trend(self._best, min_above)
            here = [high.value for high in self._high if value_index - high.value_index < window]
            num_before = stats.num_above(limit, 2 + window // BLOCK) - len(here)
            is_often_high = num_before > 4 and value_index - self._suspended_index > 4 * BLOCK
            if trend < 0.75 or (is_often_high and trend < 1.5):
                return False  # a slow spike that is already falling, or a loss that is often this high
            is_new = stats.num_above(max(here)) <= _MAX_AS_HIGH
            if is_often_high and not is_new and not _are_most_above(stats, limit, max(window, BLOCK)):
                return False
        if self.context.may_be_reset:
            self._suspended_index = value_index
            return False
        self._report(stats, value, limit, window)
        stats.watch(self, None)
        return False  # not clipped: the level follows the loss

    def _runs_away(self, stats: SignalStats, value: float, value_index: int) -> bool:
        """Return whether several recent values exceed a large multiple of the first level."""
        limit = self.thresholds.runaway * max(abs(stats.first_level or 0.0), abs(self._best or 0.0))
        if value > limit:
            self._runaway_indices.append(value_index)
        indices = self._runaway_indices
        if len(indices) < 3 or value_index - indices[0] >= self.thresholds.window_values:
            return False
        # A loss that alternates between two levels has been this high before.
        return stats.num_above(limit) <= len(indices)

    def _trend(self, best: float, num_values: int) -> float:
        """Return the ratio of the last values to the first ones, both measured from the best level."""
        values = [high.value for high in list(self._high)[-num_values:]]
        first, last = sorted(values[: num_values // 2]), sorted(values[-max(2, num_values // 4) :])
        return (median(last) - best) / (median(first) - best)

    def _limit(self, best: float, first: float) -> float:
        """Return the level that the loss must exceed."""
        usual_rise = self._usual_rise(best, first, self._width)
        rise = self._after_recovery(usual_rise, self._excursions.highest, best, first)
        if self._is_lenient:
            rise = max(rise, self._rise_after_change(best, first))
        return max(best + rise, self._lr_limit + usual_rise)

    def _rise_after_change(self, best: float, first: float) -> float:
        return self.thresholds.share_after_change * max(first - best, abs(best))

    def _rise_after(
        self,
        least_rise: float,
        widths: list[float],
        excursions: _Excursions,
        best: float,
        first: float,
        lr_limit: float,
    ) -> float:
        usual_rise = self._rise_of(least_rise, widths)
        return max(self._after_recovery(usual_rise, excursions.highest, best, first), lr_limit - best + usual_rise)

    def _after_recovery(self, usual_rise: float, highest: float, best: float, first: float) -> float:
        """Return the required rise of a loss that has recovered from other rises."""
        if _AFTER_RECOVERY * highest <= usual_rise:
            return usual_rise
        return max(usual_rise, min(_AFTER_RECOVERY * highest, self._rise_after_change(best, first)))

    def _severity_of(self, value: float, best: float, first: float) -> str:
        """Return how bad a value is."""
        rise, gain = value - best, max(first - best, 0.0)
        is_large = rise >= _CRITICAL_SHARE_OF_BEST * abs(best)
        has_lost = gain > _MIN_LOST_GAIN * abs(best) and rise >= _CRITICAL_SHARE_OF_GAIN * gain
        if is_large or has_lost:
            return "critical"
        return "warning" if "lr" in self.signals else "info"

    def _lrs_of(self, batch: BlockBatch) -> list[float | None]:
        """Return the learning rate at the end of each block; nothing if it is not recorded."""
        return batch.lr_levels(self.signals["lr"].level) if "lr" in self.signals else []

    def _usual_rise(self, best: float, first: float, width: float) -> float:
        return max(self._least_rise(best, first), self.thresholds.sigmas * width)

    def _rise_of(self, least_rise: float, widths: list[float]) -> float:
        return max(least_rise, self.thresholds.sigmas * _usual_width(widths))

    def _least_rise(self, best: float, first: float) -> float:
        limits = self.thresholds
        gain = max(first - best, 0.0)
        share = limits.share_of_gain * gain
        if best > 0:
            share = min(limits.share_of_best * best, share)
        if gain < 0.1 * abs(best):
            share = 0.5 * abs(best)  # there is no improvement yet that could be lost
        return max(share, 0.1 * abs(best), limits.least_gain * gain)

    def _onset(self, window: int) -> int | None:
        """Return the step at which the rise began, which is never before the best step.

        That is the first of the high values that follow each other closely. In a slow rise the loss leaves its level
        long before its values are high; then it is the end of the last calm block.
        """
        begin: _HighValue | None = None
        for high in reversed(self._high):
            if begin is not None and begin.value_index - high.value_index > max(4, window // 2):
                break
            begin = high
        onset = self._calm_step if begin is None or begin.value_index > self._calm_value_index + BLOCK else begin.step
        known_steps = [step for step in (onset, self._best_step) if step is not None]
        return max(known_steps, default=None)

    def _report(self, stats: SignalStats, value: float, limit: float, window: int) -> None:
        since = self._onset(window)
        evidence = {
            "metric": stats.metric,
            "value": value,
            "best": self._best,
            "best_step": self._best_step,
            "since_step": since,
            "step": self.context.step,
            "threshold": limit,
            "window_values": window,
            "expected": [None, limit],
        }
        best = f"best was {figure(self._best)} at step {self._best_step}"
        message = f"Most of the last {window} values are above {figure(limit)}."
        title = f"Loss has been diverging since step {since}: {figure(value)}, {best}"
        self._reported_severity = severity = self._severity_of(value, self._best or 0.0, stats.first_level or 0.0)
        self.report(title, message, severity=severity, evidence=evidence)


def _smoothed_level(levels: list[float], num_blocks: int) -> float:
    """Return the median of the last levels: of more of them in a long run."""
    return median(sorted(levels[-max(1, min(num_blocks // 8, _NUM_BLOCKS)) :]))


def _usual_width(widths: list[float]) -> float:
    """Return a low one of the last widths, because the noise shrinks with the loss; the lowest would be far too low."""
    recent_widths = sorted(widths[-_NUM_WIDTHS:])
    return recent_widths[len(recent_widths) // 4]


def _lr_bin(lr: float) -> int:
    return math.floor(math.log(lr) / _LR_STEP)


def _are_most_above(stats: SignalStats, limit: float, num_values: int) -> bool:
    """Return whether nearly all of the last values reach a limit."""
    values = stats.last_values(num_values)
    return sum(value >= limit for value in values) >= _OFTEN_HIGH_SHARE * len(values)
