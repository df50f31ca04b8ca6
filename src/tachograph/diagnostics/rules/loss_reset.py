"""The loss is back at its initial value."""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import figure

__all__ = ["LossReset"]


class LossReset(Rule):
    """The loss jumps back to its initial value from one value to the next.

    Fresh weights cause exactly that. If the next value is back at the previous level, it was one bad batch instead. All
    rules about the loss start over after a reset, so that an intended one is not reported as a divergence. The rule is
    inactive until the loss has fallen noticeably.
    """

    name = "loss_reset"
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
        least_gain: Annotated[
            float,
            Meta(description="Minimum fall of the loss before the jump, as a share of its first value.", gt=0, lt=1),
        ] = 0.3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all values."""
        self._first: float | None = None
        self._jump: dict[str, Any] | None = None
        self._calm_below = 0.0

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Check whether an outlier is close to the first value, and whether the next value stays up."""
        if self._jump is not None:
            jump, self._jump = self._jump, None
            stats.watch(self, None)
            if value > self._calm_below:
                self._report(jump)
            return False
        first, level = self._first or stats.first_value, stats.level
        if first is None or level is None or first <= 0 or not stats.sigma:
            return False
        limits = self.thresholds
        if stats.num_rises(0.6 * (value - level)) > 2:
            return False  # the loss is often this high
        if level > 0 and math.log(value / level) < 5 * stats.log_sigma():
            return False  # a loss that varies this much anyway, as with a batch size of one
        if abs(value - first) <= limits.tolerance * first and level <= (1 - limits.least_gain) * first:
            self._jump = {
                "metric": stats.metric,
                "step": self.context.step,
                "value": value,
                "first": first,
                "level_before": level,
            }
            self._calm_below = level + 0.5 * (stats.outlier_above - level)
            stats.watch(self, -math.inf)
        return False

    def _report(self, jump: dict[str, Any]) -> None:
        self._first = jump["value"]
        rise = f"{figure(jump['value'])} at step {jump['step']}, from {figure(jump['level_before'])}"
        self.report(
            f"Loss is back at its initial value: {rise}",
            "Training seems to have restarted with fresh weights.",
            evidence=jump,
        )
        self.context.announce_change("restart")

    def on_block(self, stats: SignalStats) -> None:
        """Resolve the alert once the restarted loss has a level of its own."""
        if self.is_open() and stats.num_in_blocks >= 64:
            self.resolve(f"the rules started over; the loss is at {figure(stats.level)}")
