"""The loss is back at its initial value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median, no_change
from tachograph.diagnostics._text import figure

__all__ = ["LossReset"]


_MAX_LEVELS = 64
_MAX_HIGHER = 6
"""Values far above the initial value before those close to it: the loss comes back from a spike."""
_MAX_SHARE = 0.6
"""Share of the jump that is left when the fall has been as at the start for long enough."""
_NUM_SIMILAR = 4
"""Comparisons with the start that must agree if the loss falls more slowly than that."""
_MAX_HELD = 48
"""Values for which other rules wait for the decision."""


class LossReset(Rule):
    """The loss is back at its initial value and falls again as it did at the start.

    Fresh weights cause exactly that. After a jump to the initial value, the rule compares the next values with the
    first values of the run, one by one and then in blocks of sixteen, until the loss has fallen noticeably. If it does
    not fall, or falls in a different way, it is a spike or a divergence, which is reported by then; so is a spike that
    passes the initial value on its way back. All rules
    about the loss start over after a reset, so that an intended one is not reported as a divergence. The first
    reset is a warning; if more follow, a schedule seems to restart the training on purpose. The rule is inactive
    until the loss has fallen noticeably.
    """

    name = "loss_reset"
    severity = "warning"
    meaning = (
        "The model has fresh weights. Either a schedule restarts training on purpose, or a checkpoint was not loaded, "
        "was loaded into a different model, or was overwritten."
    )
    advice = (
        "If the restart was intended, do nothing: the steps after it are judged like a new run.",
        "Otherwise check that the checkpoint is loaded into the model being trained, and that no key is missing.",
    )
    block_signals = ("loss",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        tolerance: Annotated[
            float, Meta(description="Maximum distance from the first value, as a share of it.", gt=0, lt=1)
        ] = 0.1
        most_difference: Annotated[
            float,
            Meta(
                description="Maximum difference from the first fall, as a share of the distance to the initial value.",
                gt=0,
                lt=1,
            ),
        ] = 0.25
        least_gain: Annotated[
            float,
            Meta(description="Minimum fall of the loss before the jump, as a share of its first value.", gt=0, lt=1),
        ] = 0.3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all values."""
        self._first: float | None = None
        self._num_resets = 0
        self._start: list[float] = []
        self._levels: list[float] = []
        self._jump: dict[str, Any] | None = None
        self._values: list[float] = []
        self._num_blocks = 0
        self._num_similar = 0
        self._num_higher = 0
        self._last_high_index = -1
        self._calm_below = 0.0
        self.context.may_be_reset = False

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Check whether an outlier is close to the first value, and follow the values after it."""
        if self._jump is not None:
            self._follow(self._jump, stats, value)
            return False
        first, level = self._first or stats.first_value, stats.level
        if first is None or level is None or first <= 0 or not stats.sigma or self.context.is_reinforcement:
            return False
        limits = self.thresholds
        if stats.num_added != self._last_high_index + 1:
            self._num_higher = 0
        self._last_high_index = stats.num_added
        self._num_higher += value > (1 + limits.tolerance) * first
        if abs(value - first) > limits.tolerance * first or level > (1 - limits.least_gain) * first:
            return False
        if self._num_higher >= _MAX_HIGHER:
            return False  # on its way back from a higher spike
        if stats.num_rises(0.6 * (value - level)) > 2:
            return False  # the loss is often this high
        if level > 0 and math.log(value / level) < 5 * stats.log_sigma():
            return False  # a loss that varies this much anyway, as with a batch size of one
        self._jump = {
            "metric": stats.metric,
            "step": self.context.step,
            "value": value,
            "first": first,
            "level_before": level,
        }
        self._values, self._num_blocks, self._num_similar = [value], 0, 0
        self._calm_below = level + 0.5 * (stats.outlier_above - level)
        self.context.may_be_reset = True
        stats.watch(self, -math.inf)
        return False

    def _follow(self, jump: dict[str, Any], stats: SignalStats, value: float) -> None:
        """Compare the values after a jump with as many values of the start, as soon as there are enough."""
        self._values.append(value)
        num_values = len(self._values)
        if num_values == 2 and value <= self._calm_below:
            self._end(stats)  # one bad batch
            return
        if self._num_blocks == 0 and num_values in (4, 8, BLOCK):
            begin = num_values // 2
            self._compare(jump, stats, self._values[begin:], self._start[begin:num_values])
        elif num_values == BLOCK:
            self._compare(jump, stats, self._values, self._levels[self._num_blocks : self._num_blocks + 1])
        if self._jump is not None and num_values == BLOCK:
            self._values = []
            self._num_blocks += 1
        if BLOCK * self._num_blocks >= _MAX_HELD:
            self.context.may_be_reset = False

    def _compare(self, jump: dict[str, Any], stats: SignalStats, values: list[float], start: list[float]) -> None:
        if not start:
            self._end(stats)  # the start took longer to fall than the rule remembers
            return
        level, first = jump["level_before"], jump["first"]
        share_now, share_at_start = ((median(sorted(part)) - level) / (first - level) for part in (values, start))
        difference, limit = abs(share_now - share_at_start), self.thresholds.most_difference
        # A spike falls faster and faster below the start, so the difference must be small beside what is left.
        if difference > limit * min(1.0, 2 * max(share_at_start, share_now)):
            self._end(stats)
            return
        self._num_similar += 1
        has_fallen = share_at_start <= _MAX_SHARE and share_now <= _MAX_SHARE
        if has_fallen or (self._num_similar >= _NUM_SIMILAR and share_at_start <= 0.9 and difference < 0.5 * limit):
            self._end(stats)
            self._report(jump)

    def _end(self, stats: SignalStats) -> None:
        self._jump = None
        self.context.may_be_reset = False
        stats.watch(self, None)

    def _report(self, jump: dict[str, Any]) -> None:
        self._first = jump["value"]
        rise = f"{figure(jump['value'])} at step {jump['step']}, from {figure(jump['level_before'])}"
        self._num_resets += 1
        self.report(
            f"Loss is back at its initial value: {rise}",
            "It falls again as at the start: training seems to have restarted with fresh weights.",
            evidence=jump,
            severity="info" if self._num_resets > 1 else None,  # a schedule that restarts again and again
        )
        self.context.announce_change("restart")

    def on_block(self, stats: SignalStats) -> None:
        """Remember the start; resolve the alert once the restarted loss has a level of its own."""
        if stats.level is not None and self._jump is None and len(self._levels) < _MAX_LEVELS and self._first is None:
            if not self._levels:
                self._start = stats.last_block
            self._levels.append(stats.level)
        if self.is_open() and stats.num_in_blocks >= 64:
            self.resolve(f"the rules started over; the loss is at {figure(stats.level)}")

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Remember the start; blocks resolve an alert, or complete a comparison with the start."""
        if self.is_open() or self._jump is not None or not self._levels:
            return None
        if len(self._levels) >= _MAX_LEVELS or self._first is not None:
            return no_change
        return lambda: self._levels.extend(batch.levels[: _MAX_LEVELS - len(self._levels)])
