"""The loss is back where the run began."""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import figure

__all__ = ["LossReset"]


class LossReset(Rule):
    """The loss jumps, from one value to the next, back to the value the run started with.

    That is what fresh weights do, if the value after it is not back where the loss was: then it was one bad batch. The
    rules about the loss start anew from there, so that a reset on purpose is no divergence. Not looked for while the
    run has hardly gained anything.
    """

    name = "loss_reset"
    meaning = (
        "The weights are new: a schedule that restarts training on purpose, or a checkpoint that was not loaded, "
        "loaded into another model, or overwritten."
    )
    advice = (
        "If it was on purpose, nothing: what follows is judged as a run of its own.",
        "If not, see that the checkpoint was loaded into the model that is trained, and that no key was missing.",
    )
    hears = ("loss",)

    class Thresholds(RuleSettings):
        """When it fires."""

        tolerance: Annotated[
            float, Meta(description="How near the first value it must be, as a share of it.", gt=0, lt=1)
        ] = 0.1
        least_gain: Annotated[
            float, Meta(description="What the run must have gained before, as a share of the first value.", gt=0, lt=1)
        ] = 0.3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._first: float | None = None
        self._jump: dict[str, Any] | None = None
        self._calm_below = 0.0

    def on_loud(self, gauge: SignalStats, value: float) -> bool:
        """See whether a loud value is the first one come back, and whether the next one stays up."""
        if self._jump is not None:
            jump, self._jump = self._jump, None
            gauge.ask(self, None)
            if value > self._calm_below:
                self._tell(jump)
            return False
        first, level = self._first or gauge.very_first, gauge.level
        if first is None or level is None or first <= 0 or not gauge.sigma:
            return False
        limits = self.thresholds
        if level > 0 and math.log(value / level) < 5 * gauge.log_sigma():
            return False  # a loss that is anywhere at any time, as with single samples
        if abs(value - first) <= limits.tolerance * first and level <= (1 - limits.least_gain) * first:
            self._jump = {
                "metric": gauge.metric,
                "step": self.now.step,
                "value": value,
                "first": first,
                "level_before": level,
            }
            self._calm_below = level + 0.5 * (gauge.loud_above - level)
            gauge.ask(self, -math.inf)
        return False

    def _tell(self, jump: dict[str, Any]) -> None:
        self._first = jump["value"]
        rise = f"{figure(jump['value'])} at step {jump['step']}, from {figure(jump['level_before'])}"
        self.found(
            f"Loss went back to its first value: {rise}",
            "It looks as if training had started again with fresh weights.",
            evidence=jump,
        )
        self.desk.change("restart")

    def on_block(self, gauge: SignalStats) -> None:
        """Close it once the new story has a level of its own."""
        if self.is_open() and gauge.num_values >= 64:
            self.over(f"judged anew from there; the loss is at {figure(gauge.level)}")
