"""The activity of the other ranks of a job, read by rank 0 from their files in the run folder.

Ranks exchange nothing while they train: each one writes its journal and its heartbeat, and rank 0 reads them. Reading
takes about a fiftieth of the time, so a slow file system makes it rarer, up to a limit: a rank that is gone has to be
noticed in seconds. A single slow poll, such as one on a machine that was busy with something else, changes nothing.
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
    RankHeartbeats,
    RankJournal,
    RunFolder,
    RunState,
    infer_writer_state,
    list_rank_journals,
    state_at_end,
    this_process,
    writer_of,
)
from tachograph.recorder._activity import Activity

__all__ = ["RankMonitor", "RankReport", "explain_end", "is_consequence", "own_status"]

_INTERVAL_S = 2.0
_MAX_SHARE = 0.02
_MAX_INTERVAL_S = 15.0
_GRACE_S = 3.0
_MAX_UNREAD = 10_000
_MAX_RELAYED_AGE_S = 12.0
"""Heartbeats of other machines that came from the server longer ago say nothing: the connection may be broken."""
_MAX_RANK = 1 << 20
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
    """Sorts the records of one rank by its attempts."""

    def __init__(self) -> None:
        self._is_current = False
        self._process: ProcessIdentity | None = None
        self.unread: list[dict[str, Any]] = []
        """Records that were read from a file, in which the state of the rank was not known yet."""
        self.end: dict[str, Any] | None = None
        self.error = ""
        self.num_iterations: int | None = None
        """Completed iterations, from its last window."""

    def add(self, record: dict[str, Any]) -> None:
        """Add a record that was read from a file."""
        if is_rank_record(record):
            self.unread.append(record)
            del self.unread[: max(0, len(self.unread) - _MAX_UNREAD)]

    def poll(self, process: ProcessIdentity) -> list[dict[str, Any]]:
        """Return the new records that a process wrote, not records of earlier attempts."""
        unread, self.unread = self.unread, []
        records: list[dict[str, Any]] = []
        for record in unread:
            kind = record["event"]
            if kind == "start":
                writer = writer_of(record, None)
                self._is_current = writer == process
                if writer != self._process:  # else it continues in another file
                    self._process = writer
                    self.end, self.error, self.num_iterations = None, "", None
            if not self._is_current:
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
        self._followers: dict[str, JournalFollower] = {}
        self._gone_at: dict[ProcessIdentity, float] = {}
        self._first_read: dict[int, tuple[float, float]] = {}
        """By rank, the time in its last heartbeat, and when that heartbeat was first read."""
        self._folder: RunFolder | None = None
        self.has_relayed = False
        """Whether some ranks are on machines that share no folder with this one; the server relays their files."""
        self._last_took_s = 0.0
        self._next_poll_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to poll again."""
        return time.monotonic() >= self._next_poll_at

    def poll(self, folder: RunFolder, *, grace_s: float = _GRACE_S) -> RankReport:
        """Return the new records and the states of the other ranks that belong to this job.

        Args:
            folder: the run.
            grace_s: how long a process may be gone before its last records are written by the one that writes the file
                of its host.
        """
        started_at = time.monotonic()
        if folder.path != getattr(self._folder, "path", None):
            self._folder, self._readers, self._followers, self._first_read = folder, {}, {}, {}
        records: list[tuple[int, dict[str, Any]]] = []
        statuses: list[RankStatus] = []
        with suppress(OSError):
            heartbeats = RankHeartbeats(folder, max_relayed_age_s=_MAX_RELAYED_AGE_S)
            self.has_relayed = heartbeats.has_relayed
            journals = list_rank_journals(folder)
            # First the states: a process that ends after that has already written its last records.
            states: dict[int, tuple[Heartbeat, RunState]] = {}
            for rank, heartbeat in heartbeats.get_all(heartbeats.ranks).items():
                if heartbeat.job == self._job:  # else by another job in the same folder
                    state = infer_writer_state(heartbeat.process, heartbeat, self._caller)
                    if state is RunState.CRASHED and heartbeats.is_from_host(rank):
                        gone_at = self._gone_at.setdefault(heartbeat.process, started_at)
                        state = state if started_at - gone_at >= grace_s else RunState.RUNNING
                    states[rank] = heartbeat, state
            for journal in journals:
                if journal.is_host or journal.number in states:
                    self._read(journal)
            for rank, (heartbeat, state) in states.items():
                reader = self._readers.get(rank)
                if reader is not None:
                    records += [(rank, record) for record in reader.poll(heartbeat.process.at_home)]
                    last_heartbeat_s, first_read_at = self._first_read.get(rank, (None, started_at))
                    if last_heartbeat_s != heartbeat.time:
                        first_read_at = started_at
                        self._first_read[rank] = heartbeat.time, started_at
                    statuses.append(_status(rank, heartbeat, state, reader, started_at - first_read_at))
        ended_at = time.monotonic()
        took_s, last_took_s = ended_at - started_at, self._last_took_s
        self._last_took_s = took_s
        self._next_poll_at = ended_at + pause_s(took_s, last_took_s)
        return RankReport(records, statuses)

    def _read(self, journal: RankJournal) -> None:
        """Read the new records of a file."""
        follower = self._followers.get(journal.key)
        if follower is None:
            follower = self._followers[journal.key] = JournalFollower(journal.path)
        if not journal.is_host:
            self._readers.setdefault(journal.number, _RankReader())
        for record in follower.poll():
            rank = record.get("from_rank") if journal.is_host else journal.number
            if type(rank) is int and 0 < rank <= _MAX_RANK:
                self._readers.setdefault(rank, _RankReader()).add(record)


def pause_s(took_s: float, last_took_s: float) -> float:
    """Return the time until the next poll, given how long this one and the one before took."""
    return min(max(_INTERVAL_S, min(took_s, last_took_s) / _MAX_SHARE), _MAX_INTERVAL_S)


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


def _status(rank: int, heartbeat: Heartbeat, state: RunState, reader: _RankReader, age_s: float) -> RankStatus:
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
        age_s=age_s,
        error=reader.error,
    )


def explain_end(
    reason: str, last_error: str, statuses: list[RankStatus], iteration: int | None, world_size: int = 0
) -> tuple[str, RankStatus] | None:
    """Return why rank 0 ended, and the rank that ended first; None if rank 0 did so for reasons of its own.

    A launcher stops all ranks when one has died, and a rank whose connection is lost fails, too. A killed process
    leaves no record, so a rank that is gone is the cause.

    Args:
        reason: the reason in the `end` record of rank 0.
        last_error: the last error of rank 0; empty if it has none.
        statuses: the other ranks.
        iteration: the iterations that rank 0 has completed; no rank is more than one ahead of another.
        world_size: the number of ranks. Before the first iteration, one that has recorded nothing may have died.
    """
    if not is_consequence(reason, last_error):
        return None
    gone = [status for status in statuses if status.state == "gone"]
    failed = [status for status in statuses if status.error and not _COMMUNICATION_ERROR.search(status.error)]
    if not gone and not failed:
        recorded = {0, *(status.rank for status in statuses)}
        unrecorded = [RankStatus(rank=rank) for rank in range(world_size) if rank not in recorded]
        if iteration or not unrecorded or len(unrecorded) > len(recorded):
            return None  # it took part in an iteration, so it is not recorded; or nothing distinguishes it
        happened = f"{list_ranks(unrecorded)} ended before recording anything, or {_are(unrecorded)} not recorded"
        return f"{happened}; the other ranks ended (rank 0: {reason:.80})", unrecorded[0]
    first = (gone or failed)[0]
    counts = [count for count in (first.iteration, iteration) if count is not None]
    where = f" after iteration {max(counts)}" if counts else ""
    names = list_ranks(gone or failed[:1])
    if gone:
        happened = f"{names} {'were' if len(gone) > 1 else 'was'} killed or crashed{where}"
    else:
        happened = f"{names} failed{where}: {first.error:.200}"
    return f"{happened}; the other ranks ended because of it (rank 0: {reason:.80})", first


def is_consequence(reason: str, last_error: str) -> bool:
    """Return whether rank 0 may have ended because another rank did: it was stopped, or lost its connection."""
    is_error = bool(last_error) and last_error.startswith(reason)  # a reason is the class of the error
    text = last_error if is_error else reason
    return reason == "SIGTERM" or bool(_COMMUNICATION_ERROR.search(text))


def _are(statuses: list[RankStatus]) -> str:
    return "is" if len(statuses) == 1 else "are"
