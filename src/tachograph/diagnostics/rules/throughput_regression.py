"""The run has become slower."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._shift import ShiftDetector
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import duration, percent

__all__ = ["ThroughputRegression"]


class ThroughputRegression(Rule):
    """Steps have become slower at some point and stay slower.

    The rule compares the median step times of the last four blocks of sixteen steps with the twelve blocks before. All
    four must be slower, by a share and by several times the usual difference between blocks. Steps after a validation
    or checkpoint are ignored, and so is slow drift. A large change within one block that leaves steps as steady as
    before looks like a schedule of batch size or sequence length; `step_time_change` reports it. A change of the batch
    size resolves the alert.
    """

    name = "throughput_regression"
    meaning = (
        "The same work takes longer. Common causes: a GPU that is throttled by heat or power, another job on the node, "
        "a slow rank that all others wait for, slower storage or network, swapping, or a list in the training loop "
        "that keeps growing."
    )
    advice = (
        "Check in the timeline which phase became slower: data, forward, backward or optimizer.",
        "Compare GPU clocks, power and temperature before and after (nvidia-smi -q -d PERFORMANCE).",
        "On several nodes, compare step times per rank to find the slow one.",
        "Check whether something else is running on the machine.",
    )
    block_signals = ("step_s",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        rise: Annotated[float, Meta(description="Minimum increase of the step time, as a share.", gt=0)] = 0.1
        scheduled_rise: Annotated[
            float,
            Meta(
                description="A clean change of at least this share counts as scheduled, see `step_time_change`.", gt=0
            ),
        ] = 0.35

        least_step_s: Annotated[
            float, Meta(description="Step time in seconds below which steps are ignored.", ge=0)
        ] = 0.001

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all step times."""
        self._detector = ShiftDetector(self.thresholds.rise)
        self._old = 0.0
        self._new = 0.0

    def on_change(self, change: str) -> None:
        """Start over when the batch size changes."""
        if change == "batch":
            self._detector.clear()
            self.resolve("the batch size changed")

    def on_block(self, stats: SignalStats) -> None:
        """Check for a shift, or for its end."""
        if self.is_open():
            middle = stats.values[len(stats.values) // 2]
            # Halfway back, so that noise around either level neither resolves nor reopens the alert.
            if middle < self._old + 0.5 * (self._new - self._old):
                self.resolve(f"steps take {duration(middle)} again")
                self._detector.clear()
            return
        shift = self._detector.add_block(stats, self.context.step)
        if (
            shift is None
            or shift.after < self.thresholds.least_step_s
            or (shift.is_clean and shift.after >= (1 + self.thresholds.scheduled_rise) * shift.before)
        ):
            return
        self._old, self._new = shift.before, shift.after
        rise = shift.after / shift.before - 1
        evidence = {
            "metric": stats.metric,
            "before_s": shift.before,
            "after_s": shift.after,
            "rise": rise,
            "from_step": shift.step,
            "step": self.context.step,
        }
        title = f"Steps take {percent(rise)} longer since about step {shift.step}: {duration(shift.after)}"
        self.report(title, f"They took {duration(shift.before)} before.", evidence=evidence)
