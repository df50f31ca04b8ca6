"""Open runs: from a journal, from the cache, with ten million points, and a list of hundreds of runs."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.child import ChildError, run_as_child
from benchmarks.dashboard.data import OUTLIER, make_journal, start_line
from benchmarks.dashboard.server import Memory, Process, serve
from benchmarks.measure import Spread

__all__ = ["Listing", "Opened", "Zooms", "index_run", "list_runs", "make_list", "open_run", "zoom"]

_NUM_RUNNING = 10
_NUM_STEPS_LISTED = 200
_MAX_INDEX_S = 300


class Opened(msgspec.Struct):
    """Seconds until the chart of one metric was complete."""

    first_s: float
    """From the request to the first response, which covers what has been read so far."""
    whole_s: float
    """From the request to the first complete response."""
    spawned_s: float
    """The same, from process start."""
    indexed: float
    """Share of the journal in the first response."""
    memory: Memory


def open_run(logs: Path, name: str, *, is_cold: bool) -> Opened:
    """Request the first chart of a run from a new server until it is complete."""
    if is_cold:
        shutil.rmtree(logs / name / ".tacho", ignore_errors=True)
    with serve(logs) as server:
        while True:
            try:
                server.client.get("/healthz")
                break
            except ChildError:
                server.check()
                time.sleep(0.005)
        began_s = time.perf_counter()
        view, first_s = server.series(name)
        indexed = view["indexed"]
        while view["indexed"] < 1:
            view, _ = server.series(name)
        whole_s = time.perf_counter() - began_s
        spawned_s = server.age_s
        if not _has_outlier(view):
            raise ChildError("the outlier is missing")
        server.series(name)  # the server writes the last rows to the cache when it is idle
        return Opened(first_s, whole_s, spawned_s, indexed, server.memory())


def _has_outlier(view: Any) -> bool:
    """Return whether a response contains the outlier."""
    return any(OUTLIER in line["y"] for line in view["series"][0]["lines"])


def index_run(logs: Path, name: str) -> float:
    """Build the cache of a run in a child process; return how long it took.

    Raises:
        ChildError: if it timed out.
    """
    began_s = time.monotonic()
    process = Process(logs.parent, "-m", "benchmarks.dashboard.opening", str(logs / name))
    try:
        process.process.wait(_MAX_INDEX_S)
    except subprocess.TimeoutExpired:
        raise ChildError(f"indexing timed out after {_MAX_INDEX_S} s") from None
    finally:
        process.stop(at_once=True)
    return time.monotonic() - began_s


class Zooms(msgspec.Struct):
    """Views of a long series over HTTP, in milliseconds."""

    open_ms: float
    """Until the first complete view of a new process, from the cache."""
    whole_ms: Spread
    """The full range, repeatedly."""
    median_ms: float
    p95_ms: float
    max_ms: float
    cpu_ms: float
    """Server CPU per random view: hardly affected by a busy machine."""
    memory: Memory


def zoom(logs: Path, name: str, num_points: int, num_zooms: int) -> Zooms:
    """Request random views from a new server, from a thousand points to all of them."""
    source = random.Random(0)
    with serve(logs) as server:
        server.client.get("/healthz")
        began_s = time.perf_counter()
        while server.series(name)[0]["indexed"] < 1:
            pass
        open_s = time.perf_counter() - began_s
        took_ms, cpu_s = [], server.cpu_s()
        for _ in range(num_zooms):
            width = int(num_points ** source.uniform(3 / 7, 1))
            low = source.randrange(num_points - width + 1)
            view, took_s = server.series(name, f"name=train_loss&points=2000&low={low}&high={low + width}")
            if not view["series"][0]["lines"]:
                raise ChildError("a view is empty")
            took_ms.append(1000 * took_s)
        cpu_ms = 1000 * (server.cpu_s() - cpu_s) / num_zooms
        wholes = [server.series(name) for _ in range(9)]
        if not all(_has_outlier(view) for view, _ in wholes):
            raise ChildError("the outlier is missing")
        whole_ms = Spread.of(1000 * took_s for _, took_s in wholes)
        took_ms.sort()
        p95 = took_ms[min(len(took_ms) - 1, round(0.95 * len(took_ms)))]
        return Zooms(1000 * open_s, whole_ms, Spread.of(took_ms).median, p95, took_ms[-1], cpu_ms, server.memory())


def make_list(logs: Path, num_runs: int, num_crashed: int) -> None:
    """Generate many runs: some running (in this process), some crashed, the others finished."""
    from tachograph.journal import this_process

    make_journal(logs / "run-0000", "wide", _NUM_STEPS_LISTED)
    _, _, lines = (logs / "run-0000" / "metrics.jsonl").read_bytes().partition(b"\n")
    without_end = lines[: lines.rindex(b"\n", 0, -1) + 1]
    for index in range(1, num_runs):
        folder = logs / f"run-{index:04d}"
        folder.mkdir()
        process = msgspec.to_builtins(this_process())
        is_ended = index >= num_crashed + _NUM_RUNNING
        if not is_ended and index >= _NUM_RUNNING:
            process["pid_started"] -= 1
        start = start_line(folder.name, time.time() - index, process=process, max_steps=_NUM_STEPS_LISTED)
        (folder / "metrics.jsonl").write_bytes(start + (lines if is_ended else without_end))


class Listing(msgspec.Struct):
    """The list of runs over HTTP, in milliseconds."""

    first_ms: float
    first_cpu_ms: float
    next_ms: Spread
    num_bytes: int
    memory: Memory


def list_runs(logs: Path, num_runs: int) -> Listing:
    """Request the list of runs from a new server, once and then repeatedly."""
    with serve(logs) as server:
        server.client.get("/healthz")
        cpu_s = server.cpu_s()
        data, first_s = server.client.get("/api/v1/runs")
        first_cpu_ms = 1000 * (server.cpu_s() - cpu_s)
        states = [run["state"] for run in msgspec.json.decode(data)["runs"]]
        if len(states) != num_runs or states.count("running") < _NUM_RUNNING - 1 or "crashed" not in states:
            raise ChildError(f"{len(states)} runs are listed: {sorted(set(states))}")
        next_ms = Spread.of(1000 * server.client.get("/api/v1/runs")[1] for _ in range(20))
        return Listing(1000 * first_s, first_cpu_ms, next_ms, len(data), server.memory())


def _open_in_process(_folder: Path, run: str) -> dict[str, Any]:
    """Open a run with its cache in this process, without a server."""
    from tachograph.journal import RunFolder
    from tachograph.store import StoredRun

    began_s = time.perf_counter()
    stored = StoredRun(RunFolder(run))
    stored.refresh()
    lines, _ = stored.series("train_loss")
    return {"took_ms": 1000 * (time.perf_counter() - began_s), "is_whole": stored.indexed_share == 1 and bool(lines)}


if __name__ == "__main__":
    run_as_child(_open_in_process)
