"""The run hangs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import duration

__all__ = ["Hang"]


class Hang(Rule):
    """The training code has recorded nothing for several times its longest pause so far.

    Every record of the training code counts as progress: steps, spans, validations, checkpoints. Before the first step
    more time is allowed, for loading and compiling. When the alert opens, the Python stacks of all threads are written
    to a file in the run folder; the evidence names it. A loop that is stuck in native code and holds the interpreter
    lock also stops telemetry. Only the age of the heartbeat shows that, from outside.
    """

    name = "hang"
    severity = "critical"
    meaning = (
        "A collective operation waits for a rank that died or took another branch, a data worker is stuck, storage "
        "does not respond, or threads or forked workers are deadlocked."
    )
    advice = (
        "Read the stacks in the file that the alert names: the innermost frame of the main thread is where it waits.",
        "With several ranks, run py-spy dump on the others: the rank that waits elsewhere is the cause.",
        "Set TORCH_NCCL_TRACE_BUFFER_SIZE and a timeout for collectives; set a timeout for data workers.",
    )

    class Thresholds(RuleSettings):
        """When the rule fires."""

        times_longest: Annotated[float, Meta(description="Minimum multiple of the longest pause so far.", gt=1)] = 5.0
        least_s: Annotated[float, Meta(description="Seconds below which no pause is a hang.", gt=0)] = 600.0
        first_step_s: Annotated[float, Meta(description="Seconds allowed before the first step.", gt=0)] = 1800.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all pauses."""
        self._num_progress = -1
        self._since_s: float | None = None
        self._longest_s = 0.0

    def on_tick(self, time_s: float) -> None:
        """Compare the current pause with the longest one."""
        num_progress = self.context.num_progress
        # A clock that was set back restarts the measurement.
        if num_progress != self._num_progress or self._since_s is None or time_s < self._since_s:
            if self._since_s is not None and time_s > self._since_s:
                paused_s = time_s - self._since_s
                self.resolve(f"the run continued after {duration(paused_s)}")
                self._longest_s = max(self._longest_s, paused_s)
            self._num_progress, self._since_s = num_progress, time_s
            return
        limits, waited_s = self.thresholds, time_s - self._since_s
        limit_s = max(limits.least_s, limits.times_longest * self._longest_s)
        if self.context.step is None:
            limit_s = max(limit_s, limits.first_step_s)
        if waited_s > limit_s and not self.is_open():
            since = f"since step {self.context.step}" if self.context.step is not None else "since the start"
            evidence = {
                "waited_s": waited_s,
                "longest_pause_s": self._longest_s,
                "limit_s": limit_s,
                "step": self.context.step,
            }
            self.report(f"No progress for {duration(waited_s)}, {since}", evidence=evidence)
