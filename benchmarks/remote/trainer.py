"""What sending costs a trainer: two runs in one process, one with the mode `cloud`, get the same bursts in turn."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import run_as_child
from benchmarks.measure import Rows, Spread, bare_loop, make_rows, time_ns
from benchmarks.remote.server import cpu_s, pss_mib, start_server
from tachograph import Run, init

__all__: list[str] = []

_NUM_CALLS = 500
_NUM_ROUNDS = 20
_PAUSE_S = 1.5
"""Longer than the interval at which a client sends."""


def measure(folder: Path) -> dict[str, Any]:
    """Alternate between a local run and one that is sent to a server on this machine."""
    rows = make_rows(_NUM_CALLS)
    quiet = {"log_dir": str(folder / "logs"), "console": False, "git": False, "code": False, "system_interval_s": 0.0}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_server(folder / "data"))
        os.environ["TACHO_API_KEY"] = server.token
        local = stack.enter_context(init("local", mode="local", **quiet))
        cloud = stack.enter_context(init("cloud", mode="cloud", server=server.url, **quiet))
        (sender,) = (child.pid for child in psutil.Process().children() if child.cmdline()[-2:] == ["sink", "server"])
        time.sleep(_PAUSE_S)
        calls, cpus, sender_us = [], [], []
        for first in range(0, (_NUM_ROUNDS + 1) * _NUM_CALLS, _NUM_CALLS):
            loop_ns = time_ns(bare_loop, rows, first)
            local_ns, local_s = _burst(local, rows, first)
            sender_s = cpu_s(sender)
            cloud_ns, cloud_s = _burst(cloud, rows, first)
            calls.append((cloud_ns - loop_ns) / (local_ns - loop_ns))
            cpus.append(cloud_s / local_s)
            sender_us.append(1e6 * (cpu_s(sender) - sender_s) / _NUM_CALLS)
        sender_mib = pss_mib(sender)
        idle_s, began_s = cpu_s(sender), time.monotonic()
        time.sleep(5.0)
        idle_percent = 100 * (cpu_s(sender) - idle_s) / (time.monotonic() - began_s)
    # The first round imports and opens files.
    return {
        "call": Spread.of(calls[1:]),
        "cpu": Spread.of(cpus[1:]),
        "sender_us": Spread.of(sender_us[1:]),
        "sender_mib": sender_mib,
        "idle_percent": idle_percent,
    }


def _burst(run: Run, rows: Rows, first_step: int) -> tuple[float, float]:
    """Log rows and wait; return the time of a call and the processor time of this process."""

    def log(rows: Rows, first_step: int) -> None:
        for step, metrics in enumerate(rows, first_step):
            run.log(metrics, step)

    start_s = time.process_time()
    call_ns = time_ns(log, rows, first_step)
    time.sleep(_PAUSE_S)
    return call_ns, time.process_time() - start_s


if __name__ == "__main__":
    run_as_child(measure)
