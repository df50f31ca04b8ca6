"""A rank has died or fallen silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rank_status import RankStatus, list_ranks
from tachograph.diagnostics._rule import Rule, RuleSettings

__all__ = ["RankGone"]


class RankGone(Rule):
    """A rank of the job has ended without a word, or sends no heartbeats any more, while other ranks still run.

    A process that is killed cannot record why. On the same machine its process is looked for; on another one, twenty
    seconds without a heartbeat count as silent. The ranks that died first are named, and what the others do.
    """

    name = "rank_gone"
    severity = "critical"
    meaning = (
        "The kernel or a scheduler killed the process, often because memory ran out; it crashed in native code; its "
        "machine is down; or it was stopped. The other ranks wait in their next collective, until that times out."
    )
    advice = (
        "Look for an out-of-memory kill on that machine: dmesg, the events of the scheduler, the memory of the run.",
        "Read the last lines that this rank printed; launchers such as torchrun print its exit code.",
        "Stop the job: the other ranks cannot continue without it.",
    )
    absorbs = ("rank_hang", "hang", "straggler")

    class Thresholds(RuleSettings):
        """When the rule fires."""

        missing_s: Annotated[
            float, Meta(description="Seconds for which a rank is missing; ranks do not end at the same moment.", ge=0)
        ] = 3.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget which ranks were missing."""
        self._first_missing: tuple[int, ...] = ()
        self._missing_since_s: float | None = None

    def on_rank_statuses(self, statuses: Sequence[RankStatus], time_s: float) -> None:
        """Compare the states of all ranks."""
        gone = [status for status in statuses if status.state == "gone"]
        silent = [status for status in statuses if status.state == "silent"]
        missing = gone or silent
        alive = [status for status in statuses if status.state == "running"]
        if not missing:
            self._missing_since_s = None
            if self._first_missing:
                self._first_missing = ()
                self.resolve("all ranks are back")
            return
        if not alive or self._first_missing:  # ranks that follow are victims of the first ones
            return
        if self._missing_since_s is None:
            self._missing_since_s = time_s
        if time_s - self._missing_since_s < self.thresholds.missing_s:
            return
        self._first_missing = tuple(status.rank for status in missing)
        num_waiting = sum(status.waits for status in alive)
        waiters = "the others" if num_waiting == len(alive) else f"{num_waiting} of {len(alive)} others"
        others = f"{waiters} wait for it" if num_waiting else f"{len(alive)} others still run"
        verb = (
            ("is gone" if len(missing) == 1 else "are gone")
            if gone
            else ("has fallen silent" if len(missing) == 1 else "have fallen silent")
        )
        name = list_ranks(missing)
        step = missing[0].iteration
        where = f" after iteration {step}" if step is not None else ""
        self.report(
            f"{name[0].upper()}{name[1:]} {verb}{where}: {others}",
            "Its process ended without recording an error: it was killed, or crashed in native code."
            if gone
            else "Its process sends no heartbeats: it was stopped, its interpreter is blocked, or its host is down.",
            evidence={
                "ranks": list(self._first_missing),
                "hosts": sorted({status.host for status in missing}),
                "iteration": step,
                "phase": missing[0].phase,
                "num_waiting": num_waiting,
            },
        )
