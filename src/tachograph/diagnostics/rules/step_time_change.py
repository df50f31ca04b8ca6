"""The step time changed within one block, as if planned."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._shift import ShiftDetector
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import duration, factor

__all__ = ["StepTimeChange"]


class StepTimeChange(Rule):
    """Steps take much longer from one step to the next, and are as steady as before.

    A schedule of the batch size, the sequence length or the attention window looks like this. The change is reported
    once, for information, and not as a regression. If the batch size is recorded and changes too, nothing is reported.
    """

    name = "step_time_change"
    severity = "info"
    meaning = (
        "Most likely each step does more work now: larger batches, longer sequences, unfrozen layers. If nothing was "
        "planned for that step, something slows down every step equally, such as a lower GPU clock."
    )
    advice = (
        "If it was planned, do nothing. To avoid this alert, record batch_size or num_tokens_per_step.",
        "Otherwise compare clocks, power and the phases of a step before and after.",
    )
    block_signals = ("step_s",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        rise: Annotated[float, Meta(description="Minimum increase of the step time, as a share.", gt=0)] = 0.35
        blocks_to_resolve: Annotated[
            int, Meta(description="Blocks of 16 steps after which the alert is resolved.", ge=1)
        ] = 8

        least_step_s: Annotated[
            float, Meta(description="Step time in seconds below which steps are ignored.", ge=0)
        ] = 0.001

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all step times."""
        self._detector = ShiftDetector(self.thresholds.rise)
        self._num_blocks = 0

    def on_change(self, change: str) -> None:
        """Start over when the batch size changes."""
        if change == "batch":
            self._detector.clear()

    def on_block(self, stats: SignalStats) -> None:
        """Check for a clean shift."""
        shift = self._detector.add_block(stats, self.context.step)
        if self.is_open():
            self._num_blocks += 1
            if self._num_blocks >= self.thresholds.blocks_to_resolve:
                self.resolve("the new step time is stable")
        if shift is None or not shift.is_clean or shift.after < self.thresholds.least_step_s:
            return
        self._num_blocks = 0
        evidence = {
            "metric": stats.metric,
            "before_s": shift.before,
            "after_s": shift.after,
            "from_step": shift.step,
            "step": self.context.step,
        }
        times = factor(shift.after / shift.before)
        title = f"Steps take {times} as long since step {shift.step}: {duration(shift.after)}, as if planned"
        message = f"They took {duration(shift.before)} before and are as steady as they were."
        self.report(title, message, evidence=evidence)
