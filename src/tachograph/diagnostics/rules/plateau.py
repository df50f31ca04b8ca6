"""The loss stands still."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, SignalStats
from tachograph.diagnostics._slope import slope_of
from tachograph.diagnostics._text import figure, percent

__all__ = ["Plateau"]

_MOST_POINTS = 128

_CHANGES = {
    "lr": "the learning rate changed",
    "batch": "the batch size changed",
    "restart": "training started again with fresh weights",
}


class _Point(NamedTuple):
    level: float
    step: int | None
    lr: float | None


class Plateau(Rule):
    """The loss has not fallen for a long stretch, by more than could be chance.

    A line is laid through the levels of the last third of the run, in blocks of sixteen values and later in larger
    ones. If the most that its slope could be, given its own error, comes to less than a small share of the loss over
    the whole stretch, the loss stands still. Not looked for while the learning rate is far below its peak, which is the
    end of a schedule, or still rising to it; nor in reinforcement learning, where the loss does not say how well it
    goes.
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

        least_blocks: Annotated[
            int, Meta(description="Blocks of 16 values that must be known before it looks.", ge=16, le=4096)
        ] = 96
        least_gain: Annotated[
            float, Meta(description="What the loss must gain over that stretch, as a share of it.", gt=0, lt=1)
        ] = 0.005
        least_lr_share: Annotated[
            float, Meta(description="Share of its peak below which the learning rate explains it.", ge=0, le=1)
        ] = 0.3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._points: list[_Point] = []
        self._blocks_per_point = 1
        self._waiting: list[float] = []
        self._lr_peak = 0.0

    def on_change(self, what: str) -> None:
        """Begin anew: after a change the loss may fall again."""
        self.over(_CHANGES.get(what, f"the {what} changed"))
        self._points, self._waiting, self._blocks_per_point = [], [], 1

    def on_block(self, gauge: SignalStats) -> None:
        """Take a level; look at the line through the last third of them."""
        if gauge.level is None or self.desk.is_reinforcement:
            return
        self._waiting.append(gauge.level)
        if len(self._waiting) < self._blocks_per_point:
            return
        lr = self.gauges["lr"].level if "lr" in self.gauges else None
        self._lr_peak = max(self._lr_peak, lr or 0.0)
        self._points.append(_Point(sum(self._waiting) / len(self._waiting), self.now.step, lr))
        self._waiting = []
        if len(self._points) == _MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [second._replace(level=0.5 * (first.level + second.level)) for first, second in pairs]
            self._blocks_per_point *= 2
        is_known = len(self._points) * self._blocks_per_point >= self.thresholds.least_blocks
        if is_known and len(self._points) % 8 == 0:
            self._judge(gauge, self._points[-len(self._points) // 3 :])

    def _judge(self, gauge: SignalStats, points: list[_Point]) -> None:
        gain, error = _gain([point.level for point in points])
        level = abs(points[-1].level)
        most = (gain + 2 * error) / level if level > 0 else math.inf
        if self.is_open():
            if most > 3 * self.thresholds.least_gain and gain > 2 * error:
                self.over(f"the loss falls again: {percent(gain / level)} over the stretch")
        elif most < self.thresholds.least_gain and gain > -2 * error and self._may_learn(points):
            self._tell(gauge, gain, most, points)

    def _may_learn(self, points: list[_Point]) -> bool:
        """Tell whether the learning rate is high enough that a fall would be expected, as far as it is known."""
        first, last = points[0].lr, points[-1].lr
        if first is None or last is None:
            return True
        return 0 < last <= 1.1 * first and last >= self.thresholds.least_lr_share * self._lr_peak

    def _tell(self, gauge: SignalStats, gain: float, most: float, points: list[_Point]) -> None:
        begin, num_values = points[0].step, BLOCK * self._blocks_per_point * len(points)
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
    slope, error = slope_of(range(len(levels)), levels)
    length = len(levels) - 1
    return -slope * length, error * length
