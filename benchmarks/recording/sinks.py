"""What sinks cost the training process: the log call and its CPU with sinks, compared with a run that has none.

Two runs are open in one process, one with sinks and one without, and get the same bursts in turn. The sinks export
for real: event files, offline folders, a SQLite database, an HTTP receiver that accepts everything.
"""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import run_as_child
from benchmarks.measure import Rows, Spread, bare_loop, make_rows, time_ns
from tachograph import Run, init

__all__ = ["SINKS"]

SINKS = ("tensorboard", "wandb", "mlflow", "otlp", "prometheus", "swanlab")

_NUM_CALLS = 200
_NUM_ROUNDS = 16
_PAUSE_S = 1.2
"""Longer than the interval at which sinks read the journal."""


def measure(folder: Path, names: str) -> dict[str, Any]:
    """Alternate between a run without sinks and one with these, separated by commas."""
    rows = make_rows(_NUM_CALLS)
    quiet = {"log_dir": str(folder / "logs"), "console": False, "git": False, "system_interval_s": 0.0}
    with contextlib.ExitStack() as stack:
        sinks = [{name: _options(name, folder, stack)} for name in names.split(",")]
        plain = stack.enter_context(init("plain", **quiet))
        exported = stack.enter_context(init("exported", sinks=sinks, **quiet))
        time.sleep(_PAUSE_S)
        calls, cpus, sink_us = [], [], []
        for first in range(0, (_NUM_ROUNDS + 1) * _NUM_CALLS, _NUM_CALLS):
            loop_ns = time_ns(bare_loop, rows, first)
            plain_ns, plain_s, _ = _burst(plain, rows, first)
            export_ns, export_s, children_s = _burst(exported, rows, first)
            calls.append((export_ns - loop_ns) / (plain_ns - loop_ns))
            cpus.append(export_s / plain_s)
            sink_us.append(1e6 * children_s / _NUM_CALLS)
    # The first round imports and opens files.
    return {"call": Spread.of(calls[1:]), "cpu": Spread.of(cpus[1:]), "sink_us": Spread.of(sink_us[1:])}


def _burst(run: Run, rows: Rows, first_step: int) -> tuple[float, float, float]:
    """Log rows and wait; return the time of a call, the CPU time of this process and that of its children."""

    def log(rows: Rows, first_step: int) -> None:
        for step, metrics in enumerate(rows, first_step):
            run.log(metrics, step)

    children_s, start_s = _children_cpu_s(), time.process_time()
    call_ns = time_ns(log, rows, first_step)
    time.sleep(_PAUSE_S)
    return call_ns, time.process_time() - start_s, _children_cpu_s() - children_s


def _children_cpu_s() -> float:
    total_s = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if _RECEIVER not in child.cmdline():
                times = child.cpu_times()
                total_s += times.user + times.system
    return total_s


def _options(name: str, folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Return options that keep a sink on this machine."""
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "tensorboard": dict,
        "wandb": lambda: {"project": "bench", "mode": "offline"},
        "mlflow": lambda: {"tracking_uri": f"sqlite:///{folder}/mlflow.db"},
        "otlp": lambda: {
            "endpoint": f"http://127.0.0.1:{stack.enter_context(_receiver())}",
            "protocol": "http/protobuf",
        },
        "prometheus": lambda: {"textfile": str(folder)},
        "swanlab": lambda: {"project": "bench", "mode": "offline", "log_dir": str(folder / "swanlog")},
    }
    return makers[name]()


# The receiver --------------------------------------------------------------------------------------------------------

_RECEIVER = "receive-and-discard"


@contextlib.contextmanager
def _receiver() -> Iterator[int]:
    """Run a server in another process that accepts and discards every request; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.recording.sinks", _RECEIVER, str(port)])
    try:
        yield port
    finally:
        process.kill()
        process.wait()


class _Discard(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None:
        """Print nothing."""


if __name__ == "__main__":
    if sys.argv[1] == _RECEIVER:
        http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Discard).serve_forever()
    run_as_child(measure)
