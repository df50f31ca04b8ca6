"""The folder of a large job, as its ranks write it, without the job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.ranks.jobs import SimulatedJob, slow_rank
from tachograph.journal import Heartbeat, HostHeartbeat, ProcessIdentity, RunFolder, mark_rank, uptime_s
from tachograph.records import encode

__all__ = ["write_job"]

_WINDOW_S = 10.0


def write_job(path: Path, num_ranks: int, num_windows: int, *, ranks_per_host: int = 8, is_running: bool = True) -> int:
    """Write the files of a job in which one rank is slow; return the bytes of its journals.

    Args:
        path: the folder of the run.
        num_ranks: the number of ranks.
        num_windows: windows of each rank.
        ranks_per_host: ranks that share a file; 1 for a file per rank.
        is_running: whether the job still runs, on other machines. Otherwise each rank has ended.
    """
    folder = RunFolder(path)
    folder.ranks.mkdir(parents=True)
    (folder.private / "ranks").mkdir(parents=True)
    processes = [_process(rank, ranks_per_host) for rank in range(num_ranks)]
    blocks = _blocks(processes, num_windows, ranks_per_host, is_running=is_running)
    for block in blocks:
        with folder.journal.open("ab") as file:
            file.write(block[0])
        for first in range(0, num_ranks, ranks_per_host):
            ranks = range(max(first, 1), min(first + ranks_per_host, num_ranks))
            if not ranks:
                continue
            if ranks_per_host == 1:
                journal, lines = folder.rank_journal(first), block[first]
            else:
                journal = folder.host_journal(first)
                lines = b"".join(mark_rank(block[rank], rank) for rank in ranks)
            with journal.open("ab") as file:
                file.write(lines)
    heartbeats = [_heartbeat(process, num_windows) for process in processes]
    folder.heartbeat.write_bytes(msgspec.json.encode(heartbeats[0]))
    for rank in range(num_ranks):
        (folder.private / "ranks" / f"{rank:05d}.stacks.txt").touch()
        if ranks_per_host == 1 and rank:
            folder.rank_heartbeat(rank).write_bytes(msgspec.json.encode(heartbeats[rank]))
        elif rank % ranks_per_host == 0 and ranks_per_host > 1:
            ranks = range(max(rank, 1), min(rank + ranks_per_host, num_ranks))
            host = HostHeartbeat({other: heartbeats[other] for other in ranks})
            folder.host_heartbeat(rank).write_bytes(msgspec.json.encode(host))
    return sum(journal.stat().st_size for journal in [folder.journal, *folder.ranks.iterdir()])


def _blocks(
    processes: list[ProcessIdentity], num_windows: int, ranks_per_host: int, *, is_running: bool
) -> Iterator[list[bytes]]:
    """Yield the lines of each rank: the first ones, those of each window, and the last ones."""
    num_ranks = len(processes)
    job = SimulatedJob(num_ranks, "normal 3 %", 1, hosts=max(1, num_ranks // ranks_per_host), fault=slow_rank(3, 0.3))
    first_s = time.time() - num_windows * _WINDOW_S
    yield [
        _line(
            {
                **start,
                "time": first_s,
                "local_rank": start["rank"] % ranks_per_host,
                "process": msgspec.to_builtins(process),
                "mesh": {"data": start["rank"]},
            }
        )
        for start, process in zip(job.starts(), processes, strict=True)
    ]
    for number in range(num_windows):
        now_s = first_s + (number + 1) * _WINDOW_S
        yield [_line(_rounded(record, now_s)) for record in job.window()]
    if not is_running:
        yield [_line({"event": "end", "time": time.time(), "status": "finished"})] * num_ranks


def _line(record: dict[str, Any]) -> bytes:
    return encode(record) + b"\n"


def _rounded(record: dict[str, Any], time_s: float) -> dict[str, Any]:
    """Return the record of a window as it is written: times have four significant digits."""
    times_ms = [float(f"{value:.4g}") for value in record["ms"]]
    longest_ms, iteration = record["max"]
    return {**record, "time": time_s, "ms": times_ms, "max": [float(f"{longest_ms:.4g}"), iteration]}


def _process(rank: int, ranks_per_host: int) -> ProcessIdentity:
    host = rank // ranks_per_host
    return ProcessIdentity(
        f"node{host}", f"b8fb4e7b-c88b-4a96-849e-{host:012x}", 100 + rank, 288_557, "pid:[4026531836]"
    )


def _heartbeat(process: ProcessIdentity, num_windows: int) -> Heartbeat:
    now_s = time.time()
    return Heartbeat(
        run_id="",
        process=process,
        time=now_s,
        uptime_s=uptime_s(),
        job="job",
        iteration=16 * num_windows,
        phase="backward",
        phase_since=now_s,
        location="train.py:31",
    )
