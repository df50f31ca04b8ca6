"""The loss stands still."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._gauge import Gauge
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure, percent

__all__ = ["Plateau"]


class Plateau(Rule):
    """The loss has not fallen for a long stretch, by more than could be chance.

    A line is laid through the levels of the last blocks of sixteen values. If the most that its slope could be, given
    its own error, comes to less than a small share of the loss over the whole stretch, the loss stands still. Not
    looked for while the learning rate is far below its peak, which is the end of a schedule, or still rising to it.
    """

    name = "plateau"
    severity = "info"
    meaning = (
        "The run costs time and gains little: it has converged as far as this learning rate takes it, or something "
        "keeps it from learning, such as a rate too low or too high, frozen parameters, or labels that do not fit the "
        "inputs."
    )
    advice = (
        "Look at the validation loss: if it stands still too, stop or lower the learning rate now.",
        "If it happens early: overfit one batch on purpose to see that the model can learn at all.",
        "Try another learning rate; a decay often brings the next fall.",
    )
    hears = ("loss",)

    class Thresholds(RuleSettings):
        """When it fires."""

        blocks: Annotated[int, Meta(description="Blocks of 16 values that must show no fall.", ge=8, le=1024)] = 64
        least_gain: Annotated[
            float, Meta(description="What the loss must gain over that stretch, as a share of it.", gt=0, lt=1)
        ] = 0.005
        least_lr_share: Annotated[
            float, Meta(description="Share of its peak below which the learning rate explains it.", ge=0, le=1)
        ] = 0.3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._levels: deque[float] = deque(maxlen=self.thresholds.blocks)
        self._first_steps: deque[int | None] = deque(maxlen=self.thresholds.blocks)
        self._num_blocks = 0
        self._lr_peak = 0.0

    def on_change(self, what: str) -> None:
        """Begin anew: after a change the loss may fall again."""
        self.over(f"the {what} changed")
        self._levels.clear()
        self._first_steps.clear()

    def on_block(self, gauge: Gauge) -> None:
        """Take a level; now and then look at the line through them."""
        if gauge.level is None:
            return
        self._levels.append(gauge.level)
        self._first_steps.append(self.now.step)
        self._num_blocks += 1
        if self._num_blocks % 8 or len(self._levels) < self.thresholds.blocks:
            return
        gain, error = _gain(list(self._levels))
        level = abs(gauge.level)
        most = (gain + 2 * error) / level if level > 0 else math.inf
        if self.is_open():
            if most > 3 * self.thresholds.least_gain and gain > 2 * error:
                self.over(f"the loss falls again: {percent(gain / level)} over the stretch")
        elif most < self.thresholds.least_gain and gain > -2 * error and self._may_learn():
            self._tell(gauge, gain, most)

    def _may_learn(self) -> bool:
        """Tell whether the learning rate is high enough that a fall would be expected, as far as it is known."""
        gauge = self.gauges.get("lr")
        if gauge is None or gauge.level is None:
            return True
        self._lr_peak = max(self._lr_peak, gauge.level)
        return gauge.level >= self.thresholds.least_lr_share * self._lr_peak and gauge.level > 0

    def _tell(self, gauge: Gauge, gain: float, most: float) -> None:
        begin, num_values = self._first_steps[0], 16 * len(self._levels)
        level = gauge.level or 0.0
        evidence = {
            "metric": gauge.metric,
            "level": level,
            "gain": gain,
            "most_share": most,
            "from_step": begin,
            "step": self.now.step,
            "window_values": num_values,
        }
        title = f"Loss stands still at {figure(level)} since step {begin}"
        message = f"Over the last {num_values} values it has gained no more than {percent(max(most, 0.0))}."
        self.found(title, message, evidence=evidence)


def _gain(levels: list[float]) -> tuple[float, float]:
    """Return how much the values fell along a line laid through them, from end to end, and the error of that."""
    count = len(levels)
    middle = (count - 1) / 2
    mean = sum(levels) / count
    spread = count * (count * count - 1) / 12
    slope = sum((index - middle) * value for index, value in enumerate(levels)) / spread
    rest = sum((value - mean - slope * (index - middle)) ** 2 for index, value in enumerate(levels))
    error = math.sqrt(rest / max(count - 2, 1) / spread)
    return -slope * (count - 1), error * (count - 1)
