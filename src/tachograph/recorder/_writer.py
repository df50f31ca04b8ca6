"""The writer thread: drains the buffer, builds records, encodes them and appends them to the journal.

One tick, every `flush_interval_s` or when woken: look after the files (are they in place, is a heartbeat or a poll of
`control.json` due), then drain the buffer in chunks. A chunk is small, because encoding holds the interpreter lock and
the training thread would wait for it.

The training thread and the writer share only the buffer, a deque whose `append` and `popleft` are atomic. Nothing here
takes a lock that the training thread could wait for. A fault in building or encoding costs one record: the chunk is
retried item by item, the loss is counted, and the count is itself recorded.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tachograph._base.clock import Clock, WallAnchor
from tachograph._base.guard import guard
from tachograph.recorder._buffer_items import BufferItem, FlushMarker, ItemHandler, PendingRecord
from tachograph.recorder._files import Files, ReportError
from tachograph.recorder._live_diagnostics import LiveDiagnostics
from tachograph.recorder._losses import LossCounter
from tachograph.recorder._record_builder import RecordBuilder
from tachograph.recorder._system import memory_fields
from tachograph.records import Encodable, StepTable, encode
from tachograph.settings import Settings

__all__ = ["Writer"]

_CHUNK_SIZE = 256
"""Items encoded in one go; bounds how long the interpreter lock is held."""

_RESERVE = 1024
"""Items beyond `buffer_size` that are accepted for records other than steps."""

_LAST_CATCH_UP_S = 1.0
"""How long the end of a run waits for the CSV mirror. The journal is complete then, so a longer wait gains nothing."""

_HEARTBEAT_S = 5.0
_CHECK_S = 1.0
_ATTACH_S = 1.0
_COLLECT_S = 0.9
"""With a tick every half second, collected data is written after one second at most."""


class Writer:
    """Moves items from the buffer into the files."""

    def __init__(
        self,
        make_files: Callable[[ReportError, Callable[[], None]], Files],
        settings: Settings,
        builder: RecordBuilder,
        anchor: WallAnchor,
        clock: Clock,
    ) -> None:
        """Prepare the writer; `start` starts its thread.

        Args:
            make_files: opens the files, given a function that reports a fault, and one to call during a long task.
            settings: the settings of the run.
            builder: builds records from buffer items.
            anchor: converts steady readings into wall times.
            clock: the clock of the run.
        """
        self._settings = settings
        self._builder = builder
        self._anchor = anchor
        self._clock = clock
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # unlike an Event, safe to use in a signal handler
        self.files = make_files(self._report_error, self._write_buffer)
        self._separators: dict[tuple[str, ...], list[bytes]] = {}
        self._due_s: dict[str, float] = {}
        self._stopping = False
        self._written_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="tachograph-writer", daemon=True)
        self.diagnostics: LiveDiagnostics | None = None
        self.collect: Callable[[], None] = lambda: None
        """Polls the collectors of the run."""
        self.poll_controls: Callable[[], None] = lambda: None
        self.divert_training: Callable[[], None] = lambda: None
        """Makes the next `log` take the slow path."""
        self.log_every: Callable[[], int] = lambda: settings.log_every
        self.buffer: deque[BufferItem] = deque()
        self.losses = LossCounter()
        self.drained_s = 0.0
        """When items were last taken from the buffer; a caller that finds it full checks whether we are working."""

        self.busy_s = 0.0
        """CPU time spent on items so far, without the periodic tasks."""
        self.num_items = 0
        """Items taken from the buffer so far."""

    def start(self) -> None:
        """Start the thread."""
        self.files.beat()
        self._thread.start()

    @property
    def saw_array(self) -> bool:
        """Whether an array arrived that its owner could still change; `log` copies arrays from then on."""
        return self._builder.saw_array

    def add_handler(self, types: Iterable[type], handler: ItemHandler, *, deferrable: Iterable[type] = ()) -> None:
        """Register the handler of item types that a layer above puts into the buffer."""
        self._builder.add_handler(types, handler, deferrable=deferrable)

    def add_record(self, event: str, fields: dict[str, Any]) -> None:
        """Queue a record other than a step."""
        if not self.put(PendingRecord(self._clock.steady_s(), event, fields), force=event == "end"):
            self.losses.add("the buffer was full")

    def put(self, item: BufferItem, *, force: bool = False) -> bool:
        """Queue an item unless the buffer is full; return whether it was queued. The caller counts a loss."""
        if len(self.buffer) >= self._settings.buffer_size + _RESERVE and not force:
            return False
        self.buffer.append(item)
        return True

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a reading of the steady clock."""
        return self._anchor.wall_s(steady_s)

    def wake(self) -> None:
        """Start the next tick at once."""
        if self._wake.qsize() < 2:
            self._wake.put(True)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything logged so far is in the file; return False if the timeout came first."""
        if threading.current_thread() is self._thread:
            return False
        marker = FlushMarker()
        self.buffer.append(marker)
        self._wake.put(True)
        return marker.written.wait(max(timeout_s, 0.0)) and not self.files.has_pending

    def close(self, timeout_s: float) -> bool:
        """Write everything, close the files and end the thread; return whether the journal has every record in time."""
        self._stopping = True
        self._wake.put(True)
        if threading.current_thread() is not self._thread:
            deadline_s = time.monotonic() + timeout_s
            while self._thread.is_alive() and time.monotonic() < deadline_s:
                # Short waits instead of an Event, which a signal handler that gets here again would block on.
                self._thread.join(min(deadline_s - time.monotonic(), 0.1))
                if self._written_s is not None:  # only the mirror is left, and it has a process to complete it
                    deadline_s = min(deadline_s, self._written_s + 2 * _LAST_CATCH_UP_S)
        return self._written_s is not None and not self.files.has_pending and not self.files.is_lost

    def abandon(self) -> None:
        """In a forked child: the thread and the files belong to the parent."""
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
            for item in self.buffer:
                if type(item) is FlushMarker:
                    item.written.set()
            self.files.release()

    def _tick(self) -> None:
        with guard("maintaining the run folder"):
            self._maintain()
        self._write([])
        self._write_buffer()
        self._report_losses()
        self.files.catch_up(budget_s=0.1 * self._settings.flush_interval_s)

    def _last_tick(self) -> None:
        with guard("maintaining the run folder"):
            self.files.check()
        self._write_buffer()
        self._write(self._builder.finish())
        self._report_losses()
        self._write_buffer()
        deadline_s = time.monotonic() + self._settings.exit_timeout_s
        while self.files.has_pending and time.monotonic() < deadline_s:
            time.sleep(0.05)
            self._write([])
            self._write_buffer()
        with guard("maintaining the run folder"):
            self.files.check()
            self._write_buffer()
        self._written_s = time.monotonic()
        self.files.catch_up(budget_s=min(deadline_s - time.monotonic(), _LAST_CATCH_UP_S), force=True)
        self._write_buffer()  # a fault of the mirror
        self._beat()
        self.files.close()

    def _write_buffer(self) -> None:
        buffer = self.buffer
        for _ in range(len(buffer) // _CHUNK_SIZE + 1):
            chunk = [buffer.popleft() for _ in range(min(len(buffer), _CHUNK_SIZE))]
            if not chunk:
                return
            self.num_items += len(chunk)
            if self._is_due("attach", _ATTACH_S):
                with guard("reading the memory in use"):
                    self._builder.attach = memory_fields()
            if self.diagnostics is not None and any(type(item) is tuple for item in chunk):
                self.diagnostics.on_progress()
            start_s = time.thread_time()
            try:
                self._write(self._build(chunk))
                self.busy_s += time.thread_time() - start_s
                if self._builder.saw_array:
                    self.divert_training()
            finally:
                self.drained_s = time.monotonic()
                for item in chunk:
                    if type(item) is FlushMarker:
                        item.written.set()

    def _build(self, chunk: list[BufferItem]) -> list[Encodable]:
        """Build the records of a chunk; if that fails, of each item by itself, so that a fault costs one record.

        Items of a handler may be handled twice then, so a handler catches the faults of its own items.
        """
        try:
            return self._builder.process(chunk)
        except Exception:  # noqa: BLE001 - counted below, for the item that causes it
            records: list[Encodable] = []
            for item in chunk:
                try:
                    records += self._builder.process([item])
                except Exception as fault:  # noqa: BLE001
                    self._count_fault(fault)
            return records

    def _encode(self, records: list[Encodable]) -> tuple[bytes, list[Encodable]]:
        lines: list[bytes] = []
        kept: list[Encodable] = []
        for record in records:
            try:
                lines.append(
                    record.lines(self._separators) if isinstance(record, StepTable) else encode(record) + b"\n"
                )
                kept.append(record)
            except Exception as fault:  # noqa: BLE001 - such as a number of ten thousand digits
                self._count_fault(fault)
        return b"".join(lines), kept

    def _count_fault(self, fault: Exception) -> None:
        self.losses.add(f"a record could not be built: {type(fault).__name__}: {fault!s:.200}")

    def _write(self, records: list[Encodable]) -> None:
        if self.diagnostics is not None and records:
            records = self.diagnostics.observe(records, self.files.folder.path)
            self._check_diagnostics(self.diagnostics)
        data, kept = self._encode(records)
        num_dropped = self.files.append(data, kept)
        if num_dropped:
            self.losses.add("the disk could not be written", num_dropped)

    def _check_diagnostics(self, diagnostics: LiveDiagnostics) -> None:
        if diagnostics.fault:
            self.diagnostics = None
            self._report_error("diagnosis_stopped", "rules", reason=diagnostics.fault)

    def _report_error(self, kind: str, field: str, **more: Any) -> None:
        self.add_record("telemetry_error", {"kind": kind, "field": field, **more})

    def _report_losses(self) -> None:
        for reason, num_records in self.losses.drain().items():
            self.add_record("telemetry_error", {"kind": "records_lost", "num_records": num_records, "reason": reason})

    def _maintain(self) -> None:
        if self._is_due("check", _CHECK_S):
            jump_s = self._anchor.follow()
            if jump_s is not None:
                self.add_record("event", {"name": "clock_set", "jump_s": round(jump_s, 3)})
            self.files.check()
        if self.diagnostics is not None and self._is_due("diagnose", _CHECK_S):
            self._write(self.diagnostics.tick(self._anchor.wall_s(self._clock.steady_s()), self.files.folder.path))
        if self._is_due("collect", _COLLECT_S):
            with guard("collecting"):
                self.collect()
        if self._is_due("heartbeat", _HEARTBEAT_S):
            self._beat()
        if self._settings.control_interval_s and self._is_due("control", self._settings.control_interval_s):
            self.files.ensure_control_file(self.log_every())
            self.poll_controls()

    def _beat(self) -> None:
        num_alerts = self.diagnostics.num_open if self.diagnostics is not None else (0, 0)
        self.files.beat(num_waiting=len(self.buffer), num_dropped=self.losses.num_records, num_alerts=num_alerts)

    def _is_due(self, task: str, interval_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_s.get(task, 0.0):
            return False
        self._due_s[task] = now_s + interval_s
        return True
