"""The writer: one thread that takes what waits in the buffer, makes records of it and appends them.

Everything slow happens here and nowhere else. The training thread only appends to `buffer`, which it never waits for.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tachograph._base.clock import Clock, WallAnchor
from tachograph._base.guard import guard
from tachograph.recorder._buffer_items import BufferItem, FlushMarker, PendingRecord
from tachograph.recorder._files import Files, Tell
from tachograph.recorder._live_diagnostics import LiveDiagnostics
from tachograph.recorder._record_builder import Encodable, RecordBuilder
from tachograph.recorder._system import memory_fields
from tachograph.records import StepTable, encode
from tachograph.settings import Settings

__all__ = ["LossCounter", "Writer"]

_CHUNK = 256
"""Entries encoded in one go; bounds how long the interpreter is held."""

_HEARTBEAT_S = 5.0
_CHECK_S = 1.0
_ATTACH_S = 1.0
_GATHER_S = 0.9
"""With a look every half second, what was collected is written after a second at most."""


class LossCounter:
    """Counts what could not be kept, from any thread."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may log while its own thread is in here.
        self._lock = threading.RLock()
        self._unreported: dict[str, int] = {}
        self.num_records = 0

    def add(self, reason: str, num_records: int = 1) -> None:
        """Count lost records."""
        with self._lock:
            self.num_records += num_records
            self._unreported[reason] = self._unreported.get(reason, 0) + num_records

    def drain(self) -> dict[str, int]:
        """Return what was not reported yet."""
        if not self._unreported:
            return {}
        with self._lock:
            unreported, self._unreported = self._unreported, {}
        return unreported


class Writer:
    """Takes entries from the buffer and sees them into the files."""

    def __init__(
        self,
        make_files: Callable[[Tell, Callable[[], None]], Files],
        settings: Settings,
        pipeline: RecordBuilder,
        anchor: WallAnchor,
        clock: Clock,
    ) -> None:
        """Get ready.

        Args:
            make_files: makes what is written to, given how it tells of a fault, and what it calls during a long task.
            settings: those of the run.
            pipeline: makes records of entries.
            anchor: tells the wall time.
            clock: tells the time.
        """
        self._settings = settings
        self._pipeline = pipeline
        self._anchor = anchor
        self._clock = clock
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # unlike an Event, safe to use in a signal handler
        self.files = make_files(self._tell, self._write_waiting)
        self._glue: dict[tuple[str, ...], list[bytes]] = {}
        self._due: dict[str, float] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tachograph-writer", daemon=True)
        self.examiner: LiveDiagnostics | None = None
        self.collect: Callable[[], None] = lambda: None
        """Asks those who collect by themselves what they have."""
        self.poll_controls: Callable[[], None] = lambda: None
        self.call_trainer: Callable[[], None] = lambda: None
        self.log_every: Callable[[], int] = lambda: settings.log_every
        self.buffer: deque[BufferItem] = deque()
        self.losses = LossCounter()
        self.drained_s = 0.0
        """When entries were last taken from the buffer; a caller with a full buffer looks whether we are at work."""

    def start(self) -> None:
        """Begin to write."""
        self.files.beat()
        self._thread.start()

    @property
    def saw_array(self) -> bool:
        """Whether something came in that its owner could still change; `log` is more careful from then on."""
        return self._pipeline.saw_array

    def add_record(self, event: str, fields: dict[str, Any]) -> None:
        """Queue a record that is not a step."""
        if not self.put(PendingRecord(self._clock.steady_s(), event, fields), must=event == "end"):
            self.losses.add("the buffer was full")

    def put(self, entry: BufferItem, *, must: bool = False) -> bool:
        """Queue any entry, unless the buffer is full; return whether it was queued, and leave it to count a loss."""
        if len(self.buffer) >= self._settings.buffer_size + 1024 and not must:
            return False
        self.buffer.append(entry)
        return True

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a reading of the steady clock."""
        return self._anchor.wall_s(steady_s)

    def wake(self) -> None:
        """Make the writer look at once."""
        if self._wake.qsize() < 2:
            self._wake.put(True)

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was logged so far is in the file; return False if that took longer than the time given."""
        if threading.current_thread() is self._thread:
            return False
        mark = FlushMarker()
        self.buffer.append(mark)
        self._wake.put(True)
        return mark.written.wait(max(timeout_s, 0.0)) and not self.files.has_pending

    def close(self, timeout_s: float) -> bool:
        """Write everything, close the files and end the thread; return False if the deadline came first."""
        self._stopping = True
        self._wake.put(True)
        if threading.current_thread() is not self._thread:
            self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive() and not self.files.has_pending and not self.files.is_lost

    def abandon(self) -> None:
        """In a forked child: the thread and the files are the parent's."""
        self.buffer.clear()
        self.files.abandon()

    # The thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=self._settings.flush_interval_s)
                with guard("writing the journal"):
                    self._tick()
            with guard("closing the journal"):
                self._last_tick()
        except BaseException as fault:  # noqa: BLE001 - in strict mode; the test that caused it will see it
            guard.report("writing the journal", fault)
        finally:
            for entry in self.buffer:
                if type(entry) is FlushMarker:
                    entry.written.set()
            self.files.release()

    def _tick(self) -> None:
        with guard("looking after the run folder"):
            self._look_after()
        self._write([])
        self._write_waiting()
        self._report_losses()
        self.files.catch_up(budget_s=0.1 * self._settings.flush_interval_s)

    def _last_tick(self) -> None:
        with guard("looking after the run folder"):
            self.files.check()
        self._write_waiting()
        self._write(self._pipeline.finish())
        self._report_losses()
        self._write_waiting()
        deadline_s = time.monotonic() + self._settings.exit_timeout_s
        while self.files.has_pending and time.monotonic() < deadline_s:
            time.sleep(0.05)
            self._write([])
            self._write_waiting()
        with guard("looking after the run folder"):
            self.files.check()
            self._write_waiting()
        self.files.catch_up(budget_s=deadline_s - time.monotonic(), force=True)
        self._beat()
        self.files.close()

    def _write_waiting(self) -> None:
        buffer = self.buffer
        for _ in range(len(buffer) // _CHUNK + 1):
            chunk = [buffer.popleft() for _ in range(min(len(buffer), _CHUNK))]
            if not chunk:
                return
            if self._is_due("attach", _ATTACH_S):
                with guard("reading the memory in use"):
                    self._pipeline.attach = memory_fields()
            if self.examiner is not None and any(type(entry) is tuple for entry in chunk):
                self.examiner.see_progress()
            try:
                self._write(self._records(chunk))
                if self._pipeline.saw_array:
                    self.call_trainer()
            finally:
                self.drained_s = time.monotonic()
                for entry in chunk:
                    if type(entry) is FlushMarker:
                        entry.written.set()

    def _records(self, chunk: list[BufferItem]) -> list[Encodable]:
        """Make records of a chunk; if that fails, of each entry by itself, so that a fault costs one record."""
        try:
            return self._pipeline.process(chunk)
        except Exception:  # noqa: BLE001 - told below, for the entry that causes it
            pieces: list[Encodable] = []
            for entry in chunk:
                try:
                    pieces += self._pipeline.process([entry])
                except Exception as fault:  # noqa: BLE001
                    self._lost_one(fault)
            return pieces

    def _encoded(self, pieces: list[Encodable]) -> tuple[bytes, list[Encodable]]:
        lines: list[bytes] = []
        kept: list[Encodable] = []
        for piece in pieces:
            try:
                lines.append(piece.lines(self._glue) if isinstance(piece, StepTable) else encode(piece) + b"\n")
                kept.append(piece)
            except Exception as fault:  # noqa: BLE001 - such as a number of ten thousand digits
                self._lost_one(fault)
        return b"".join(lines), kept

    def _lost_one(self, fault: Exception) -> None:
        self.losses.add(f"a record could not be made: {type(fault).__name__}: {fault!s:.200}")

    def _write(self, pieces: list[Encodable]) -> None:
        if self.examiner is not None and pieces:
            pieces = self.examiner.examine(pieces, self.files.folder.path)
            self._report_examiner(self.examiner)
        data, kept = self._encoded(pieces)
        num_dropped = self.files.append(data, kept)
        if num_dropped:
            self.losses.add("the disk could not be written", num_dropped)

    def _report_examiner(self, examiner: LiveDiagnostics) -> None:
        if examiner.fault:
            self.examiner = None
            self._tell("diagnosis_stopped", "rules", reason=examiner.fault)

    def _tell(self, kind: str, field: str, **more: Any) -> None:
        self.add_record("telemetry_error", {"kind": kind, "field": field, **more})

    def _report_losses(self) -> None:
        for reason, num_records in self.losses.drain().items():
            self.add_record("telemetry_error", {"kind": "records_lost", "num_records": num_records, "reason": reason})

    def _look_after(self) -> None:
        if self._is_due("check", _CHECK_S):
            jump_s = self._anchor.follow()
            if jump_s is not None:
                self.add_record("event", {"name": "clock_set", "jump_s": round(jump_s, 3)})
            self.files.check()
        if self.examiner is not None and self._is_due("examine", _CHECK_S):
            self._write(self.examiner.tick(self._anchor.wall_s(self._clock.steady_s()), self.files.folder.path))
        if self._is_due("gather", _GATHER_S):
            with guard("recording what was collected"):
                self.collect()
        if self._is_due("heartbeat", _HEARTBEAT_S):
            self._beat()
        if self._settings.control_interval_s and self._is_due("control", self._settings.control_interval_s):
            self.files.ensure_control_file(self.log_every())
            self.poll_controls()

    def _beat(self) -> None:
        num_alerts = self.examiner.num_open if self.examiner is not None else (0, 0)
        self.files.beat(num_waiting=len(self.buffer), num_dropped=self.losses.num_records, num_alerts=num_alerts)

    def _is_due(self, what: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due.get(what, 0.0):
            return False
        self._due[what] = now_s + every_s
        return True
