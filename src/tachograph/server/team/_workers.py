"""`tacho serve --workers N`: several processes serve one data folder, on the same port.

Each process binds the port itself, with `SO_REUSEPORT`, so the kernel divides the connections among them. The process
that starts them binds it, too, and does not listen: it only keeps the port. A worker that ends is started again; what
it was receiving is sent again to another one. If the process that starts them ends, however it ends, they end, too.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import cast

import msgspec

from tachograph._base.threads import TelemetryThread
from tachograph.exceptions import ServeError, TachographError

__all__ = ["WorkerStart", "can_share_ports", "serve_with_workers"]

_log = logging.getLogger("tachograph.server")
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 15.0
"""Longer than the server waits for requests that it is answering."""
_POLL_S = 0.25
_STABLE_S = 30.0
_MAX_PAUSE_S = 30.0


class WorkerStart(msgspec.Struct):
    """The report of a worker that has started, or cannot."""

    error: str | None = None
    """Why it cannot serve."""


class _Worker:
    """One place among the workers, with the process that is in it at the moment."""

    def __init__(self, number: int, serve: Callable[[Connection], None]) -> None:
        self.number = number
        self._serve = serve
        self._num_failures = 0
        self.start_at_s = 0.0
        """When to start the process, if it does not run."""
        self.process: BaseProcess | None = None
        self.reports: Connection | None = None
        """On which the process sends a `WorkerStart`."""
        self._started_s = 0.0

    def start(self) -> None:
        """Start the process."""
        context = multiprocessing.get_context("spawn")
        self.reports, sender = context.Pipe(duplex=False)
        # Ctrl-C reaches all processes of a terminal, and this one stops the others. They inherit that it is ignored.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process = context.Process(
                target=_run_worker, args=(self._serve, sender), name=f"tacho-worker-{self.number}", daemon=True
            )
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        sender.close()
        self._started_s = time.monotonic()

    def read_report(self) -> WorkerStart | None:
        """Return the report of the process; None if there is none yet."""
        if self.reports is None or not self.reports.poll():
            return None
        try:
            return cast(WorkerStart, self.reports.recv())
        except EOFError:
            return None

    def note_end(self) -> None:
        """Collect a process that has ended, and decide when to start the next one."""
        assert self.process is not None  # noqa: S101 - only called for a process that ran
        self.process.join()
        has_been_stable = time.monotonic() - self._started_s > _STABLE_S
        self._num_failures = 1 if has_been_stable else self._num_failures + 1
        pause_s = min(_MAX_PAUSE_S, 2.0 ** (self._num_failures - 1) - 1)
        report = self.read_report()
        reason = _describe_exit(self.process.exitcode) if report is None or report.error is None else report.error
        _log.error("worker %d (process %d): %s; starting it again", self.number, self.process.pid, reason)
        self.process = None
        self.start_at_s = time.monotonic() + pause_s


def serve_with_workers(num_workers: int, serve: Callable[[Connection], None], on_ready: Callable[[], None]) -> None:
    """Run several processes until interrupted, or until SIGTERM.

    Args:
        num_workers: how many.
        serve: what each of them runs; it can be pickled. It sends a `WorkerStart` once it accepts connections.
        on_ready: called once all accept connections.

    Raises:
        ServeError: if one cannot start at first; the others are stopped.
    """
    is_stopping = threading.Event()
    wake_reader, wake_writer = multiprocessing.get_context("spawn").Pipe(duplex=False)

    def stop(_number: int, _frame: FrameType | None) -> None:
        is_stopping.set()
        wake_writer.send_bytes(b"")

    workers = [_Worker(number, serve) for number in range(num_workers)]
    handlers = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            _await_start(worker, is_stopping)
        if not is_stopping.is_set():
            on_ready()
        while not is_stopping.is_set():
            _keep_running(workers, wake_reader, is_stopping)
    finally:
        _stop([worker.process for worker in workers if worker.process is not None])
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _await_start(worker: _Worker, is_stopping: threading.Event) -> None:
    assert worker.process is not None and worker.reports is not None  # noqa: S101 - it was started
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not worker.reports.poll(_POLL_S):
        if is_stopping.is_set():
            return
        if time.monotonic() > deadline_s:
            raise ServeError(f"a worker did not start within {_START_TIMEOUT_S:.0f} s")
    report = worker.read_report()
    if report is None:
        raise ServeError("a worker ended while it started; its messages are above")
    if report.error is not None:
        raise ServeError(report.error)


def _keep_running(workers: list[_Worker], wake_reader: Connection, is_stopping: threading.Event) -> None:
    """Wait until a process ends or is to be started; start it."""
    now_s = time.monotonic()
    idle_workers = [worker for worker in workers if worker.process is None]
    timeout_s = min((max(0.0, worker.start_at_s - now_s) for worker in idle_workers), default=None)
    sentinels = {worker.process.sentinel: worker for worker in workers if worker.process is not None}
    for ended in wait([*sentinels, wake_reader], timeout_s):
        if isinstance(ended, int) and not is_stopping.is_set():
            sentinels[ended].note_end()
    for worker in idle_workers:
        if worker.start_at_s <= time.monotonic() and not is_stopping.is_set():
            worker.start()


def _stop(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
        if process.is_alive():
            _log.error("process %d did not stop within %.0f s and was killed", process.pid, _STOP_TIMEOUT_S)
            process.kill()
            process.join()


def _run_worker(serve: Callable[[Connection], None], starter: Connection) -> None:
    TelemetryThread(_end_with_parent, name="tachograph-parent").start()
    try:
        serve(starter)
    except TachographError as error:
        starter.send(WorkerStart(str(error)))


def _end_with_parent() -> None:
    """End this process as SIGTERM does when its parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"it was killed by signal {-exit_code}"
    return f"it ended with exit code {exit_code}"


def can_share_ports() -> bool:
    """Return whether several processes can listen on one port here."""
    return hasattr(socket, "SO_REUSEPORT") and os.name == "posix"
