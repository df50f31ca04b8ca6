"""Wraps some steps in torch's profiler when somebody asks for it, and stores the trace where Perfetto can open it."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tachograph._base.guard import guard
from tachograph.integrations._common.trace_session import TraceSession, why_not
from tachograph.journal import Request
from tachograph.reader import list_traces, trace_name
from tachograph.recorder import Run

__all__ = ["StepTracer"]

_MOST_TRACES = 20
_LEAST_FREE_BYTES = 1 << 30
_EXIT_WAIT_S = 2.0


class StepTracer:
    """Looks once per step whether a trace is asked for, and takes it. All but the storing is in the training thread.

    Example:
        >>> tracer = StepTracer(run)
        >>> for batch in batches:
        ...     train(batch)
        ...     tracer.step()
        >>> tracer.close()
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._panel = run._panel
        self._num_steps = 0
        self._session: TraceSession | None = None
        self._request: Request | None = None
        self._first = 0
        self._done = 0
        self._start_s = 0.0
        self._storing: threading.Thread | None = None
        self._stored: Request | None = None
        self._is_closed = not run.enabled
        if run.enabled:
            self._panel.num_tracers += 1
            run.collectors.append(self)

    def step(self, number: int | None = None) -> None:
        """Hear that a step is done; a trace begins and ends here.

        Args:
            number: the global step that is done; without it, calls are counted from 0.
        """
        self._num_steps += 1
        if self._session is None and self._panel.profile is None:
            return
        with guard("tracing a step"):
            self._step(self._num_steps if number is None else number + 1)

    def _step(self, following: int) -> None:
        session = self._session
        if session is None:
            if not self._is_closed and (self._storing is None or not self._storing.is_alive()):
                self._begin(following)
            return
        self._done += 1
        if self._request is None or self._done >= self._request.value:
            self._end("")
        elif (ending := session.step(following)) is not None:
            self._end(ending)

    def _begin(self, first: int) -> None:
        request = self._panel.accept_profile()
        if request is None:
            return
        torch = sys.modules.get("torch")
        reason = why_not(torch) or self._no_room()
        if reason is None:
            session = TraceSession(torch)
            try:
                session.start(first)
            except Exception as error:  # noqa: BLE001 - whatever torch says, it is the answer to the request
                session.stop()
                reason = f"the profiler could not be started: {type(error).__name__}: {error}"
            else:
                self._session, self._request = session, request
                self._first, self._done, self._start_s = first, 0, time.monotonic()
        if reason is not None:
            self._panel.answer(request, "rejected", reason=reason)

    def _no_room(self) -> str | None:
        folder = self._run.folder
        if folder is None:
            return "the run has no folder"
        if len(list_traces(folder)) >= _MOST_TRACES:
            return f"there are {_MOST_TRACES} traces already, the most that are kept; delete some of traces/"
        if shutil.disk_usage(folder.path).free < _LEAST_FREE_BYTES:
            return "less than a gibibyte is free where the run is recorded"
        return None

    def _end(self, why: str) -> None:
        session, request = self._session, self._request
        self._session = self._request = None
        if session is None or request is None:
            return
        session.stop()
        if session.fault:
            self._panel.answer(request, "rejected", reason=session.fault)
            return
        took_s = time.monotonic() - self._start_s
        given = (session, request, self._first, self._done, took_s, why)
        self._stored = request
        self._storing = threading.Thread(target=self._store, args=given, name="tachograph-trace", daemon=True)
        self._storing.start()

    # Storing, in a thread of its own -------------------------------------------------------------------------------

    def _store(self, session: TraceSession, request: Request, first: int, steps: int, took_s: float, why: str) -> None:
        try:
            path = self._write(session, first, steps)
            size_bytes = path.stat().st_size
        except Exception as error:  # noqa: BLE001 - a full disk, or torch's own
            self._answer(request, "rejected", reason=f"the trace could not be stored: {type(error).__name__}: {error}")
            return
        place = f"traces/{path.name}"
        if not self._is_closed:
            fields: dict[str, Any] = {"path": place, "first_step": first, "num_steps": steps, "size_bytes": size_bytes}
            self._run.event("trace", **fields, duration_s=round(took_s, 6))
        self._answer(request, "applied", value=steps, path=place, **({"reason": why} if why else {}))

    def _answer(self, request: Request, status: str, **more: object) -> None:
        if not self._is_closed:  # otherwise it was answered, and nothing more is recorded
            self._stored = None
            self._panel.answer(request, status, **more)

    def _write(self, session: TraceSession, first: int, steps: int) -> Path:
        folder = self._run.folder
        if folder is None:
            raise OSError("the run has no folder")
        folder.traces.mkdir(exist_ok=True)
        for left in folder.traces.glob(".*.tmp"):  # by a process that was killed
            with contextlib.suppress(OSError):
                left.unlink()
        path = _free_path(folder.traces, first, steps)
        plain, packed = (path.with_name(f".{path.name}.{part}.tmp") for part in ("plain", "packed"))
        try:
            session.export(plain)
            _check_whole(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.replace(packed, path)
        finally:
            for each in (plain, packed):
                with contextlib.suppress(OSError):
                    each.unlink()
        return path

    # As a source of the run ----------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Do nothing: a trace is told when it is stored."""

    def close(self) -> None:
        """Stop: what is being traced is given up, what is being stored is waited for, but not for long."""
        if self._is_closed:
            return
        with guard("ending a trace"):
            if self._session is not None and self._request is not None:
                session, request, asked = self._session, self._request, self._request.value
                self._session = self._request = None
                session.stop()
                reason = session.fault or f"the run ended after {self._done} of {asked} steps"
                self._panel.answer(request, "rejected", reason=reason)
            if self._storing is not None:
                self._storing.join(_EXIT_WAIT_S)
                if self._stored is not None:
                    self._panel.answer(
                        self._stored, "rejected", reason="the run ended while the trace was being stored"
                    )
            self._panel.num_tracers -= 1
            waiting = self._panel.accept_profile() if not self._panel.num_tracers else None
            if waiting is not None:
                self._panel.answer(waiting, "rejected", reason="the run ended before the next step")
        self._is_closed = True
        if self in self._run.collectors:
            self._run.collectors.remove(self)

    def forget(self) -> None:
        """In a forked child: the trace is the parent's."""
        session, self._session = self._session, None
        self._request = self._storing = None
        self._is_closed = True
        if session is not None:
            with guard("leaving a trace to the parent process"):
                session.forget()


def _free_path(folder: Path, first: int, steps: int) -> Path:
    """Return where to store a trace: a step may be traced again after a resume."""
    return next(path for number in range(1, 1000) if not (path := folder / trace_name(first, steps, number)).exists())


def _check_whole(path: Path) -> None:
    """See whether the trace was written to its end: on a full disk torch says nothing."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError("it was not written to its end; is the disk full?")
