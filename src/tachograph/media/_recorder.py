"""The media thread: converts, encodes and stores what `Run.log` has copied, and then adds the `media` record.

`add` runs on the thread that logs. It checks the limits before it copies anything, copies, and puts a job into a queue.
The thread does everything else, one job after the other; while it reads a large file, it does smaller jobs between its
blocks, so that they need not wait for the file. A job that is dropped still gets a record, without items and
with the reason, so that readers can show the gap at its step.

No locks: a signal handler may end the run while its own thread is inside `add`. The bytes that wait are counted per
thread, as in `recorder/_backpressure.py`. At the end of a run the thread and the closing thread may both want to finish
a job; the first one that claims it does.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from tachograph._base.guard import guard, reraise_from_signal_handler, suppress
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.settings import Settings
from tachograph._base.threads import TelemetryThread
from tachograph.journal import RunFolder
from tachograph.media._snapshots import FileAt, SnapshotError, memory_bytes, snapshot, wrap_bare
from tachograph.media._values import ExponentCounts, File, Histogram, MediaValue

__all__ = ["MediaRecorder", "RecordsMedia"]

MAX_ITEMS = 64
MAX_CALL_BYTES = 100 << 20
_NICENESS = 5
_POLL_S = 0.05
_LAST_FILE_S = 0.5
"""How long the end of a run waits for the file that is being written when its time is over."""
_LARGE_FILE_BYTES = 16 << 20
_MAX_REPORTED = 20
_MAX_PROBLEM_CHARS = 500


class RecordsMedia(Protocol):
    """The run, as far as media needs it."""

    folder: RunFolder | None

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        ...

    def add_record(self, event: str, fields: dict[str, Any]) -> None:
        """Add a record other than a step."""
        ...

    def report_error(self, kind: str, field: str, reason: str) -> None:
        """Record a fault of telemetry itself."""
        ...

    def count_loss(self, reason: str) -> None:
        """Count a record that was lost."""
        ...


class _MediaJob:
    """One `media` record, or the histograms of one call."""

    __slots__ = ("claims", "kind", "name", "num_bytes", "num_dropped", "step", "values")

    def __init__(self, kind: str, name: str, values: Any, *, num_dropped: int, step: Any, num_bytes: int) -> None:
        self.kind = kind
        self.name = name
        self.values = values
        self.num_dropped = num_dropped
        self.step = step
        self.num_bytes = num_bytes
        self.claims: dict[str, object] = {}

    def claim(self) -> bool:
        """Return True to the first caller: it writes the record."""
        token = object()
        return self.claims.setdefault("record", token) is token

    @property
    def num_items(self) -> int:
        """How many items the job had when it was logged."""
        return len(self.values) + self.num_dropped


class MediaRecorder:
    """Takes the media of a run from `log` to its files and records."""

    def __init__(self, run: RecordsMedia) -> None:
        self._run = run
        settings = run.settings
        self._max_queue_bytes = settings.media_queue_mb << 20
        self._queue: queue.SimpleQueue[_MediaJob | None] = queue.SimpleQueue()
        self._added_bytes: dict[int, int] = {}  # by thread
        self._removed_bytes = 0
        self._num_added: dict[int, int] = {}  # by thread
        self._num_finished = 0
        self._current_jobs: list[_MediaJob] = []
        """The job that the thread works on, and a smaller one that it does meanwhile."""
        self._large_jobs: deque[_MediaJob] = deque()
        """Jobs with large files that had to wait for another one."""
        self._thread: TelemetryThread | None = None
        self._has_ended = ReentrantEvent()
        self._is_closing = False
        self._is_closed = False
        self._worker: Any = None
        self._reported_problems: set[str] = set()

    @property
    def num_pending(self) -> int:
        """How many records wait for the media thread, with the one that it works on; 0 once the rest was counted."""
        return 0 if self._is_closed else sum(list(self._num_added.values())) - self._num_finished

    # On any thread -------------------------------------------------------------------------------------------------

    def add(self, media: Mapping[str, Any], step: Any) -> None:
        """Copy media and queue it.

        Args:
            media: a value, or a list of values, by name.
            step: the step of the records, or a `LazyValue` of it.
        """
        histograms: dict[str, Histogram] = {}
        for name, value in media.items():
            values = [value] if not isinstance(value, (list, tuple)) else list(value)
            if values and isinstance(values[0], Histogram):
                histograms[name] = values[0]
                if len(values) > 1:
                    num_others = len(values) - 1
                    self._report(name, f"a histogram is logged alone; {num_others} other ones were not recorded")
                continue
            with guard("logging media", lambda _operation, _fault: self._run.count_loss("a fault inside telemetry")):
                self._add_values(name, values, step)
        if histograms:
            with guard("logging histograms"):
                self._add_histograms(histograms, step)

    def _add_values(self, name: str, values: list[Any], step: Any) -> None:
        wrapped_values = [item for item in map(wrap_bare, values) if item is not None]
        kind = wrapped_values[0].kind
        num_others = sum(item.kind != kind for item in wrapped_values) + len(values) - len(wrapped_values)
        if num_others:
            self._report(name, f"a list of media holds {kind} items only; {num_others} other ones were not recorded")
        same_kind = [item for item in wrapped_values if item.kind == kind]
        fitting = same_kind[:MAX_ITEMS]
        if len(same_kind) > MAX_ITEMS:
            self._report(name, f"{len(same_kind)} items in one call; the first {MAX_ITEMS} were recorded")
        num_dropped = len(values) - len(fitting)
        num_bytes = sum(map(_bytes_of, fitting))
        reason = self._reason_to_drop(num_bytes)
        if reason:
            self.drop(name, kind, len(values), reason, step)
            return
        copies = [_snapshot_or_problem(item) for item in fitting]
        self._enqueue(_MediaJob(kind, name, copies, num_dropped=num_dropped, step=step, num_bytes=num_bytes))

    def _add_histograms(self, histograms: dict[str, Histogram], step: Any) -> None:
        num_bytes = sum(map(_bytes_of, histograms.values()))
        reason = self._reason_to_drop(num_bytes)
        if reason:
            self._run.count_loss(reason)
            self._report(next(iter(histograms)), reason, is_counted=True)
            return
        copies = {name: _snapshot_or_problem(value) for name, value in histograms.items()}
        self._enqueue(_MediaJob("histograms", "", copies, num_dropped=0, step=step, num_bytes=num_bytes))

    def _reason_to_drop(self, num_bytes: int) -> str:
        if num_bytes > MAX_CALL_BYTES:
            return f"media of {num_bytes >> 20} MB in one call; at most {MAX_CALL_BYTES >> 20} MB are recorded"
        waiting_bytes = sum(list(self._added_bytes.values())) - self._removed_bytes
        if waiting_bytes + num_bytes > self._max_queue_bytes:
            return f"the media queue was full ({self._max_queue_bytes >> 20} MB); see media_queue_mb"
        return ""

    def drop(self, name: str, kind: str, num_items: int, reason: str, step: Any) -> None:
        """Count media that is not recorded, and record the gap."""
        self._run.count_loss(reason)
        if kind == ExponentCounts.kind:
            return  # histograms have no gaps
        fields = {"name": name, "kind": kind, "items": [], "num_dropped": num_items, "reason": reason}
        self._run.add_record("media", {"global_step": step, **fields})

    def _enqueue(self, job: _MediaJob) -> None:
        thread = threading.get_ident()
        self._added_bytes.setdefault(thread, 0)
        self._added_bytes[thread] += job.num_bytes
        self._num_added.setdefault(thread, 0)
        self._num_added[thread] += 1
        if self._run.folder is None:  # in memory, such as in a test of a user: without a thread
            self._process(job)
            return
        self._queue.put(job)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        thread = TelemetryThread(self._work, name="tachograph-media")
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or has no more threads
            self._thread = None
            raise

    def _report(self, name: str, reason: str, *, is_counted: bool = False) -> None:
        """Record a problem of media, once for each name and reason; count it if there were too many.

        Args:
            name: the name of the media.
            reason: the problem.
            is_counted: whether it was counted as a loss.
        """
        problem = f"{name}: {reason}"
        if problem in self._reported_problems:
            return
        if len(self._reported_problems) >= _MAX_REPORTED:
            if not is_counted:
                self._run.count_loss(f"problems of media after the first {_MAX_REPORTED}")
            return
        self._reported_problems.add(problem)
        self._run.report_error("media_not_stored", name, reason)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was logged so far is stored; return False if the timeout came first."""
        deadline_s = time.monotonic() + timeout_s
        num_added = sum(list(self._num_added.values()))
        while (
            self._num_finished < num_added and self._thread is not None and threading.current_thread() != self._thread
        ):
            if time.monotonic() >= deadline_s or self._has_ended.wait(min(_POLL_S, timeout_s)):
                break
        return self._num_finished >= num_added

    def close(self, timeout_s: float) -> None:
        """Store everything within a time limit; count and record the rest as missing. May be called again."""
        thread = self._thread
        if thread is None or threading.current_thread() is thread:
            return
        deadline_s = time.monotonic() + timeout_s
        self._queue.put(None)
        while not self._has_ended.is_set() and time.monotonic() < deadline_s:
            self._has_ended.wait(min(deadline_s - time.monotonic(), _POLL_S))
        self._is_closing = True
        if self._worker is not None and not self._has_ended.is_set():
            self._worker.close(_LAST_FILE_S)
        missing_jobs = [*self._current_jobs, *self._large_jobs]
        with suppress(queue.Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    missing_jobs.append(job)
        for job in missing_jobs:
            if job.claim():
                self._drop_job(job, "the run ended before it was stored; see exit_timeout_s")
        self._is_closed = True

    def forget(self) -> None:
        """In a forked child: leave everything to the parent."""
        self._thread = None
        self._queue = queue.SimpleQueue()
        self._current_jobs = []
        self._large_jobs = deque()

    def _drop_job(self, job: _MediaJob, reason: str) -> None:
        if job.kind == "histograms":
            self._run.count_loss(reason)
        else:
            self.drop(job.name, job.kind, job.num_items, reason, job.step)

    # The thread ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with guard("importing Pillow"):
            _import_encoders()
        _lower_priority()  # not before: a fork waits for imports
        try:
            while not self._is_closing:
                job = self._large_jobs.popleft() if self._large_jobs else self._queue.get()
                if job is None:
                    break
                self._process(job)
                del job  # its copies
        except BaseException as fault:  # noqa: BLE001 - in strict mode; the test that caused it will see it
            guard.report("storing media", fault)
        finally:
            self._has_ended.set()

    def _process_small_jobs(self) -> None:
        """Do what waits behind a large file, without other large files. Called between the blocks of any file."""
        if len(self._current_jobs) != 1 or not _has_large_file(self._current_jobs[0]):
            return
        with suppress(queue.Empty):
            while not self._is_closing:
                job = self._queue.get_nowait()
                if job is None:
                    self._queue.put(None)
                    return
                if _has_large_file(job):
                    self._large_jobs.append(job)
                else:
                    self._process(job)

    def _process(self, job: _MediaJob) -> None:
        self._current_jobs.append(job)
        try:
            with guard("storing media", lambda _operation, fault: self._fail(job, fault)):
                self._record(job)
        finally:
            self._current_jobs.remove(job)
            self._removed_bytes += job.num_bytes
            self._num_finished += 1

    def _record(self, job: _MediaJob) -> None:
        if self._worker is None:
            from tachograph.media._worker import MediaWorker  # imports what only the thread needs

            self._worker = MediaWorker(self._run, self._process_small_jobs)
            if self._is_closing:
                self._worker.close(0.0)
        try:
            event, fields, problems = self._worker.build(job)
        except OSError as error:
            reason = f"{error.strerror or type(error).__name__} while storing media"
            if job.claim():
                self._drop_job(job, reason)
                self._report(job.name, reason, is_counted=True)
            return
        for name, problem in problems:
            self._report(name, problem, is_counted="reason" in fields)
        if not fields:
            return
        if job.claim():
            self._run.add_record(event, fields)

    def _fail(self, job: _MediaJob, fault: Exception) -> None:
        if job.claim():
            self._drop_job(job, f"{type(fault).__name__}: {fault}"[:500])


class Problem(MediaValue):
    """Takes the place of a value that could not be copied."""

    kind = "problem"


def _has_large_file(job: _MediaJob) -> bool:
    return job.kind == File.kind and any(
        isinstance(value.data, FileAt) and value.data.size_bytes > _LARGE_FILE_BYTES for value in job.values
    )


def _bytes_of(value: MediaValue) -> int:
    try:
        return memory_bytes(value)
    except Exception as error:  # noqa: BLE001 - data of any library, whose attributes may raise
        reraise_from_signal_handler(error)
        return 0


def _snapshot_or_problem(value: MediaValue) -> MediaValue:
    try:
        return snapshot(value)
    except SnapshotError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - as above
        reraise_from_signal_handler(error)
        reason = f"{type(error).__name__}: {error}"[:_MAX_PROBLEM_CHARS]
    problem = Problem(reason, value.caption, {})
    problem.meta, problem.index, problem.joined_step = dict(value.meta), value.index, value.joined_step
    return problem


def _import_encoders() -> None:
    import gzip  # noqa: F401
    import wave  # noqa: F401

    import numpy as np  # noqa: F401
    from PIL import Image, features  # noqa: F401

    import tachograph.media._worker  # noqa: F401

    Image.init()
    with suppress(ImportError):
        import av  # noqa: F401


def _lower_priority() -> None:
    """Let the training go first. Only Linux has priorities of threads."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
