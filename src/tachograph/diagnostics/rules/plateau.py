"""The loss has stopped falling."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from operator import mul, sub
from typing import Annotated, NamedTuple

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, no_change
from tachograph.diagnostics._slope import fit_slope
from tachograph.diagnostics._text import figure, percent

__all__ = ["Plateau"]

_MAX_POINTS = 256
_CHECK_EVERY = 8
"""The loss is checked whenever the run has grown by an eighth, because a check costs a regression."""
_MIN_VALUES_OF_UNKNOWN = 1536
_MIN_SHARE_OF_RUN = 0.25
_MIN_POINTS = 8
_MAX_GAINS = 4

_OUTCOMES = {
    "lr": "the learning rate changed",
    "batch": "the batch size changed",
    "restart": "training restarted with fresh weights",
}


class _BlockMean(NamedTuple):
    """The mean of a block, and the step and the learning rate at its end."""

    level: float
    step: int | None
    lr: float | None


class _Points:
    """Means of equal groups of values, each with the step and the learning rate at its end."""

    def __init__(self) -> None:
        self.levels: list[float] = []
        self.steps: list[int | None] = []
        self.lrs: list[float | None] = []

    def add(self, level: float, step: int | None, lr: float | None) -> None:
        """Add the mean of a group."""
        self.levels.append(level)
        self.steps.append(step)
        self.lrs.append(lr)

    def add_parts(self, values: list[float], size: int, last: _BlockMean, block: _BlockMean) -> None:
        """Add the means of groups within a block, with steps and learning rates interpolated since the last one."""
        ends = range(size, BLOCK + 1, size)
        self.levels += values if size == 1 else [sum(values[end - size : end]) / size for end in ends]
        last_step, step, last_lr, lr = last.step, block.step, last.lr, block.lr
        if step is None or last_step is None:
            self.steps += [step] * len(ends)
        else:
            self.steps += [round(last_step + end / BLOCK * (step - last_step)) for end in ends]
        if lr is None or last_lr is None or lr == last_lr:
            self.lrs += [lr] * len(ends)
        else:
            self.lrs += [last_lr + end / BLOCK * (lr - last_lr) for end in ends]

    def merge_pairs(self) -> None:
        """Halve the resolution."""
        pairs = zip(self.levels[::2], self.levels[1::2], strict=True)
        self.levels = [0.5 * (first + second) for first, second in pairs]
        self.steps, self.lrs = self.steps[1::2], self.lrs[1::2]


class Plateau(Rule):
    """The loss has not fallen significantly over the last half or the last three quarters of the run.

    The rule keeps the means of groups of values, single values at first and larger groups later, and fits a line to
    them. The loss is on a plateau if even the largest fall within the error of the fit is negligible: a small share of
    the loss, or a small share of the fall from the quarter of the run before. The noisier the loss, the more values the
    rule needs.

    The rule is inactive in the first quarter of a run of known length, while the learning rate is far below its peak
    (the end of a schedule) or still rising to it, and in reinforcement learning, where the loss does not measure
    progress.
    """

    name = "plateau"
    severity = "info"
    meaning = (
        "The run uses compute and improves little. Either it has converged as far as this learning rate allows, or "
        "something prevents learning: a learning rate that is too low or too high, frozen parameters, or labels that "
        "do not match the inputs."
    )
    advice = (
        "Check the validation loss: if it is flat too, stop or lower the learning rate now.",
        "If it happens early, overfit a single batch to prove that the model can learn at all.",
        "Try another learning rate; the loss often falls again when the rate decays.",
    )
    block_signals = ("loss",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        least_values: Annotated[
            int, Meta(description="Values required before the rule is active.", ge=2 * BLOCK, le=65536)
        ] = 2 * BLOCK
        least_gain: Annotated[
            float, Meta(description="Minimum fall over the stretch, as a share of the loss.", gt=0, lt=1)
        ] = 0.01
        least_share: Annotated[
            float,
            Meta(description="Minimum fall over the stretch, as a share of the fall before it.", ge=0, lt=1),
        ] = 0.2
        least_lr_share: Annotated[
            float, Meta(description="Share of its peak below which the learning rate explains a plateau.", ge=0, le=1)
        ] = 0.3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all values."""
        self._lr_peak = 0.0
        self._forget_points()

    def _forget_points(self) -> None:
        self._points = _Points()
        self._values_per_point = 1
        self._pending: list[float] = []
        self._num_values = 0
        self._next_check = 0
        self._first_block: list[float] = []  # until the next block shows how many steps a block covers
        self._last: _BlockMean | None = None

    def on_change(self, change: str) -> None:
        """Start over: the loss may fall again after a change."""
        self.resolve(_OUTCOMES.get(change, f"the {change} changed"))
        if self._num_values:
            self._forget_points()

    def on_block(self, stats: SignalStats) -> None:
        """Add sixteen values; check the second half of the run from time to time."""
        if stats.level is None or self.context.is_reinforcement:
            return
        lr = self.signals["lr"].level if "lr" in self.signals else None
        self._add_block(stats.last_block, self.context.step, lr)
        self._check_if_due(stats, stats.level)

    def _check_if_due(self, stats: SignalStats, level: float) -> None:
        if self._num_values >= max(self._next_check, self.thresholds.least_values) and not self._pending:
            self._next_check = self._num_values + self._num_values // _CHECK_EVERY
            if (self.context.step or 0) >= _MIN_SHARE_OF_RUN * (self.context.max_steps or 0):
                self._evaluate(stats, level)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Add blocks, with a check among them unless it may end an alert.

        Nothing depends on this alert, so it may be opened while the others skip blocks.
        """
        if self.context.is_reinforcement:
            return no_change
        num_blocks = len(batch.blocks)
        if self.is_open() and self._num_values + BLOCK * num_blocks >= self._next_check:
            return None
        lrs = batch.lr_levels(self.signals["lr"].level if "lr" in self.signals else None)

        def commit() -> None:
            begin = 0
            while begin < num_blocks:
                room = self._values_per_point // BLOCK - len(self._pending)
                if room > 1:
                    # No check is due before a point is complete.
                    end = min(begin + room, num_blocks) - 1
                    self._pending += [sum(block) / BLOCK for block in batch.blocks[begin:end]]
                    self._num_values += BLOCK * (end - begin)
                    begin = end
                self._add_block(batch.blocks[begin], batch.steps[begin], lrs[begin])
                if self._num_values >= self._next_check:
                    self.context.step, self.context.time_s = batch.steps[begin], batch.times_s[begin]
                    self._check_if_due(stats, batch.levels[begin])
                begin += 1
            self._lr_peak = max(self._lr_peak, *(lr or 0.0 for lr in lrs))

        return commit

    def _add_block(self, values: list[float], step: int | None, lr: float | None) -> None:
        if lr is not None and lr > self._lr_peak:
            self._lr_peak = lr
        block = _BlockMean(sum(values) / BLOCK, step, lr)
        size, points = self._values_per_point, self._points
        if size >= BLOCK:
            self._pending.append(block.level)
            if len(self._pending) * BLOCK == size:
                points.add(sum(self._pending) / len(self._pending), block.step, lr)
                self._pending = []
        elif self._last is None:
            self._first_block = values
        else:
            if self._first_block:
                points.add_parts(self._first_block, size, _before(self._last, block), self._last)
                self._first_block = []
            points.add_parts(values, size, self._last, block)
        self._last = block
        if len(points.levels) >= _MAX_POINTS:  # so that memory stays bounded
            points.merge_pairs()
            self._values_per_point *= 2
        self._num_values += BLOCK

    def _evaluate(self, stats: SignalStats, level: float) -> None:
        quarter, half = self._index_of_share(0.25), self._index_of_share(0.5)
        levels = self._points.levels
        if len(levels) - half < _MIN_POINTS or half - quarter < 2 or quarter < 2:
            return  # values are recorded more rarely than at the start
        if self.is_open():
            gain, error, mean = _fitted_gain(levels[half:])
            # A clear and significant fall, so that the alert does not flap.
            if gain + 2 * error > 3 * self.thresholds.least_gain * mean and gain > 2 * error:
                self.resolve(f"the loss is falling again, by {percent(gain / mean)} over the stretch")
        elif not self._check(stats, level, quarter, half):
            self._check(stats, level, 0, quarter)

    def _index_of_share(self, share: float) -> int:
        """Return the index of the first point after a share of the steps."""
        steps = self._points.steps
        first, last = steps[0], steps[-1]
        if first is None or last is None:
            return int(share * len(steps))
        limit = first + share * (last - first)
        return min(bisect_right(steps, limit, key=lambda step: step or 0), len(steps) - 1)

    def _check(self, stats: SignalStats, last_level: float, before: int, begin: int) -> bool:
        """Report a plateau if the loss is flat from one point on; the points before it show how fast it fell."""
        levels, limits = self._points.levels[begin:], self.thresholds
        half = len(levels) // 2
        first, second = sum(levels[:half]) / half, sum(levels[-half:]) / half
        if first - second > 2 * _MAX_GAINS * limits.least_gain * abs(second):
            return False  # it falls clearly, which is cheaper to see than to fit
        gain, error, level = _fitted_gain(levels)
        max_gain, limit = gain + 2 * error, _MAX_GAINS * limits.least_gain * level
        if max_gain >= limit or 3 * error >= 2 * limit or not self._should_learn(begin):
            return False
        recent_fall, recent_error = self._fall(begin, begin + half)
        if recent_fall < -2 * recent_error:
            return False  # it rises
        fall, fall_error = self._fall(before, begin)
        has_fallen = fall > max(4 * fall_error, 2 * limits.least_gain * level)
        # A loss that never fell may be at the beginning of a long run.
        can_tell = has_fallen or self.context.max_steps is not None or self._num_values >= _MIN_VALUES_OF_UNKNOWN
        is_flat = max_gain < limits.least_gain * level and can_tell
        if not is_flat and not (has_fallen and max_gain < limits.least_share * fall):
            return False
        self._report(stats, last_level, gain, max_gain / level, begin)
        return True

    def _fall(self, begin: int, middle: int) -> tuple[float, float]:
        """Return by how much the mean falls from a stretch to all points after it, and the error of that."""
        means, variance = [], 0.0
        for levels in (self._points.levels[begin:middle], self._points.levels[middle:]):
            means.append(sum(levels) / len(levels))
            # Differences of neighbours measure the noise without the fall.
            steps = list(map(sub, levels[1:], levels))
            variance += 0.5 * sum(map(mul, steps, steps)) / max(len(steps), 1) / len(levels)
        return means[0] - means[1], math.sqrt(variance)

    def _should_learn(self, begin: int) -> bool:
        """Return whether the learning rate is high enough to expect progress; True if it is not recorded."""
        first, last = self._points.lrs[begin], self._points.lrs[-1]
        if first is None or last is None:
            return True
        return 0 < last <= 1.1 * first and last >= self.thresholds.least_lr_share * self._lr_peak

    def _report(self, stats: SignalStats, level: float, gain: float, max_share: float, first_point: int) -> None:
        begin = self._points.steps[first_point]
        num_values = self._values_per_point * (len(self._points.levels) - first_point)
        evidence = {
            "metric": stats.metric,
            "level": level,
            "gain": gain,
            "most_share": max_share,
            "from_step": begin,
            "step": self.context.step,
            "window_values": num_values,
        }
        title = f"Loss has been flat at {figure(level)} since step {begin}"
        message = f"It fell by at most {percent(max(max_share, 0.0))} over the last {num_values} values."
        self.report(title, message, evidence=evidence)


def _before(first: _BlockMean, second: _BlockMean) -> _BlockMean:
    """Return where the block before two others ended, if all three cover the same number of steps."""
    if first.step is None or second.step is None:
        return first
    return first._replace(step=2 * first.step - second.step)


def _fitted_gain(levels: list[float]) -> tuple[float, float, float]:
    """Return how much a line fitted to the levels falls from end to end, the error of that, and the mean."""
    slope, error = fit_slope(range(len(levels)), levels)
    length = len(levels) - 1
    return -slope * length, error * length, abs(sum(levels) / len(levels))
