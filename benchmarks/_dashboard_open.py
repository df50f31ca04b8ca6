"""Opening runs: from a journal, from its cache, one of ten million points, and a list of hundreds."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._children import ChildError, answer
from benchmarks._dashboard_data import OUTLIER, make_journal, start_line
from benchmarks._dashboard_server import Memory, Process, serve
from benchmarks._measure import Spread

__all__ = ["Listing", "Opened", "Zooms", "index_run", "list_runs", "make_list", "open_run", "zoom"]

_NUM_CRASHED, _NUM_RUNNING = 50, 10
_NUM_STEPS_LISTED = 200
_LONGEST_INDEX_S = 300


class Opened(msgspec.Struct):
    """How long it took until the chart of one metric was there, in seconds."""

    first_s: float
    """From the request to the first answer, of as much as had been read by then."""
    whole_s: float
    """From the request to the first answer that has everything."""
    spawned_s: float
    """The same from the start of the process."""
    indexed: float
    """Which part of the journal is in the first answer."""
    memory: Memory


def open_run(logs: Path, name: str, *, is_cold: bool) -> Opened:
    """Ask a new server for the first chart of a run, until it is complete."""
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
            raise ChildError("the outlier is lost")
        server.series(name)  # what came last is put into the cache when nothing else is left to do
        return Opened(first_s, whole_s, spawned_s, indexed, server.memory())


def _has_outlier(view: Any) -> bool:
    """Tell whether the one high point is in an answer."""
    return any(OUTLIER in line["y"] for line in view["series"][0]["lines"])


def index_run(logs: Path, name: str) -> float:
    """Make the cache of a run in a process of its own; return how long it took.

    Raises:
        ChildError: if it could not.
    """
    began_s = time.monotonic()
    process = Process(logs.parent, "-m", "benchmarks._dashboard_open", str(logs / name))
    try:
        process.process.wait(_LONGEST_INDEX_S)
    except subprocess.TimeoutExpired:
        raise ChildError(f"is not read within {_LONGEST_INDEX_S} s") from None
    finally:
        process.stop(at_once=True)
    return time.monotonic() - began_s


class Zooms(msgspec.Struct):
    """Views of a long series over HTTP, in milliseconds."""

    open_ms: float
    """Until the first whole one of a new process, from the cache."""
    whole_ms: Spread
    """All of it, every time."""
    median_ms: float
    p95_ms: float
    most_ms: float
    cpu_ms: float
    """What the server computed for each of the random ones: a busy machine hardly changes that."""
    memory: Memory


def zoom(logs: Path, name: str, num_points: int, num_zooms: int) -> Zooms:
    """Ask a new server for random views, from a thousand points to all of them."""
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
            raise ChildError("the outlier is lost")
        whole_ms = Spread.of(1000 * took_s for _, took_s in wholes)
        took_ms.sort()
        p95 = took_ms[min(len(took_ms) - 1, round(0.95 * len(took_ms)))]
        return Zooms(1000 * open_s, whole_ms, Spread.of(took_ms).median, p95, took_ms[-1], cpu_ms, server.memory())


def make_list(logs: Path, num_runs: int) -> None:
    """Make many runs: most of them finished, some crashed, some of a process that lives (this one)."""
    from tachograph.journal import this_process

    make_journal(logs / "run-0000", "wide", _NUM_STEPS_LISTED)
    _, _, lines = (logs / "run-0000" / "metrics.jsonl").read_bytes().partition(b"\n")
    without_end = lines[: lines.rindex(b"\n", 0, -1) + 1]
    for index in range(1, num_runs):
        folder = logs / f"run-{index:04d}"
        folder.mkdir()
        process = msgspec.to_builtins(this_process())
        is_ended = index >= _NUM_CRASHED + _NUM_RUNNING
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
    """Ask a new server for the list of runs, then again and again."""
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
    return {"took_ms": 1000 * (time.perf_counter() - began_s), "is_whole": stored.indexed == 1 and bool(lines)}


if __name__ == "__main__":
    answer(_open_in_process)
