"""The step time changed within one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._shift import Shift, ShiftDetector
from tachograph.diagnostics._signal_stats import BlockBatch, SignalStats
from tachograph.diagnostics._text import duration, factor
from tachograph.records import BASELINE_SPEED, finite_or_none

__all__ = ["StepTimeChange"]

_WAIT_FACTOR = 3.0
"""How long to wait for the next change of a schedule, in steps up to the first one."""
_SAME_STEP_SHARE = 0.05
_SAME_FACTOR = 1.25


class StepTimeChange(Rule):
    """Steps take much longer from one step to the next, are as steady as before, and no record says why.

    A schedule of the batch size, the sequence length or the attention window looks like this, and so does a GPU at half
    its clock. So the alert is an *info* at first. It stays one if there is evidence of a plan: the learning rate
    changed at the same step, the step time climbs like stairs, or it changed as much at the same step of an earlier run
    with the same `perf_tag`. It becomes a warning if no further change follows
    for three times as many steps as there were before it. If the batch size or sequence length is recorded and changes
    too, nothing is reported; if it is recorded and stays the same, `throughput_regression` reports the change.
    """

    name = "step_time_change"
    severity = "info"
    meaning = (
        "Either each step does more work now (larger batches, longer sequences, unfrozen layers), or something slows "
        "down every step equally, such as a lower GPU clock."
    )
    advice = (
        "If nothing was planned for that step, compare clocks, power and the phases of a step before and after.",
        "To avoid this alert, record batch_size, sequence_length or num_tokens_per_step.",
    )
    block_signals = ("step_s",)
    record_kinds = ("event",)

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
        self._last: Shift | None = None
        self._lr_changed_at: int | None = None
        self._undecided: Shift | None = None  # the change that may still turn out to be the first of several
        self._block_steps = 1  # how many steps a change may be off
        self._earlier_changes: list[tuple[float, float]] = []  # step and factor, in earlier runs

    def on_record(self, record: dict[str, Any]) -> None:
        """Take the changes of earlier runs."""
        if record.get("name") == BASELINE_SPEED:
            changes = record.get("step_time_changes")
            pairs = [
                (finite_or_none(change.get("step")), finite_or_none(change.get("factor")))
                for change in (changes if isinstance(changes, list) else ())
                if isinstance(change, dict)
            ]
            self._earlier_changes = [(step, times) for step, times in pairs if step is not None and times]

    def on_change(self, change: str) -> None:
        """Start over when the batch size changes; remember changes of the learning rate."""
        if change == "batch":
            self._detector.clear()
            self._last = self._undecided = None
        elif change == "lr":
            self._lr_changed_at = self.context.step

    def on_block(self, stats: SignalStats) -> None:
        """Check for a clean shift."""
        shift = self._detector.add_block(stats, self.context)
        if self._undecided is not None:
            self._decide(stats, self._undecided)
        elif self.is_open():
            self._num_blocks += 1
            if self._num_blocks >= self.thresholds.blocks_to_resolve:
                self.resolve("the new step time is stable")
        if (
            shift is None
            or not shift.is_clean
            or shift.after < self.thresholds.least_step_s
            or self.context.is_work_recorded
        ):
            return
        if shift.step is not None and self.context.step is not None:
            self._block_steps = max(1, (self.context.step - shift.step) // 4)  # four blocks have passed since
        plan = self._find_plan(shift)
        self._last = shift
        self._undecided = None if plan else shift
        self._report(stats, shift, f"It seems planned: {plan}." if plan else "No recorded change explains it.", plan)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Skip blocks in which the detector finds nothing."""
        if self._undecided is not None or self.is_open():
            return None
        return self._detector.preview_blocks(batch)

    def _decide(self, stats: SignalStats, shift: Shift) -> None:
        """Check whether the first change of a schedule would have been followed by another one."""
        level, step = stats.level or 0.0, self.context.step
        if level < shift.before + 0.25 * (shift.after - shift.before):
            self._undecided = None
            self.resolve(f"steps take {duration(level)} again")
        elif shift.step is None or step is None or step - shift.step > _WAIT_FACTOR * shift.step:
            self._undecided = None
            plan = self._find_earlier_change(shift)  # earlier runs may have been read after the change
            if plan is not None:
                self._report(stats, shift, f"It seems planned: {plan}.", plan)
                return
            self._report(stats, shift, "No recorded change explains it, and no further one followed.", None, "warning")

    def _report(self, stats: SignalStats, shift: Shift, reason: str, plan: str | None, severity: str = "info") -> None:
        self._num_blocks = 0
        evidence = {
            "metric": stats.metric,
            "before_s": shift.before,
            "after_s": shift.after,
            "from_step": shift.step,
            "step": self.context.step,
            "plan": plan,
            "expected": [None, shift.before * (1 + self.thresholds.rise)],
        }
        times = factor(shift.after / shift.before)
        title = f"Steps take {times} as long since step {shift.step}: {duration(shift.after)}"
        message = f"They took {duration(shift.before)} before and are as steady as they were. {reason}"
        self.report(title, message, severity=severity, evidence=evidence)

    def _find_plan(self, shift: Shift) -> str | None:
        """Return the evidence that a change was planned, if there is any."""
        step, changed_at, last = shift.step, self._lr_changed_at, self._last
        if step is None:
            return None
        if changed_at is not None and abs(changed_at - step) <= 2 * self._block_steps:
            return "the learning rate changed at that step"
        if plan := self._find_earlier_change(shift):
            return plan
        if last is None or last.step is None or not 0.9 <= shift.before / last.after <= 1.1:
            return None
        if abs(step - 2 * last.step) <= 0.1 * last.step:
            return "the step time rose after as many steps before"
        return "the step time has risen like this before"

    def _find_earlier_change(self, shift: Shift) -> str | None:
        """Return the evidence that an earlier run changed in the same way, if there is any."""
        if shift.step is None:
            return None
        tolerance = max(_SAME_STEP_SHARE * shift.step, 2 * self._block_steps)
        for step, times in self._earlier_changes:
            ratio = shift.after / shift.before / times
            if abs(step - shift.step) <= tolerance and 1 / _SAME_FACTOR <= ratio <= _SAME_FACTOR:
                return "an earlier run with the same perf_tag changed at that step, too"
        return None
