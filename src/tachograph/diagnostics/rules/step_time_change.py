"""The step time changed at once, as if planned."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._shift import ShiftFinder
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import duration, factor

__all__ = ["StepTimeChange"]


class StepTimeChange(Rule):
    """Steps take much longer from one step to the next, and are as steady as before.

    That is how a schedule of the batch size, the sequence length or the attention window looks. It is told once, for
    information, and not as a regression; where the batch size is recorded and changes too, it is not told at all.
    """

    name = "step_time_change"
    severity = "info"
    meaning = (
        "Most likely a step does more work now: larger batches, longer sequences, unfrozen layers. If nothing was "
        "planned for that step, every step has become slower alike, as with a lower clock of the GPU."
    )
    advice = (
        "If it was planned, nothing. Record batch_size or num_tokens_per_step, and it is not told again.",
        "If not, compare clocks, power and the phases of a step before and after.",
    )
    hears = ("step_s",)

    class Thresholds(RuleSettings):
        """When it fires."""

        rise: Annotated[float, Meta(description="Share by which steps must take longer.", gt=0)] = 0.35
        blocks_to_resolve: Annotated[
            int, Meta(description="Blocks of 16 steps after which it counts as known.", ge=1)
        ] = 8

        least_step_s: Annotated[float, Meta(description="Seconds that a step must take to be worth a look.", ge=0)] = (
            0.001
        )

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._finder = ShiftFinder(self.thresholds.rise)
        self._num_blocks = 0

    def on_change(self, what: str) -> None:
        """Begin anew when the steps are others."""
        if what == "batch":
            self._finder.clear()

    def on_block(self, gauge: SignalStats) -> None:
        """Look for a clean shift."""
        shift = self._finder.take(gauge, self.now.step)
        if self.is_open():
            self._num_blocks += 1
            if self._num_blocks >= self.thresholds.blocks_to_resolve:
                self.over("it stayed as it is")
        if shift is None or not shift.is_clean or shift.after < self.thresholds.least_step_s:
            return
        self._num_blocks = 0
        evidence = {
            "metric": gauge.metric,
            "before_s": shift.before,
            "after_s": shift.after,
            "from_step": shift.step,
            "step": self.now.step,
        }
        times = factor(shift.after / shift.before)
        title = f"Steps take {times} as long since step {shift.step}: {duration(shift.after)}, as if planned"
        self.found(
            title, f"Before, they took {duration(shift.before)}; they are as steady as they were.", evidence=evidence
        )
