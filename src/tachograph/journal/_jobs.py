"""Finding the run that rank 0 of a distributed job records, from any other rank."""

from __future__ import annotations

import contextlib
import os
import re

from tachograph.journal._ends import current_state
from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import RunState, read_heartbeat

__all__ = ["find_job"]

_MOST_FOLDERS = 200


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
        if heartbeat.time >= since_s or current_state(folder) is RunState.RUNNING:
            return folder
    return None
