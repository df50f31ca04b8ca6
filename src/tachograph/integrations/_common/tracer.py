"""Traces a few steps with torch's profiler on request, and stores the trace in a format that Perfetto opens."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tachograph._base.files import make_folder, make_temporary_folder, replacing
from tachograph._base.guard import guard, suppress
from tachograph._base.threads import TelemetryThread
from tachograph.integrations._common.trace_session import TraceSession, find_obstacle
from tachograph.journal import Request
from tachograph.reader import list_traces, trace_name
from tachograph.recorder import Run

__all__ = ["StepTracer"]

_MAX_TRACES = 20
_MIN_FREE_BYTES = 1 << 30
_EXIT_TIMEOUT_S = 2.0


class StepTracer:
    """Checks for a trace request after each step and serves it. Only storing runs outside the training thread.

    Example:
        >>> tracer = StepTracer(run)
        >>> for batch in batches:
        ...     train(batch)
        ...     tracer.step()
        >>> tracer.close()
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._panel = run.control_panel
        self._num_steps = 0
        self._session: TraceSession | None = None
        self._request: Request | None = None
        self._first_step = 0
        self._num_traced = 0
        self._start_s = 0.0
        self._storage_thread: TelemetryThread | None = None
        self._request_in_storage: Request | None = None
        self._is_closed = not run.enabled
        if run.enabled:
            self._panel.num_tracers += 1
            run.collectors.append(self)

    @property
    def is_idle(self) -> bool:
        """Whether no trace is in progress or requested."""
        return self._session is None and self._panel.profile is None

    def step(self, number: int | None = None) -> None:
        """Handle the end of a step. Traces start and end here.

        Args:
            number: the global step that ended; if not given, calls are counted from 0.
        """
        self._num_steps += 1
        if self._session is None and self._panel.profile is None:
            return
        with guard("tracing a step"):
            self._advance(self._num_steps if number is None else number + 1)

    def _advance(self, following: int) -> None:
        session = self._session
        if session is None:
            if not self._is_closed and (self._storage_thread is None or not self._storage_thread.is_alive()):
                self._start(following)
            return
        self._num_traced += 1
        if self._request is None or self._num_traced >= self._request.value:
            self._finish("")
        elif (reason := session.step(following)) is not None:
            self._finish(reason)

    def _start(self, first: int) -> None:
        request = self._panel.accept_profile()
        if request is None:
            return
        torch = sys.modules.get("torch")
        reason = find_obstacle(torch) or self._find_storage_obstacle()
        if reason is None:
            session = TraceSession(torch)
            try:
                session.start(first)
            except Exception as error:  # noqa: BLE001 - becomes the answer to the request
                session.stop()
                reason = f"the profiler could not be started: {type(error).__name__}: {error}"
            else:
                self._session, self._request = session, request
                self._first_step, self._num_traced, self._start_s = first, 0, time.monotonic()
        if reason is not None:
            self._panel.answer(request, "rejected", reason=reason)

    def _find_storage_obstacle(self) -> str | None:
        folder = self._run.folder
        if folder is None:
            return "the run has no folder"
        if len(list_traces(folder)) >= _MAX_TRACES:
            return f"the run already has {_MAX_TRACES} traces, the maximum; delete some from its traces/ folder"
        if shutil.disk_usage(folder.path).free < _MIN_FREE_BYTES:
            return "less than 1 GiB of disk space is free where the run is recorded"
        return None

    def _finish(self, reason: str) -> None:
        session, request = self._session, self._request
        self._session = self._request = None
        if session is None or request is None:
            return
        session.stop()
        if session.fault:
            self._panel.answer(request, "rejected", reason=session.fault)
            return
        took_s = time.monotonic() - self._start_s
        arguments = (session, request, self._first_step, self._num_traced, took_s, reason)
        self._request_in_storage = request
        self._storage_thread = TelemetryThread(self._store, name="tachograph-trace", args=arguments)
        self._storage_thread.start()

    # Storing, in its own thread ------------------------------------------------------------------------------------

    def _store(
        self, session: TraceSession, request: Request, first: int, steps: int, took_s: float, reason: str
    ) -> None:
        try:
            path = self._write(session, first, steps)
            size_bytes = path.stat().st_size
        except Exception as error:  # noqa: BLE001 - a full disk, or an error of torch
            self._respond(request, "rejected", reason=f"the trace could not be stored: {type(error).__name__}: {error}")
            return
        relative = f"traces/{path.name}"
        if not self._is_closed:
            fields: dict[str, Any] = {
                "path": relative,
                "first_step": first,
                "num_steps": steps,
                "size_bytes": size_bytes,
            }
            self._run.event("trace", **fields, duration_s=round(took_s, 6))
        self._respond(request, "applied", value=steps, path=relative, **({"reason": reason} if reason else {}))

    def _respond(self, request: Request, status: str, **details: object) -> None:
        if not self._is_closed:  # `close` has answered it already
            self._request_in_storage = None
            self._panel.answer(request, status, **details)

    def _write(self, session: TraceSession, first: int, steps: int) -> Path:
        folder = self._run.folder
        if folder is None:
            raise OSError("the run has no folder")
        make_folder(folder.traces, below=folder.path)
        for leftover in folder.traces.glob(".*.tmp"):  # of a process that was killed
            with suppress(OSError):
                leftover.unlink() if not leftover.is_dir() or leftover.is_symlink() else shutil.rmtree(leftover)
        path = _free_path(folder.traces, first, steps)
        with make_temporary_folder(folder.traces, below=folder.path) as private:
            plain = private / "trace.json"
            session.export(plain)
            _check_complete(plain)
            with (
                open(plain, "rb") as source,
                replacing(path, below=folder.path) as descriptor,
                open(descriptor, "wb", closefd=False) as compressed_file,
                gzip.GzipFile("", "wb", 6, compressed_file) as target,
            ):
                shutil.copyfileobj(source, target, 1 << 20)
            os.close(descriptor)
        return path

    # As a collector of the run -------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Do nothing: a trace is recorded when it is stored."""

    def close(self) -> None:
        """Abandon a trace in progress, and wait briefly for one that is being stored."""
        if self._is_closed:
            return
        with guard("closing the tracer"):
            if self._session is not None and self._request is not None:
                session, request = self._session, self._request
                self._session = self._request = None
                session.stop()
                reason = session.fault or f"the run ended after {self._num_traced} of {request.value} steps"
                self._panel.answer(request, "rejected", reason=reason)
            if self._storage_thread is not None:
                self._storage_thread.join(_EXIT_TIMEOUT_S)
                if self._request_in_storage is not None:
                    self._panel.answer(
                        self._request_in_storage, "rejected", reason="the run ended while the trace was being stored"
                    )
            self._panel.num_tracers -= 1
            pending_request = self._panel.accept_profile() if not self._panel.num_tracers else None
            if pending_request is not None:
                self._panel.answer(pending_request, "rejected", reason="the run ended before the next step")
        self._is_closed = True
        if self in self._run.collectors:
            self._run.collectors.remove(self)

    def forget(self) -> None:
        """Drop the trace in a forked child: it belongs to the parent."""
        session, self._session = self._session, None
        self._request = self._storage_thread = None
        self._is_closed = True
        if session is not None:
            with guard("leaving a trace to the parent process"):
                session.forget()


def _free_path(folder: Path, first: int, steps: int) -> Path:
    """Return an unused path for a trace: a step may be traced again after a resume."""
    return next(path for number in range(1, 1000) if not (path := folder / trace_name(first, steps, number)).exists())


def _check_complete(path: Path) -> None:
    """Raise if the trace is truncated: torch does not report a full disk."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError("the trace is truncated; is the disk full?")
