"""The activity of the other ranks of a job, read by rank 0 from their files in the run folder.

Ranks exchange nothing while they train: each one writes its journal and its heartbeat, and rank 0 reads them. Reading
takes at most a fiftieth of the time, so a slow file system makes it rarer.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from tachograph._base.guard import suppress
from tachograph.diagnostics import RankStatus, is_rank_record, list_ranks
from tachograph.journal import (
    Heartbeat,
    JournalFollower,
    ProcessIdentity,
    RunFolder,
    RunState,
    infer_writer_state,
    read_heartbeat,
    state_at_end,
    this_process,
    writer_of,
)
from tachograph.recorder._activity import Activity

__all__ = ["RankMonitor", "RankReport", "explain_end", "own_status"]

_INTERVAL_S = 2.0
_MAX_SHARE = 0.02
_COMMUNICATION_ERROR = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|\bnccl|\bgloo\b|socket ?timeout|process ?group"
    r"|\b(TCP|Dist)Store|\bDist(Network|Backend|Store)?Error|\b(collective|barrier|rendezvous)\b.*timed? ?out",
    re.IGNORECASE,
)
"""Errors of a rank that lost its connection to another one."""


class RankReport(NamedTuple):
    """News from the other ranks."""

    records: list[tuple[int, dict[str, Any]]]
    """New records, each with its rank."""
    statuses: list[RankStatus]
    """What each rank was doing at its last heartbeat."""


class _RankReader:
    """Reads the journal of one rank."""

    def __init__(self, folder: RunFolder, rank: int) -> None:
        self._follower = JournalFollower(folder.rank_journal(rank))
        self._is_current = False
        self.end: dict[str, Any] | None = None
        self.error = ""
        self.num_iterations: int | None = None
        """Completed iterations, from its last window."""

    def poll(self, process: ProcessIdentity) -> list[dict[str, Any]]:
        """Return the new records that a process wrote, not records of earlier attempts."""
        records: list[dict[str, Any]] = []
        for record in self._follower.poll():
            kind = record["event"]
            if kind == "start":
                self._is_current = writer_of(record, None) == process
                self.end, self.error, self.num_iterations = None, "", None
            if not self._is_current or not is_rank_record(record):
                continue
            if kind == "end":
                self.end = record
            elif kind == "rank" and isinstance(record.get("last"), int):  # the rules parse the rest
                self.num_iterations = record["last"] + 1
            elif kind == "error":
                self.error = f"{record.get('error_type')}: {record.get('error_message')}"
            records.append(record)
        return records


class RankMonitor:
    """Reads the files of the other ranks. Used by the writer thread of rank 0 only.

    Args:
        job: the id of the job, which the heartbeats of its ranks contain.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._caller = this_process()
        self._readers: dict[int, _RankReader] = {}
        self._folder: RunFolder | None = None
        self._next_poll_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to poll again."""
        return time.monotonic() >= self._next_poll_at

    def poll(self, folder: RunFolder) -> RankReport:
        """Return the new records and the states of the other ranks that belong to this job."""
        started_at = time.monotonic()
        if folder.path != getattr(self._folder, "path", None):
            self._folder, self._readers = folder, {}
        records: list[tuple[int, dict[str, Any]]] = []
        statuses: list[RankStatus] = []
        with suppress(OSError):
            for rank in folder.other_ranks():
                heartbeat = read_heartbeat(folder.rank_heartbeat(rank))
                if heartbeat is None or heartbeat.job != self._job:
                    continue  # not written yet, or by another job in the same folder
                # First the state: a process that ends after that has already written its last records.
                state = infer_writer_state(heartbeat.process, heartbeat, self._caller)
                reader = self._readers.setdefault(rank, _RankReader(folder, rank))
                records += [(rank, record) for record in reader.poll(heartbeat.process)]
                statuses.append(_status(rank, heartbeat, state, reader))
        took_s = time.monotonic() - started_at
        self._next_poll_at = started_at + max(_INTERVAL_S, took_s / _MAX_SHARE)
        return RankReport(records, statuses)


def own_status(activity: Activity, now_s: float) -> RankStatus:
    """Return the status of rank 0 itself."""
    return RankStatus(
        rank=0,
        host=this_process().host,
        iteration=activity.iteration,
        phase=activity.phase,
        phase_s=max(0.0, now_s - activity.phase_since),
        collective=activity.collective,
        location=activity.location,
    )


def _status(rank: int, heartbeat: Heartbeat, state: RunState, reader: _RankReader) -> RankStatus:
    words = {RunState.CRASHED: "gone", RunState.STALE: "silent"}
    word = words.get(state, "running")
    counts = [count for count in (heartbeat.iteration, reader.num_iterations) if count is not None]
    if reader.end is not None:
        word = "failed" if state_at_end(reader.end).is_failure else "ended"
    return RankStatus(
        rank=rank,
        host=heartbeat.process.host,
        state=word,
        iteration=max(counts, default=None),
        phase=heartbeat.phase,
        phase_s=max(0.0, heartbeat.time - heartbeat.phase_since) if heartbeat.phase_since else 0.0,
        collective=heartbeat.collective,
        location=heartbeat.location,
        error=reader.error,
    )


def explain_end(
    reason: str, last_error: str, statuses: list[RankStatus], iteration: int | None
) -> tuple[str, RankStatus] | None:
    """Return why rank 0 ended, and the rank that ended first; None if rank 0 did so for reasons of its own.

    A launcher stops all ranks when one has died, and a rank whose connection is lost fails, too. A killed process
    leaves no record, so a rank that is gone is the cause.

    Args:
        reason: the reason in the `end` record of rank 0.
        last_error: the last error of rank 0; empty if it has none.
        statuses: the other ranks.
        iteration: the iterations that rank 0 has completed; no rank is more than one ahead of another.
    """
    is_error = bool(last_error) and last_error.startswith(reason)  # a reason is the class of the error
    text = last_error if is_error else reason
    is_consequence = reason == "SIGTERM" or bool(_COMMUNICATION_ERROR.search(text))
    if not is_consequence:
        return None
    gone = [status for status in statuses if status.state == "gone"]
    failed = [status for status in statuses if status.error and not _COMMUNICATION_ERROR.search(status.error)]
    if not gone and not failed:
        return None
    first = (gone or failed)[0]
    counts = [count for count in (first.iteration, iteration) if count is not None]
    where = f" after iteration {max(counts)}" if counts else ""
    names = list_ranks(gone or failed[:1])
    if gone:
        happened = f"{names} {'were' if len(gone) > 1 else 'was'} killed or crashed{where}"
    else:
        happened = f"{names} failed{where}: {first.error:.200}"
    return f"{happened}; the other ranks ended because of it (rank 0: {reason:.80})", first
