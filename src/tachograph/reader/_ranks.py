"""The ranks of a distributed run: state, progress and errors of each."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import msgspec

from tachograph._base.guard import suppress
from tachograph.journal import (
    Heartbeat,
    JournalFollower,
    ProcessIdentity,
    RankHeartbeats,
    RunFolder,
    RunState,
    infer_writer_state,
    list_rank_journals,
    read_heartbeat,
    state_at_end,
    this_process,
    writer_of,
)
from tachograph.reader._rank_lines import decode_lines, decode_many, read_lines_of_rank_0, read_rank_lines
from tachograph.records import RANK_MESH, finite_or_none, window_times

__all__ = [
    "RankTotals",
    "RankView",
    "mesh_of_line",
    "read_rank_samples",
    "read_ranks",
    "summarise_ranks",
    "worst_ranks",
]

_SAMPLES_BYTES = 1 << 20
_NUM_RANKS_AT_ONCE = 500
"""Ranks whose records are in memory at the same time."""


class RankView(msgspec.Struct, kw_only=True, gc=False):
    """State, progress and errors of one rank in its last attempt."""

    rank: int
    state: RunState
    host: str | None = None
    local_rank: int | None = None
    """Its number on its host."""
    mesh: dict[str, int] = {}
    """Its position in the mesh of the job, such as ``{"data": 3, "pipeline": 1}``."""
    pid: int | None = None
    num_iterations: int | None = None
    """Iterations completed in total."""
    mean_iteration_s: float | None = None
    """How long an iteration takes in its last window."""
    own_s: float | None = None
    """How much of that is its own work, free of waiting for other ranks."""
    wait_s: float | None = None
    """The rest, in which it may have waited for other ranks."""
    score: float | None = None
    """The usual own time of the ranks with the same pipeline stage divided by the own time of this rank: 1 is typical,
    0.8 is a quarter slower.
    """
    phase: str | None = None
    """What it is doing, while it runs."""
    phase_since: float | None = None
    """Since when, as a wall time."""
    collective: str | None = None
    """The function of `torch.distributed` that it is in."""
    location: str | None = None
    """The innermost line of the program itself."""
    last_time: float | None = None
    num_errors: int = 0
    error: str | None = None
    """The last error."""
    reason: str | None = None
    """Why the rank ended, if it was recorded."""


class RankTotals(msgspec.Struct, kw_only=True):
    """The ranks of a run in a few numbers."""

    num_ranks: int
    num_dead: int
    """Ranks that failed or crashed."""
    cost_share: float | None = None
    """The share of an iteration in which the typical rank waits for the slowest one, in their last windows."""
    is_final: bool = True
    """Whether all ranks have ended; the state of others may change although no file does."""


def summarise_ranks(ranks: list[RankView]) -> RankTotals | None:
    """Return the totals of the ranks of a run; None for a run of one process."""
    if not ranks:
        return None
    own_s = [view.own_s for view in ranks if view.own_s]
    iteration_s = [view.mean_iteration_s for view in ranks if view.own_s and view.mean_iteration_s]
    cost_share = None
    if len(own_s) > 1:
        lost_s = max(own_s) - statistics.median(own_s)
        cost_share = round(min(1.0, lost_s / statistics.median(iteration_s)), 6)
    return RankTotals(
        num_ranks=len(ranks),
        num_dead=sum(view.state.is_failure for view in ranks),
        cost_share=cost_share,
        is_final=not any(view.state in {RunState.RUNNING, RunState.STALE} for view in ranks),
    )


def read_ranks(folder: RunFolder) -> list[RankView]:
    """Return the ranks of a run, rank 0 first; empty for a run of one process."""
    journals = list_rank_journals(folder)
    if not journals:
        return []
    caller = this_process()
    views: dict[int, RankView] = {}
    with suppress(OSError):
        records = _in_order(decode_lines(read_lines_of_rank_0(folder.journal).select()))
        views[0] = _view(0, records, lambda: read_heartbeat(folder.heartbeat), caller)
    lines_by_rank = read_rank_lines(journals)
    heartbeats = _LazyHeartbeats(folder)
    ranks = list(lines_by_rank)
    for first in range(0, len(ranks), _NUM_RANKS_AT_ONCE):
        some_ranks = ranks[first : first + _NUM_RANKS_AT_ONCE]
        decoded = decode_many([lines_by_rank[rank].select() for rank in some_ranks])
        for rank, records in zip(some_ranks, decoded, strict=True):
            views[rank] = _view(rank, _in_order(records), functools.partial(heartbeats.get, rank, some_ranks), caller)
    in_order = [views[rank] for rank in sorted(views)]
    _add_scores(in_order)
    return in_order


class _LazyHeartbeats:
    """The heartbeats of the other ranks; nothing is read if all ranks have ended."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._heartbeats: RankHeartbeats | None = None
        self._ranks: list[int] = []
        self._by_rank: dict[int, Heartbeat] = {}

    def get(self, rank: int, ranks: list[int]) -> Heartbeat | None:
        """Return the last heartbeat of a rank, or None if it is missing or invalid.

        Args:
            rank: the rank.
            ranks: the ranks whose heartbeats are read together, this one among them.
        """
        if self._heartbeats is None:
            self._heartbeats = RankHeartbeats(self._folder)
        if self._ranks is not ranks:
            self._ranks, self._by_rank = ranks, self._heartbeats.get_all(ranks)
        return self._by_rank.get(rank)


def worst_ranks(ranks: list[RankView]) -> list[RankView]:
    """Return the ranks in order: failed ones first, then silent ones, then the slowest."""
    return sorted(
        ranks, key=lambda view: (not view.state.is_failure, view.state is not RunState.STALE, view.score or 1.0)
    )


def read_rank_samples(folder: RunFolder) -> dict[int, list[dict[str, Any]]]:
    """Return the last `system` records of each rank other than 0; only the end of each journal is read."""
    samples: dict[int, list[dict[str, Any]]] = {}
    for journal in list_rank_journals(folder):
        with suppress(OSError):
            follower = JournalFollower.from_end(journal.path, _SAMPLES_BYTES)
            if not journal.is_host:
                samples.setdefault(journal.number, [])
            while lines := follower.poll_lines():
                system_lines = b"\n".join(line for line in lines.split(b"\n") if b'"system"' in line)
                for record in follower.parse(system_lines, follower.offset - len(lines)):
                    rank = record.get("from_rank") if journal.is_host else journal.number
                    if record["event"] == "system" and type(rank) is int:
                        samples.setdefault(rank, []).append(record)
    return samples


def _view(
    rank: int,
    records: list[dict[str, Any]],
    read_last_heartbeat: Callable[[], Heartbeat | None],
    caller: ProcessIdentity,
) -> RankView:
    """Return the view of a rank, from records of its journal and its heartbeat.

    Args:
        rank: the rank.
        records: its `start` record, its last records and its last windows.
        read_last_heartbeat: returns the heartbeat; called if the rank has not ended.
        caller: the calling process.
    """
    start: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    view = RankView(rank=rank, state=RunState.STALE)
    for record in records:
        kind = record["event"]
        view.last_time = finite_or_none(record.get("time")) or view.last_time
        if kind == "start":
            process = record.get("process")
            is_same = process is not None and start.get("process") == process  # it continues in another file
            start, end = record, None
            view.num_errors, view.error = (view.num_errors, view.error) if is_same else (0, None)
            local_rank = record.get("local_rank")
            view.local_rank, view.mesh = local_rank if type(local_rank) is int else None, _mesh_of(record)
        elif kind == "end":
            end = record
        elif kind == "error":
            view.num_errors += 1
            view.error = f"{record.get('error_type')}: {record.get('error_message')}"
        elif kind == "rank":
            _add_window(view, record)
        elif kind == "event" and record.get("name") == RANK_MESH:
            view.mesh = _mesh_of(record)
        elif kind == "event" and record.get("name") == "training_metrics_update":  # earlier versions wrote no windows
            latest = record.get("current_iteration")
            view.num_iterations = latest + 1 if isinstance(latest, int) else None
            view.mean_iteration_s = finite_or_none(record.get("window_iteration_sec_mean"))
    heartbeat = read_last_heartbeat() if end is None or not start else None
    process = writer_of(start, heartbeat)
    if process is not None:
        view.host, view.pid = process.host, process.pid
    if end is not None:
        view.state, view.reason = state_at_end(end), str(end["reason"]) if end.get("reason") else None
        return view
    view.state = infer_writer_state(process, heartbeat, caller)
    if heartbeat is not None and heartbeat.process == process:
        if heartbeat.iteration is not None:
            view.num_iterations = max(view.num_iterations or 0, heartbeat.iteration)
        if view.state in {RunState.RUNNING, RunState.STALE} and heartbeat.phase_since:
            view.phase, view.phase_since = heartbeat.phase or None, heartbeat.phase_since
            view.collective, view.location = heartbeat.collective or None, heartbeat.location or None
    return view


def _in_order(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if sum(record["event"] == "start" for record in records) > 1:  # perhaps from several files
        records.sort(key=lambda record: finite_or_none(record.get("time")) or 0.0)
    return records


def mesh_of_line(line: bytes) -> dict[str, int]:
    """Return the position in the mesh that a line of a rank states; empty without one."""
    return _mesh_of(next(iter(decode_lines([line])), {}))


def _mesh_of(record: dict[str, Any]) -> dict[str, int]:
    mesh = record.get("mesh")
    return {name: value for name, value in mesh.items() if type(value) is int} if isinstance(mesh, dict) else {}


def _add_window(view: RankView, record: dict[str, Any]) -> None:
    times = window_times(record)
    if times is None:
        return
    view.num_iterations = times.last_iteration + 1
    if times.wait_s is None:  # such as the few iterations after the last whole window
        view.mean_iteration_s = times.own_s
        return
    view.own_s, view.wait_s = times.own_s, times.wait_s
    view.mean_iteration_s = view.own_s + view.wait_s


def _add_scores(views: list[RankView]) -> None:
    """Compare the own time of each rank with the median of the ranks with the same pipeline stage."""
    by_stage: dict[int | None, list[RankView]] = {}
    for view in views:
        if view.own_s:
            by_stage.setdefault(view.mesh.get("pipeline"), []).append(view)
    for cohort in by_stage.values():
        reference_s = statistics.median(view.own_s or 0.0 for view in cohort)
        for view in cohort if len(cohort) > 1 else ():
            view.score = reference_s / (view.own_s or reference_s)
