"""The reward falls from its peak."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, SignalStats, median
from tachograph.diagnostics._text import figure, percent

__all__ = ["RewardDrop"]

_NUM_SIGMAS = 8
_MIN_CHANGES = 8
_NUM_CHANGES = 32
_NUM_LOW = 3
_LOW_RANGE = 0.5
_LOW_SIGMAS = 6.0


class RewardDrop(Rule):
    """The reward has lost a large part of its gain, or fell far below its initial value.

    The rule compares the means of the last two blocks of sixteen values with the highest such mean before: the current
    one must be lower by a share of the gain since the start and by several standard errors, or by several times the
    usual change from block to block. A reward that never rose must fall further. Values far below everything before are
    reported at once, when three of them follow each other. The rule ignores rewards of preference
    training, such as `rewards/chosen`, because they are expected to fall.
    """

    name = "reward_drop"
    meaning = (
        "The policy has become worse at the task. Common causes: updates that are too large, an entropy collapse, or a "
        "reward model that is applied to texts unlike its training data."
    )
    advice = (
        "Restart from the checkpoint closest to the peak.",
        "Lower the learning rate, raise the KL coefficient, or use larger groups.",
        "Compare completions from the peak with current ones.",
    )
    block_signals = ("reward",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        share: Annotated[float, Meta(description="Minimum drop, as a share of the gain.", gt=0)] = 0.4
        errors: Annotated[float, Meta(description="Minimum drop in standard errors of a mean.", gt=0)] = 6.0
        sigmas: Annotated[
            float, Meta(description="Minimum drop in standard deviations, if the reward has not risen.", gt=0)
        ] = 2.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget the peak."""
        self._peak: float | None = None
        self._peak_step: int | None = None
        self._initial: float | None = None
        self._last_mean: float | None = None
        self._changes: deque[float] = deque(maxlen=_NUM_CHANGES)  # between the means of neighbouring blocks
        self._sigmas: deque[float] = deque(maxlen=_NUM_SIGMAS)
        self._lowest, self._highest = math.inf, -math.inf
        self._low_values: list[float] = []
        self._low_at = -1

    def outlier_band(self, signal: str) -> tuple[float, float] | None:
        """Measure the spread; report no outliers."""
        return math.inf, 0.0

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Handle a value far below all values before: three in a row are a fall, however long the next block takes."""
        self._low_values = [*self._low_values, value] if stats.num_added == self._low_at + 1 else [value]
        self._low_at = stats.num_added
        if len(self._low_values) >= _NUM_LOW and not self.is_open() and self._peak is not None:
            self._report(stats, sum(self._low_values) / len(self._low_values), False, stats.low)
        return False

    def _watch_low(self, stats: SignalStats, sigma: float) -> None:
        """Ask for values below all values so far, by a large part of their range and by many spreads."""
        lowest, highest = stats.values[0], stats.values[-1]
        self._lowest, self._highest = min(self._lowest, lowest), max(self._highest, highest)
        distance = max(_LOW_RANGE * (self._highest - self._lowest), _LOW_SIGMAS * sigma)
        stats.low = self._lowest - distance if distance > 0 else -math.inf

    def on_block(self, stats: SignalStats) -> None:
        """Compare the mean of two blocks with the peak."""
        values = stats.values[1:-1]  # without the lowest and the highest: one bad episode is no fall
        mean = sum(values) / len(values)
        last, self._last_mean = self._last_mean, mean
        self._watch_low(stats, stats.sigma or 0.0)
        if last is None or stats.sigma is None:
            return
        if not self.is_open():
            self._changes.append(abs(mean - last))
        level, limits = 0.5 * (last + mean), self.thresholds
        # The fall itself widens the spread, so the usual spread before it is the measure.
        self._sigmas.append(stats.sigma)
        sigma = median(sorted(self._sigmas))
        self._initial = last if self._initial is None else self._initial
        if self._peak is None or level > self._peak:
            self._peak, self._peak_step = level, self.context.step
        gain, drop = self._peak - self._initial, self._peak - level
        error = sigma * math.sqrt(2 / (2 * BLOCK))  # of the difference of two such means
        if len(self._changes) >= _MIN_CHANGES:
            # Neighbouring values are often similar, as in a moving average. Then means differ by more than that.
            error = max(error, median(sorted(self._changes)))
        has_gained = gain > limits.errors * error
        limit = max(limits.share * gain, limits.errors * error)
        if not has_gained:
            limit = max(limits.sigmas * sigma, 1.5 * limits.errors * error)
        if self.is_open():
            if drop < 0.5 * limit:  # clearly smaller, so that the alert does not flap
                self.resolve(f"{stats.metric} is back at {figure(level)}")
        elif drop > limit > 0:
            self._report(stats, level, has_gained, self._peak - limit)

    def _report(self, stats: SignalStats, level: float, has_gained: bool, lowest: float) -> None:
        peak, initial = self._peak or 0.0, self._initial or 0.0
        evidence = {
            "metric": stats.metric,
            "level": level,
            "peak": self._peak,
            "peak_step": self._peak_step,
            "initial": self._initial,
            "step": self.context.step,
            "expected": [lowest, None],
        }
        title = f"Reward fell to {figure(level)} from its peak of {figure(peak)} at step {self._peak_step}"
        message = f"It started at {figure(initial)}."
        if has_gained:
            message = f"It has lost {percent((peak - level) / (peak - initial))} of its gain."
        self.report(title, message, evidence=evidence)
