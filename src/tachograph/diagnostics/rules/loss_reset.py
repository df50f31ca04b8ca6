"""The loss is back where the run began."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._gauge import Gauge
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure

__all__ = ["LossReset"]


class LossReset(Rule):
    """The loss jumps, from one value to the next, back to the value the run started with.

    That is what fresh weights do. The rules about the loss start anew from there, so that a reset on purpose is neither
    a spike nor a divergence. Not looked for while the run has hardly gained anything.
    """

    name = "loss_reset"
    meaning = (
        "The weights are new: a schedule that restarts training on purpose, or a checkpoint that was not loaded, "
        "loaded into another model, or overwritten."
    )
    advice = (
        "If it was on purpose, nothing: what follows is judged as a run of its own.",
        "If not, see that load_state_dict was called, on the model that is trained, and before the optimizer was made.",
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

    def on_loud(self, gauge: Gauge, value: float) -> bool:
        """See whether a loud value is the first one come back."""
        first, level = gauge.very_first, gauge.level
        if first is None or level is None or first <= 0:
            return False
        limits = self.thresholds
        if abs(value - first) <= limits.tolerance * first and level <= (1 - limits.least_gain) * first:
            evidence = {
                "metric": gauge.metric,
                "step": self.now.step,
                "value": value,
                "first": first,
                "level_before": level,
            }
            title = f"Loss went back to its first value: {figure(value)} at step {self.now.step}, from {figure(level)}"
            self.found(title, "It looks as if training had started again with fresh weights.", evidence=evidence)
            self.desk.change("restart")
        return False

    def on_block(self, gauge: Gauge) -> None:
        """Close it once the new story has a level of its own."""
        if self.is_open() and gauge.num_values >= 64:
            self.over(f"judged anew from there; the loss is at {figure(gauge.level)}")
