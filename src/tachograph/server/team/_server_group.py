"""The processes that serve one data folder, on one host or on several.

Each process has a file, `.server/processes/<host>-<number>.json`. It writes its counters there every second, so any of
them can report all (see `ServerMetrics`), and a process that is started again continues its own.

One process is the leader: it does what must be done once, such as deleting unused media. It holds a lock, which the
kernel releases when the process ends, however it ends. Then another one becomes the leader.

Copies are open in each process that received something of a run, and a run with an open copy cannot be deleted or
moved. `release_copies` asks all processes to close their copies, by the time of the file `.server/release`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from tachograph._base.files import exclusive_lock, make_folder, read_small, replace_file
from tachograph._base.threads import TelemetryThread
from tachograph._base.typed import decode_json
from tachograph.server.team._metrics import Counts, ServerMetrics, StoreReport

__all__ = ["ServerGroup"]

_POLL_S = 0.25
_WRITE_INTERVAL_S = 1.0
_IDLE_INTERVAL_S = 5.0
_ALIVE_S = 5.0
"""A process whose file is older than this does not run."""
_RELEASE_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 20
_MAX_PROCESSES = 1_000


class _ProcessState(msgspec.Struct):
    """The file of a process."""

    counts: Counts = []
    open_copies: int = 0
    released_ns: int = 0
    """The last request to close copies that it has seen."""
    store: StoreReport | None = None
    """How far the column store is behind, if this process inserts into it."""


class _Other(NamedTuple):
    state: _ProcessState
    is_alive: bool


class ServerGroup:
    """This process among the others that serve a data folder. Any thread may use it.

    Args:
        root: the data folder.
        metrics: the counters of this process.
        close_copies: closes all copies that this process has open.
        close_idle_copies: closes copies that were not used for a while.
        count_open_copies: returns how many are open.
        report_store: how far the column store is behind.

    Raises:
        OSError: if the data folder cannot be written.
    """

    def __init__(
        self,
        root: Path,
        metrics: ServerMetrics,
        *,
        close_copies: Callable[[], None],
        close_idle_copies: Callable[[], None],
        count_open_copies: Callable[[], int],
        report_store: Callable[[], StoreReport | None] = lambda: None,
    ) -> None:
        self._root = root
        self._folder = root / ".server" / "processes"
        self._metrics = metrics
        self._close_copies = close_copies
        self._close_idle_copies = close_idle_copies
        self._count_open_copies = count_open_copies
        self._report_store = report_store
        self._release_path = root / ".server" / "release"
        make_folder(self._folder, below=root, mode=0o700)
        self._locks = contextlib.ExitStack()
        self._path = self._take_number()
        self._released_ns = self._requested_ns()
        self._is_leader = threading.Event()
        self._is_closed = threading.Event()
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            metrics.restore(_read_state(self._path).counts)
        self._try_to_lead()
        self._write()
        self._thread = TelemetryThread(self._run, name="tachograph-group")
        self._thread.start()

    @property
    def is_leader(self) -> bool:
        """Whether this process does what only one of them may do."""
        return self._is_leader.is_set()

    def close(self) -> None:
        """Leave the group; another process becomes the leader."""
        self._is_closed.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._write()
        self._locks.close()

    def release_copies(self) -> None:
        """Close all copies in all processes, so that runs can be moved; runs that still arrive are opened again."""
        with contextlib.suppress(OSError):
            replace_file(self._release_path, b"", below=self._root, mode=0o600)
        requested_ns = self._released_ns = self._requested_ns()
        self._close_copies()
        with contextlib.suppress(OSError):
            deadline_s = time.monotonic() + _RELEASE_TIMEOUT_S
            while time.monotonic() < deadline_s:
                if all(other.state.released_ns >= requested_ns for other in self._others() if other.is_alive):
                    return
                time.sleep(_POLL_S / 5)

    def counts(self) -> Counts:
        """Return the counters of the other processes, also of processes that have ended."""
        return [count for other in self._others() for count in other.state.counts]

    def count_open_copies(self) -> int:
        """Return how many copies are open in all processes."""
        return self._count_open_copies() + sum(other.state.open_copies for other in self._others() if other.is_alive)

    def num_processes(self) -> int:
        """Return how many processes serve the data folder."""
        return 1 + sum(other.is_alive for other in self._others())

    def store_report(self) -> StoreReport | None:
        """Return how far the column store is behind, according to the process that inserts into it."""
        reports = [other.state.store for other in self._others() if other.is_alive and other.state.store is not None]
        return self._report_store() if self.is_leader else next(iter(reports), None)

    def _run(self) -> None:
        next_write_s = next_idle_s = 0.0
        while not self._is_closed.wait(_POLL_S):
            now_s = time.monotonic()
            try:
                requested_ns = self._requested_ns()
                if requested_ns > self._released_ns:
                    self._close_copies()
                    self._released_ns = requested_ns
                    next_write_s = 0.0
                if now_s >= next_idle_s:
                    next_idle_s = now_s + _IDLE_INTERVAL_S
                    self._close_idle_copies()
                if now_s >= next_write_s:
                    next_write_s = now_s + _WRITE_INTERVAL_S
                    self._try_to_lead()
                    self._write()
            except OSError as error:
                self._metrics.add_fault("cannot write the state of this process", error)

    def _write(self) -> None:
        report = self._report_store() if self.is_leader else None
        state = _ProcessState(self._metrics.counts(), self._count_open_copies(), self._released_ns, report)
        replace_file(self._path, msgspec.json.encode(state), below=self._root, mode=0o600)

    def _others(self) -> list[_Other]:
        """Return the states of the other processes.

        Whether one is alive depends on how old its file is beside our own: both times are of the file system.
        """
        others = []
        with contextlib.suppress(OSError):
            now_s = os.stat(self._path).st_mtime
            for path in self._folder.glob("*.json"):
                if path != self._path:
                    with contextlib.suppress(OSError, msgspec.MsgspecError):
                        others.append(_Other(_read_state(path), now_s - os.stat(path).st_mtime < _ALIVE_S))
        return others

    def _requested_ns(self) -> int:
        try:
            return os.stat(self._release_path).st_mtime_ns
        except OSError:
            return 0

    def _take_number(self) -> Path:
        """Return the path of our file: the first one on this host that no other process has locked."""
        host = re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname())[:64] or "host"
        for number in range(_MAX_PROCESSES):
            path = self._folder / f"{host}-{number}.json"
            if self._try_to_lock(path.with_suffix(".lock")):
                return path
        raise OSError(f"more than {_MAX_PROCESSES} processes serve {self._root}")

    def _try_to_lead(self) -> None:
        if not self.is_leader and self._try_to_lock(self._folder / "leader.lock"):
            self._is_leader.set()

    def _try_to_lock(self, path: Path) -> bool:
        try:
            self._locks.enter_context(exclusive_lock(path, below=self._root, mode=0o600, may_wait=False))
        except BlockingIOError:
            return False
        return True


def _read_state(path: Path) -> _ProcessState:
    return decode_json(read_small(path, _MAX_BYTES), _ProcessState)
