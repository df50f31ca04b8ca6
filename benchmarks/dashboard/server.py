"""`tacho ui` in its own process, measured from outside over HTTP and /proc."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from benchmarks.child import ChildError, child_environment, last_line

__all__ = ["Client", "Memory", "Process", "serve", "watching"]

_READY_S = 60.0
_STOP_S = 10.0
_MIB = 1 << 10  # the kernel counts in KiB


class Memory(msgspec.Struct, frozen=True):
    """Memory of a process in MiB, as counted by the kernel."""

    pss: float
    """Private pages plus the proportional share of shared pages."""
    rss: float
    anonymous: float
    """Pages not backed by a file, which the system cannot drop."""


class Process:
    """A server process; `stop` also ends its child processes."""

    def __init__(self, folder: Path, *command: str, environment: dict[str, str] | None = None) -> None:
        self.spawned_s = time.monotonic()
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**child_environment(str(folder)), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.spawned_s

    def first_line(self) -> str:
        """Wait for the first line of output.

        Raises:
            ChildError: if nothing is printed.
        """
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline().decode() if selector.select(_READY_S) else ""
        if not line:
            raise ChildError(f"did not start: {self._last_error()}")
        return line

    def check(self) -> None:
        """Raise `ChildError` if the process died or is not up in time."""
        if self.process.poll() is not None or self.age_s > _READY_S:
            raise ChildError(f"not up after {self.age_s:.0f} s: {self._last_error()}")

    def _last_error(self) -> str:
        self.errors.seek(0)
        return last_line(self.errors.read())

    def memory(self) -> Memory:
        """Return the current memory use."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text(encoding="ascii")
        sizes = {name: int(size) / _MIB for name, size in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}
        return Memory(pss=sizes["Pss"], rss=sizes["Rss"], anonymous=sizes["Anonymous"])

    def cpu_s(self) -> float:
        """Return the CPU time of all threads so far."""
        return _cpu_s(Path(f"/proc/{self.process.pid}"))

    def group_cpu_s(self) -> float:
        """Return the CPU time of the process and of those that it started and that still run."""
        found = 0.0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(folder.name)) == self.process.pid:
                    found += _cpu_s(folder)
        return found

    def stop(self, *, at_once: bool = False) -> None:
        """Stop the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL if at_once else signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()


def _cpu_s(process: Path) -> float:
    fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """Sends requests over one connection, like a browser."""

    def __init__(self, url: str) -> None:
        host, _, port = url.partition("//")[2].strip("/").partition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)

    def get(self, path: str, body: Any = None) -> tuple[bytes, float]:
        """Return a response and the seconds until it was complete; POST if there is a body.

        Raises:
            ChildError: if the status is not 200.
        """
        began_s = time.perf_counter()
        try:
            if body is None:
                self._connection.request("GET", path)
            else:
                headers = {"Content-Type": "application/json"}
                self._connection.request("POST", path, msgspec.json.encode(body), headers)
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ChildError(f"{path}: {type(error).__name__}: {error}") from error
        took_s = time.perf_counter() - began_s
        if response.status != 200:
            raise ChildError(f"{path}: {response.status} {data[:200]!r}")
        return data, took_s

    def json(self, path: str, body: Any = None) -> Any:
        """Return a decoded response."""
        return msgspec.json.decode(self.get(path, body)[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Dashboard(Process):
    """`tacho ui` on a free port."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs.parent, "-m", "tachograph", "ui", "--log-dir", str(logs), "--port", "0")
        try:
            self.url = next(word for word in self.first_line().split() if word.startswith("http://"))
            self.client = Client(self.url)
        except (ChildError, StopIteration):
            self.stop()
            raise

    def series(self, run: str, query: str = "name=train_loss") -> tuple[Any, float]:
        """Return a view and the seconds it took."""
        data, took_s = self.client.get(f"/api/v1/runs/{run}/series?{query}")
        return msgspec.json.decode(data), took_s


@contextlib.contextmanager
def serve(logs: Path) -> Iterator[Dashboard]:
    """Run a dashboard over a log folder."""
    server = Dashboard(logs)
    try:
        yield server
    finally:
        server.client.close()
        server.stop()


@contextlib.contextmanager
def watching(url: str, run: str | None = None, names: tuple[str, ...] = ()) -> Iterator[None]:
    """Watch the charts of a run as the page does, or the list of runs if no run is given."""
    stopped = threading.Event()
    thread = threading.Thread(target=_watch, args=(url, run, names, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_STOP_S)


_PAGE_PAUSE_S = 0.15
"""Pause between two fetches; see `ui/src/loader.ts`."""


def _watch(url: str, run: str | None, names: tuple[str, ...], stopped: threading.Event) -> None:
    host, _, port = url.partition("//")[2].strip("/").partition(":")
    events = http.client.HTTPConnection(host, int(port), timeout=30)
    events.request("GET", "/api/v1/live" + (f"?run={run}" if run else ""))
    response = events.getresponse()
    client, cursor = Client(url), ""
    wanted = "&".join(f"name={name}" for name in names)
    while not stopped.is_set():
        line = response.readline()
        if not line:
            break
        if run is not None and line.startswith(b"data:"):
            query = f"{wanted}&after={cursor}" if cursor else wanted
            cursor = client.json(f"/api/v1/runs/{run}/series?{query}")["cursor"]
            stopped.wait(_PAGE_PAUSE_S)
    client.close()
    events.close()
