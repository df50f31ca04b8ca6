"""The run stands still."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import duration

__all__ = ["Hang"]


class Hang(Rule):
    """Nothing has been recorded by the training code for several times the longest pause it made so far.

    Any record of the training code counts as progress: steps, spans, validations, checkpoints. Before the first step
    more time is allowed, for loading and compiling. When it opens, the Python stacks of all threads are written into
    the run folder, named in the evidence. A loop that is stuck in native code without giving up the interpreter lock
    stops telemetry too, and can only be seen from outside, by the age of the heartbeat.
    """

    name = "hang"
    severity = "critical"
    meaning = (
        "A collective operation waits for a rank that died or took another branch, a data worker is stuck, storage "
        "does not answer, or there is a deadlock between threads or forked workers."
    )
    advice = (
        "Read the stacks in the file named here: the innermost frame of the main thread is where it waits.",
        "On several ranks, look at the others with py-spy dump: the one that is elsewhere is the culprit.",
        "Set TORCH_NCCL_TRACE_BUFFER_SIZE and a timeout for collectives; give data workers a timeout.",
    )

    class Thresholds(RuleSettings):
        """When it fires."""

        times_longest: Annotated[float, Meta(description="Times the longest pause so far.", gt=1)] = 5.0
        least_s: Annotated[float, Meta(description="Seconds below which no pause is a hang.", gt=0)] = 600.0
        first_step_s: Annotated[float, Meta(description="Seconds allowed before the first step.", gt=0)] = 1800.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._seen = -1
        self._since_s: float | None = None
        self._longest_s = 0.0

    def on_tick(self, time_s: float) -> None:
        """Compare how long nothing has come with the longest pause."""
        progress = self.now.num_seen
        if progress != self._seen or self._since_s is None or time_s < self._since_s:
            if self._since_s is not None and time_s > self._since_s:
                paused_s = time_s - self._since_s
                self.over(f"it goes on after {duration(paused_s)}")
                self._longest_s = max(self._longest_s, paused_s)
            self._seen, self._since_s = progress, time_s
            return
        limits, waited_s = self.thresholds, time_s - self._since_s
        limit_s = max(limits.least_s, limits.times_longest * self._longest_s)
        if self.now.step is None:
            limit_s = max(limit_s, limits.first_step_s)
        if waited_s > limit_s and not self.is_open():
            where = f"since step {self.now.step}" if self.now.step is not None else "since the start"
            evidence = {
                "waited_s": waited_s,
                "longest_pause_s": self._longest_s,
                "limit_s": limit_s,
                "step": self.now.step,
            }
            self.found(f"Nothing has happened for {duration(waited_s)}, {where}", evidence=evidence)
