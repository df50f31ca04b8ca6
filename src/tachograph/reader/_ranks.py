"""The ranks of a distributed run: state, progress and errors of each."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.guard import suppress
from tachograph.journal import (
    JournalFollower,
    RunFolder,
    RunState,
    infer_state,
    read_heartbeat,
    state_at_end,
    writer_of,
)
from tachograph.records import RANK_MESH, RankWindow, finite_or_none

__all__ = ["RankTotals", "RankView", "read_rank_samples", "read_ranks", "summarise_ranks", "worst_ranks"]

_SAMPLES_BYTES = 1 << 20
_VIEW_BYTES = 256 << 10


class RankView(msgspec.Struct, kw_only=True):
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
    """The usual own time of all ranks divided by the one of this rank: 1 is typical, 0.8 is a quarter slower."""
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
    ranks = folder.other_ranks()
    if not ranks:
        return []
    views = [_view(0, folder.journal, folder.heartbeat)]
    for rank in ranks:
        with suppress(OSError):
            views.append(_view(rank, folder.rank_journal(rank), folder.rank_heartbeat(rank)))
    _add_scores(views)
    return views


def worst_ranks(ranks: list[RankView]) -> list[RankView]:
    """Return the ranks in order: failed ones first, then silent ones, then the slowest."""
    return sorted(
        ranks, key=lambda view: (not view.state.is_failure, view.state is not RunState.STALE, view.score or 1.0)
    )


def read_rank_samples(folder: RunFolder) -> dict[int, list[dict[str, Any]]]:
    """Return the last `system` records of each rank other than 0; only the end of each journal is read."""
    samples: dict[int, list[dict[str, Any]]] = {}
    for rank in folder.other_ranks():
        with suppress(OSError):
            follower = JournalFollower.from_end(folder.rank_journal(rank), _SAMPLES_BYTES)
            samples[rank] = []
            while lines := follower.poll_lines():
                system_lines = b"\n".join(line for line in lines.split(b"\n") if b'"system"' in line)
                records = follower.parse(system_lines, follower.offset - len(lines))
                samples[rank] += [record for record in records if record["event"] == "system"]
    return samples


def _view(rank: int, journal: Path, heartbeat_path: Path) -> RankView:
    """Return the view of a rank, from the end of its journal and its heartbeat."""
    heartbeat = read_heartbeat(heartbeat_path)
    start: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    view = RankView(rank=rank, state=RunState.STALE)
    for record in JournalFollower.from_end(journal, _VIEW_BYTES).poll():
        kind = record["event"]
        view.last_time = finite_or_none(record.get("time")) or view.last_time
        if kind == "start":
            start, end, view.num_errors, view.error = record, None, 0, None
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
    process = writer_of(start, heartbeat)
    if process is not None:
        view.host, view.pid = process.host, process.pid
    if end is not None:
        view.state, view.reason = state_at_end(end), end.get("reason")
        return view
    view.state = infer_state(start or None, heartbeat)
    if heartbeat is not None and heartbeat.process == process:
        if heartbeat.iteration is not None:
            view.num_iterations = max(view.num_iterations or 0, heartbeat.iteration)
        if view.state in {RunState.RUNNING, RunState.STALE} and heartbeat.phase_since:
            view.phase, view.phase_since = heartbeat.phase or None, heartbeat.phase_since
            view.collective, view.location = heartbeat.collective or None, heartbeat.location or None
    return view


def _mesh_of(record: dict[str, Any]) -> dict[str, int]:
    mesh = record.get("mesh")
    return {name: value for name, value in mesh.items() if type(value) is int} if isinstance(mesh, dict) else {}


def _add_window(view: RankView, record: dict[str, Any]) -> None:
    window = RankWindow.from_record(record)
    if window is None:
        return
    view.num_iterations = window.last_iteration + 1
    if window.wait is None:  # such as the few iterations after the last whole window
        view.mean_iteration_s = window.own.median_s
        return
    view.own_s, view.wait_s = window.own.median_s, window.wait.median_s
    view.mean_iteration_s = view.own_s + view.wait_s


def _add_scores(views: list[RankView]) -> None:
    """Compare the own time of each rank with the median of all."""
    own_s = sorted(view.own_s for view in views if view.own_s)
    if len(own_s) < 2:
        return
    reference_s = statistics.median(own_s)
    for view in views:
        if view.own_s:
            view.score = reference_s / view.own_s
