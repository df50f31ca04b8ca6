"""The run has become slower."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._shift import ShiftFinder
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import duration, percent

__all__ = ["ThroughputRegression"]


class ThroughputRegression(Rule):
    """Steps take longer than before, from some point on and for good.

    The median step times of the last four blocks of sixteen steps are compared with those of the twelve before. All
    four must be longer, by a share and by several times what blocks differ anyway. Steps after a validation or
    checkpoint do not count. A change that happens at once, is large and leaves steps as steady as before is what a
    schedule of batch size or sequence length does: `step_time_change` tells of it. Silent after a change of the batch
    size.
    """

    name = "throughput_regression"
    meaning = (
        "The same work takes longer. Usual causes: a GPU that is too hot or limited in power, another job on the node, "
        "a slow rank that all others wait for, storage or network that slowed down, memory that is being swapped, or a "
        "list in the training loop that grows."
    )
    advice = (
        "See in the timeline which phase grew: data, forward, backward, optimizer.",
        "Compare GPU clocks, power and temperature before and after (nvidia-smi -q -d PERFORMANCE).",
        "On several nodes, compare step times per rank to find the slow one.",
        "See whether something else runs on the machine.",
    )
    hears = ("step_s",)

    class Thresholds(RuleSettings):
        """When it fires."""

        rise: Annotated[float, Meta(description="Share by which steps must take longer.", gt=0)] = 0.1
        scheduled_rise: Annotated[
            float,
            Meta(
                description="A clean change of at least this share counts as scheduled, see `step_time_change`.", gt=0
            ),
        ] = 0.35

        least_step_s: Annotated[float, Meta(description="Seconds that a step must take to be worth a look.", ge=0)] = (
            0.001
        )

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._finder = ShiftFinder(self.thresholds.rise)
        self._old = 0.0
        self._new = 0.0

    def on_change(self, what: str) -> None:
        """Begin anew when the steps are others."""
        if what == "batch":
            self._finder.clear()
            self.over("the batch size changed")

    def on_block(self, gauge: SignalStats) -> None:
        """Look for a shift."""
        if self.is_open():
            middle = gauge.values[len(gauge.values) // 2]
            if middle < self._old + 0.5 * (self._new - self._old):
                self.over(f"steps take {duration(middle)} again")
                self._finder.clear()
            return
        shift = self._finder.take(gauge, self.now.step)
        if (
            shift is None
            or shift.after < self.thresholds.least_step_s
            or (shift.is_clean and shift.after >= (1 + self.thresholds.scheduled_rise) * shift.before)
        ):
            return
        self._old, self._new = shift.before, shift.after
        rise = shift.after / shift.before - 1
        evidence = {
            "metric": gauge.metric,
            "before_s": shift.before,
            "after_s": shift.after,
            "rise": rise,
            "from_step": shift.step,
            "step": self.now.step,
        }
        title = f"Steps take {percent(rise)} longer since about step {shift.step}: {duration(shift.after)}"
        self.found(title, f"Before, they took {duration(shift.before)}.", evidence=evidence)
