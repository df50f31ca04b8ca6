"""The ranks of a distributed run: finding the run of a job, and what each rank recorded of itself."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from tachograph.journal._folder import RunFolder
from tachograph.journal._follower import read_records
from tachograph.journal._liveness import RunState, judge, read_heartbeat, state_at_end
from tachograph.reader._overview import overview
from tachograph.records import finite

__all__ = ["RankView", "find_job", "read_ranks"]

_MOST_FOLDERS = 200


class RankView(msgspec.Struct, kw_only=True):
    """What one rank recorded of itself in its last attempt."""

    rank: int
    state: RunState
    host: str | None = None
    pid: int | None = None
    num_iterations: int | None = None
    """Iterations it completed in all."""
    mean_iteration_s: float | None = None
    """Mean time of an iteration in its last window."""
    last_time: float | None = None
    num_errors: int = 0
    error: str | None = None
    """The last of them."""
    reason: str | None = None
    """Why it ended, if it said so."""


def find_job(log_dir: str, job: str, since_s: float, name: str | None = None) -> RunFolder | None:
    """Return the run that rank 0 of a job is recording, or None as long as there is none.

    Args:
        log_dir: the folder that holds the runs.
        job: what `tachograph._base.ranks.job_id` returns in all processes of the job.
        since_s: wall time since when a sign of life of rank 0 counts even if its run has ended by now.
        name: what the run was asked to be called, to which rank 0 may have added a number; None: anything.
    """
    if not job:
        return None
    found: list[tuple[float, str]] = []
    with contextlib.suppress(OSError), os.scandir(log_dir) as entries:
        for entry in entries:
            folder = RunFolder(entry.path)
            with contextlib.suppress(OSError):
                found.append((folder.heartbeat.stat().st_mtime, entry.path))
    for _, path in sorted(found, reverse=True)[:_MOST_FOLDERS]:
        folder = RunFolder(path)
        heartbeat = read_heartbeat(folder.heartbeat)
        if heartbeat is None or heartbeat.job != job:
            continue
        if name is not None and not re.fullmatch(rf"{re.escape(name)}(-\d+)?", folder.name):
            continue
        # An earlier run of the job, or an earlier job that was called the same, has ended.
        if heartbeat.time >= since_s or overview(folder).state is RunState.RUNNING:
            return folder
    return None


def read_ranks(folder: RunFolder) -> list[RankView]:
    """Return what the ranks of a run recorded, rank 0 first; empty for a run of one process."""
    ranks = []
    with contextlib.suppress(OSError):
        ranks = sorted(int(path.stem) for path in folder.ranks.iterdir() if re.fullmatch(r"\d{5,9}\.jsonl", path.name))
    if not ranks:
        return []
    views = [_view(0, read_records(folder.journal), folder)]
    for rank in ranks:
        with contextlib.suppress(OSError):
            views.append(_view(rank, read_records(folder.rank_journal(rank)), folder))
    return views


def _view(rank: int, records: Iterable[dict[str, Any]], folder: RunFolder) -> RankView:
    start: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    view = RankView(rank=rank, state=RunState.STALE)
    for record in records:
        kind = record["event"]
        view.last_time = finite(record.get("time")) or view.last_time
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
            view.mean_iteration_s = finite(record.get("window_iteration_sec_mean"))
    process = start.get("process")
    if isinstance(process, dict):
        view.host, view.pid = process.get("host"), process.get("pid")
    if end is not None:
        view.state, view.reason = state_at_end(end), end.get("reason")
    else:
        heartbeat = folder.heartbeat if rank == 0 else folder.rank_heartbeat(rank)
        view.state = judge(start, read_heartbeat(heartbeat))
    return view
