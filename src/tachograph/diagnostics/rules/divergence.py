"""The loss rises and stays up."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Annotated, NamedTuple

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median, no_change
from tachograph.diagnostics._text import figure

__all__ = ["Divergence"]

_NUM_BLOCKS = 8


class _HighValue(NamedTuple):
    """A value above the limit."""

    value_index: int
    step: int | None
    value: float


class Divergence(Rule):
    """The loss has risen far above its best level and stays there.

    The best level is the level of the best block of sixteen values, or of several consecutive blocks in a long run.
    Most of the recent values must exceed it by a share of the total improvement or of the best level, whichever is
    smaller, and by several standard deviations. The longer the run, the more values are required. A slow rise is
    detected when eight consecutive blocks are that high. Spikes and losses that alternate between two levels are
    therefore ignored.

    A loss that jumps back to its initial value is a different fault: see `loss_reset`. After a sudden change of the
    learning rate or the batch size, such as a warm restart, most of the improvement must be lost, until the loss has
    recovered once. The rule is inactive in reinforcement learning, where the loss does not measure progress.
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
        self._widths: deque[float] = deque(maxlen=2 * _NUM_BLOCKS)
        self._width = 0.0
        self._calm_step: int | None = None
        self._calm_value_index = 0
        self._suspended_index = -math.inf
        self._last_step: int | None = None
        self._is_lenient = False
        self._runaway_indices: deque[int] = deque(maxlen=3)
        self._high: deque[_HighValue] = deque(maxlen=4 * self.thresholds.window_values)

    def on_change(self, change: str) -> None:
        """Start over with fresh weights; tolerate a rise after other changes."""
        if change == "restart":
            self.reset()
        else:
            self._is_lenient = True

    def on_block(self, stats: SignalStats) -> None:
        """Update the best level, watch for values far above it, and detect a slow rise."""
        level, first = stats.level, stats.first_level
        if level is None or first is None or self.context.is_reinforcement:
            return
        values, low = stats.values, stats.values[BLOCK // 4]
        best = self._update_best(level, stats.num_in_blocks // BLOCK)
        rise, width = self._usual_rise(best, first, self._width), self._width
        if level < best + 0.5 * rise or not self._widths:
            self._is_lenient = False
            # The upper half may contain the fault, and both halves the fall of the loss.
            self._widths.append(1.48 * min(values[BLOCK // 2] - low, stats.half_width))
            # A low one, because the noise shrinks with the loss; the lowest of a few estimates would be far too low.
            self._width = sorted(self._widths)[len(self._widths) // 4]
        if self._is_lenient or self._width != width:
            rise = self._rise(best, first)
        self._lows.append(low)
        if self.is_open():
            if values[-BLOCK // 4] < best + 0.5 * rise:  # most of the block is at most halfway up
                self.resolve(f"{stats.metric} is back at {figure(level)}", evidence={"level": level, "best": best})
            return
        limit = best + rise
        if level <= best + 0.25 * rise:
            self._calm_step, self._calm_value_index = self.context.step, stats.num_in_blocks
        self._last_step = self.context.step
        if low > limit and len(self._lows) == _NUM_BLOCKS and min(self._lows) > limit:
            self._report(stats, level, limit, _NUM_BLOCKS * BLOCK)
        else:
            stats.watch(self, limit if rise > 0 else None)

    def _update_best(self, level: float, num_blocks: int) -> float:
        """Return the best level.

        A long run smooths over several blocks: the minimum over single blocks would be biased low.
        """
        self._levels.append(level)
        if self._best is not None and min(self._levels) >= self._best:
            return self._best
        num_smoothed = max(1, min(num_blocks // 8, _NUM_BLOCKS))
        smoothed_level = median(sorted(list(self._levels)[-num_smoothed:]))
        if self._best is None or smoothed_level < self._best:
            self._best, self._best_step = smoothed_level, self.context.step
            if self._high and self._high[-1].value_index >= BLOCK * (num_blocks - 1) and self._last_step is not None:
                self._best_step = self._last_step  # the rise may have begun within this block
        return self._best

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Follow the best level and the usual width over blocks without a high value."""
        best, first, step = self._best, stats.first_level, self._best_step
        if self.context.is_reinforcement:
            return no_change
        if best is None or first is None or self._is_lenient or not self._widths or self.is_open():
            return None
        if self._high and self._high[-1].value_index >= batch.num_before:
            return None
        levels, widths, width = [*self._levels, *batch.levels], self._widths.copy(), self._width
        sorted_widths = sorted(widths)
        num_levels, num_blocks, peaks = len(self._levels), batch.num_before // BLOCK, batch.peaks
        sigmas, least_rise, calm_index = self.thresholds.sigmas, self._least_rise(best, first), -1
        rise = max(least_rise, sigmas * width)
        limit = best + rise
        num_lower = _NUM_BLOCKS if min(levels[:num_levels]) < best else 0  # blocks with a lower level not far back
        for index, level in enumerate(batch.levels):
            values, end = batch.sorted_blocks[index], num_levels + index + 1
            num_lower = _NUM_BLOCKS if level < best else num_lower - 1
            if num_lower > 0:
                recent = levels[max(0, end - _NUM_BLOCKS) : end]
                num_smoothed = max(1, min((num_blocks + index + 1) // 8, _NUM_BLOCKS))
                smoothed_level = median(sorted(recent[-num_smoothed:]))
                if smoothed_level < best:
                    best, step = smoothed_level, batch.steps[index]
                    least_rise = self._least_rise(best, first)
                    rise = max(least_rise, sigmas * width)
            if level < best + 0.5 * rise:
                if len(widths) == widths.maxlen:
                    sorted_widths.remove(widths[0])
                widths.append(1.48 * min(values[BLOCK // 2] - values[BLOCK // 4], batch.half_widths[index]))
                insort(sorted_widths, widths[-1])
                if width != sorted_widths[len(widths) // 4]:
                    width = sorted_widths[len(widths) // 4]
                    rise = max(least_rise, sigmas * width)
            limit = best + rise
            if level <= best + 0.25 * rise:
                calm_index = index
            if peaks[index + 1] >= limit or values[BLOCK // 4] > limit or rise <= 0:
                return None

        def commit() -> None:
            self._best, self._best_step, self._widths, self._width = best, step, widths, width
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
        limit = self._best + self._rise(self._best, stats.first_level)
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
            num_here = sum(value_index - other.value_index < window for other in self._high)
            num_before = stats.num_above(limit, 2 + window // BLOCK) - num_here
            is_often_high = num_before > 4 and value_index - self._suspended_index > 4 * BLOCK
            if trend < 0.75 or (is_often_high and trend < 1.5):
                return False  # a slow spike that is already falling, or a loss that is often this high
        if self.context.may_be_reset:
            self._suspended_index = value_index
            return False
        self._report(stats, value, limit, window)
        stats.watch(self, None)
        return False  # not clipped: the level follows the loss

    def _runs_away(self, stats: SignalStats, value: float, value_index: int) -> bool:
        """Return whether several recent values exceed a large multiple of the first level."""
        if value > self.thresholds.runaway * max(abs(stats.first_level or 0.0), abs(self._best or 0.0)):
            self._runaway_indices.append(value_index)
        return (
            len(self._runaway_indices) == 3 and value_index - self._runaway_indices[0] < self.thresholds.window_values
        )

    def _trend(self, best: float, num_values: int) -> float:
        """Return the ratio of the last values to the first ones, both measured from the best level."""
        values = [high.value for high in list(self._high)[-num_values:]]
        first, last = sorted(values[: num_values // 2]), sorted(values[-max(2, num_values // 4) :])
        return (median(last) - best) / (median(first) - best)

    def _rise(self, best: float, first: float) -> float:
        rise = self._usual_rise(best, first, self._width)
        return (
            max(rise, self.thresholds.share_after_change * max(first - best, abs(best))) if self._is_lenient else rise
        )

    def _usual_rise(self, best: float, first: float, width: float) -> float:
        return max(self._least_rise(best, first), self.thresholds.sigmas * width)

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
        self.report(f"Loss has been diverging since step {since}: {figure(value)}, {best}", message, evidence=evidence)
