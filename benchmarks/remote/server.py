"""A team's server in a process of its own, and a bare server with the same configuration to compare it with."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.child import child_environment
from tachograph.server.team import KeyRing, keys_path

__all__ = ["RunningServer", "cpu_s", "pss_mib", "start_server"]


class RunningServer(NamedTuple):
    port: int
    pid: int
    token: str
    """A key that may do everything."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def start_server(data_dir: Path, kind: str = "team", *, core: int | None = None) -> Iterator[RunningServer]:
    """Run a server, on one core if it is given; yield it when it accepts connections."""
    data_dir.mkdir(parents=True, exist_ok=True)
    ring = KeyRing(keys_path(data_dir))
    token = ring.create(f"bench-{len(ring.list())}", ["admin"])[1]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.remote.server", kind, str(data_dir), str(port)]
    process = subprocess.Popen(command, env=child_environment(str(data_dir)))
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        while not _accepts(port):
            if process.poll() is not None:
                raise RuntimeError(f"the {kind} server ended with {process.returncode}")
            time.sleep(0.01)
        yield RunningServer(port, process.pid, token)
    finally:
        process.kill()
        process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cpu_s(pid: int) -> float:
    """Return the processor time of all threads of a process; precise to the nanosecond where the kernel counts it."""
    try:
        return 1e-9 * sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    except OSError:
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)


def pss_mib(pid: int) -> float:
    """Return the memory of a process; pages that it shares count in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


class _BareApp:
    """Inflates each body and appends it to one file: the least that any server has to do."""

    def __init__(self, path: Path) -> None:
        self.server: Any = None
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - as long as the process

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self._file.write(zlib.decompress(b"".join(parts), wbits=31))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})


def _main(kind: str, data_dir: str, port: str) -> None:
    from tachograph.server.team import TeamServer, create_team_server

    # As `tacho serve` does.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    app: Any = TeamServer(data_dir) if kind == "team" else _BareApp(Path(data_dir, "bare"))
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=1024)
    create_team_server(app, lifespan="off").run(sockets=[listener])


if __name__ == "__main__":
    _main(*sys.argv[1:])
