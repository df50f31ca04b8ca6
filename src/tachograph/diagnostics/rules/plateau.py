"""The loss has stopped falling."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, SignalStats
from tachograph.diagnostics._slope import fit_slope
from tachograph.diagnostics._text import figure, percent

__all__ = ["Plateau"]

_MAX_POINTS = 128

_OUTCOMES = {
    "lr": "the learning rate changed",
    "batch": "the batch size changed",
    "restart": "training restarted with fresh weights",
}


class _Point(NamedTuple):
    level: float
    step: int | None
    lr: float | None


class Plateau(Rule):
    """The loss has not fallen significantly for a long stretch.

    The rule fits a line to the levels of the last third of the run, in blocks of sixteen values and later in larger
    ones. The loss is on a plateau if even the steepest slope within the error of the fit amounts to less than a small
    share of the loss over the whole stretch.

    The rule is inactive while the learning rate is far below its peak (the end of a schedule) or still rising to it,
    and in reinforcement learning, where the loss does not measure progress.
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

        least_blocks: Annotated[
            int, Meta(description="Blocks of 16 values required before the rule is active.", ge=16, le=4096)
        ] = 96
        least_gain: Annotated[
            float, Meta(description="Minimum fall over the stretch, as a share of the loss.", gt=0, lt=1)
        ] = 0.005
        least_lr_share: Annotated[
            float, Meta(description="Share of its peak below which the learning rate explains a plateau.", ge=0, le=1)
        ] = 0.3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all levels."""
        self._points: list[_Point] = []
        self._blocks_per_point = 1
        self._pending: list[float] = []
        self._lr_peak = 0.0

    def on_change(self, change: str) -> None:
        """Start over: the loss may fall again after a change."""
        self.resolve(_OUTCOMES.get(change, f"the {change} changed"))
        self._points, self._pending, self._blocks_per_point = [], [], 1

    def on_block(self, stats: SignalStats) -> None:
        """Add a level; check the last third of the run at every eighth point."""
        if stats.level is None or self.context.is_reinforcement:
            return
        self._pending.append(stats.level)
        if len(self._pending) < self._blocks_per_point:
            return
        lr = self.signals["lr"].level if "lr" in self.signals else None
        self._lr_peak = max(self._lr_peak, lr or 0.0)
        self._points.append(_Point(sum(self._pending) / len(self._pending), self.context.step, lr))
        self._pending = []
        if len(self._points) == _MAX_POINTS:  # halve the resolution, so that memory stays bounded
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [second._replace(level=0.5 * (first.level + second.level)) for first, second in pairs]
            self._blocks_per_point *= 2
        # A check costs a regression, so it is not done at every point.
        is_active = len(self._points) * self._blocks_per_point >= self.thresholds.least_blocks
        if is_active and len(self._points) % 8 == 0:
            self._evaluate(stats, self._points[-len(self._points) // 3 :])

    def _evaluate(self, stats: SignalStats, points: list[_Point]) -> None:
        gain, error = _fitted_gain([point.level for point in points])
        level = abs(points[-1].level)
        max_share = (gain + 2 * error) / level if level > 0 else math.inf
        if self.is_open():
            # A clear and significant fall, so that the alert does not flap.
            if max_share > 3 * self.thresholds.least_gain and gain > 2 * error:
                self.resolve(f"the loss is falling again, by {percent(gain / level)} over the stretch")
        elif max_share < self.thresholds.least_gain and gain > -2 * error and self._should_learn(points):
            self._report(stats, gain, max_share, points)

    def _should_learn(self, points: list[_Point]) -> bool:
        """Return whether the learning rate is high enough to expect progress; True if it is not recorded."""
        first, last = points[0].lr, points[-1].lr
        if first is None or last is None:
            return True
        return 0 < last <= 1.1 * first and last >= self.thresholds.least_lr_share * self._lr_peak

    def _report(self, stats: SignalStats, gain: float, max_share: float, points: list[_Point]) -> None:
        begin, num_values = points[0].step, BLOCK * self._blocks_per_point * len(points)
        level = stats.level or 0.0
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


def _fitted_gain(levels: list[float]) -> tuple[float, float]:
    """Return how much a line fitted to the values falls from end to end, and the error of that."""
    slope, error = fit_slope(range(len(levels)), levels)
    length = len(levels) - 1
    return -slope * length, error * length
