"""The ranks of a distributed run: state, progress and errors of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tachograph._base.guard import suppress
from tachograph.journal import (
    JournalFollower,
    RunFolder,
    RunState,
    infer_state,
    read_heartbeat,
    read_records,
    state_at_end,
)
from tachograph.records import finite_or_none

__all__ = ["RankView", "read_rank_samples", "read_ranks"]

_SAMPLES_BYTES = 1 << 20


class RankView(msgspec.Struct, kw_only=True):
    """State, progress and errors of one rank in its last attempt."""

    rank: int
    state: RunState
    host: str | None = None
    pid: int | None = None
    num_iterations: int | None = None
    """Iterations completed in total."""
    mean_iteration_s: float | None = None
    """Mean duration of an iteration in its last window."""
    last_time: float | None = None
    num_errors: int = 0
    error: str | None = None
    """The last error."""
    reason: str | None = None
    """Why the rank ended, if it was recorded."""


def read_ranks(folder: RunFolder) -> list[RankView]:
    """Return the ranks of a run, rank 0 first; empty for a run of one process."""
    ranks = folder.other_ranks()
    if not ranks:
        return []
    views = [_view(0, read_records(folder.journal), folder)]
    for rank in ranks:
        with suppress(OSError):
            views.append(_view(rank, read_records(folder.rank_journal(rank)), folder))
    return views


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


def _view(rank: int, records: Iterable[dict[str, Any]], folder: RunFolder) -> RankView:
    start: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    view = RankView(rank=rank, state=RunState.STALE)
    for record in records:
        kind = record["event"]
        view.last_time = finite_or_none(record.get("time")) or view.last_time
        if kind == "start":
            start, end, view.num_errors, view.error = record, None, 0, None
        elif kind == "end":
            end = record
        elif kind == "error":
            view.num_errors += 1
            view.error = f"{record.get('error_type')}: {record.get('error_message')}"
        elif kind == "event" and record.get("name") == "training_metrics_update":
            latest = record.get("current_iteration")
            view.num_iterations = latest + 1 if isinstance(latest, int) else None
            view.mean_iteration_s = finite_or_none(record.get("window_iteration_sec_mean"))
    process = start.get("process")
    if isinstance(process, dict):
        view.host, view.pid = process.get("host"), process.get("pid")
    if end is not None:
        view.state, view.reason = state_at_end(end), end.get("reason")
    else:
        heartbeat = folder.heartbeat if rank == 0 else folder.rank_heartbeat(rank)
        view.state = infer_state(start, read_heartbeat(heartbeat))
    return view
