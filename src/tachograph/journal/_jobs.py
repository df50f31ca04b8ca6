"""Find, from any other rank, the run that rank 0 of a distributed job records."""

from __future__ import annotations

import os
import re

from tachograph._base.guard import suppress
from tachograph.journal._ends import TAIL_BYTES, read_ends
from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import RunState, read_heartbeat
from tachograph.records import finite_or_none

__all__ = ["find_job"]

_MAX_FOLDERS = 200


def find_job(log_dir: str, job: str, since_s: float, name: str | None = None) -> RunFolder | None:
    """Return the run that rank 0 of a job records, or None if there is none yet.

    Args:
        log_dir: the folder that contains the runs.
        job: the id of the job, from `tachograph._base.ranks.job_id`.
        since_s: a run that has ended is accepted if its end or its last heartbeat is not older than this wall time.
        name: the requested run name, to which rank 0 may have appended a number; None accepts any name.
    """
    if not job:
        return None
    heartbeats: list[tuple[float, str]] = []
    with suppress(OSError), os.scandir(log_dir) as entries:
        for entry in entries:
            folder = RunFolder(entry.path)
            with suppress(OSError):
                heartbeats.append((folder.heartbeat.stat().st_mtime, entry.path))
    # Newest first, and not too many: the folder may hold thousands of old runs.
    for _, path in sorted(heartbeats, reverse=True)[:_MAX_FOLDERS]:
        folder = RunFolder(path)
        heartbeat = read_heartbeat(folder.heartbeat)
        if heartbeat is None or heartbeat.job != job:
            continue
        if name is not None and not re.fullmatch(rf"{re.escape(name)}(-\d+)?", folder.name):
            continue
        # Skip ended runs of the same job, or of an earlier job with the same id.
        if heartbeat.time >= since_s:
            return folder
        ends = read_ends(folder, TAIL_BYTES, heartbeat)
        # Rank 0 writes its last heartbeat some time after its `end` record.
        ended_at = finite_or_none(ends.end.get("time")) if ends.end else None
        if ends.state(heartbeat) is RunState.RUNNING or (ended_at is not None and ended_at >= since_s):
            return folder
    return None
