"""CPU of the server: next to live runs, and with the list of thousands of crashed runs open."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from benchmarks.child import ChildError
from benchmarks.dashboard.server import Dashboard, Memory, Process, serve, watching
from benchmarks.measure import Spread, make_rows

__all__ = ["NUM_LIVE", "Idle", "measure_idle", "measure_watching"]

NUM_LIVE = 10
_PAUSE_S = 0.2
_FLUSH_S = 1.0
_SETTLE_S = 2.0
_WINDOW_S = 4.0
_NUM_WINDOWS = 4


class Idle(msgspec.Struct):
    """CPU and memory of a server."""

    percent: Spread
    """Share of one core, per time window."""
    mean_percent: float
    """Mean over all windows."""
    memory: Memory


def measure_idle(logs: Path) -> dict[str, Idle]:
    """Run three servers over the same ten live runs at the same time, each with a different reader.

    Raises:
        ChildError: if a trainer or a server does not start.
    """
    with contextlib.ExitStack() as stack:
        for index in range(NUM_LIVE):
            arguments = ("recorded", str(logs), f"live-{index}", str(_PAUSE_S), str(_FLUSH_S))
            trainer = Process(logs.parent, "-m", "benchmarks.dashboard.trainer", *arguments)
            stack.callback(trainer.stop, at_once=True)
        servers = {name: stack.enter_context(serve(logs)) for name in ("none", "list", "charts")}
        _wait_for_all(servers["none"])
        stack.enter_context(watching(servers["list"].url))
        stack.enter_context(watching(servers["charts"].url, "live-0", tuple(make_rows(1)[0])))
        return _measure(servers)


def measure_watching(logs: Path) -> Idle:
    """Run a server over a log folder with one reader of its list.

    Raises:
        ChildError: if the server does not start.
    """
    with serve(logs) as server:
        server.client.get("/api/v1/runs")
        with watching(server.url):
            return _measure({"list": server})["list"]


def _measure(servers: dict[str, Dashboard]) -> dict[str, Idle]:
    time.sleep(_SETTLE_S)
    shares: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(_NUM_WINDOWS):
        began_s, before = time.monotonic(), {name: server.cpu_s() for name, server in servers.items()}
        time.sleep(_WINDOW_S)
        for name, server in servers.items():
            shares[name].append(100 * (server.cpu_s() - before[name]) / (time.monotonic() - began_s))
    return {
        name: Idle(Spread.of(shares[name]), sum(shares[name]) / _NUM_WINDOWS, server.memory())
        for name, server in servers.items()
    }


def _wait_for_all(server: Dashboard) -> None:
    while True:
        runs = server.client.json("/api/v1/runs")["runs"]
        if sum(run["state"] == "running" and run["step"] is not None for run in runs) == NUM_LIVE:
            return
        server.check()
        if server.age_s > 30:
            raise ChildError("the trainers did not start")
        time.sleep(0.2)
