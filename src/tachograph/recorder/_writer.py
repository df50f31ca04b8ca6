"""The writer thread: drains the buffer, builds records, encodes them and appends them to the journal.

One tick, every `flush_interval_s` or when woken: look after the files (are they in place, is a heartbeat or a poll of
`control.json` due), then drain the buffer in chunks. A chunk is small, because encoding holds the interpreter lock and
the training thread would wait for it. On a fast disk each chunk is written by itself, so that little is lost with a
killed process. On a slow one chunks are collected for as long as the last write took, so that the number of writes
follows the speed of the disk and not the number of records.

The training thread and the writer share only the buffer, a deque whose `append` and `popleft` are atomic;
`Backpressure` bounds it. Nothing here takes a lock that the training thread could wait for. A fault in building or
encoding costs one record: the chunk is retried item by item, the loss is counted, and the count is itself recorded.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tachograph._base import ranks
from tachograph._base.clock import Clock, WallAnchor
from tachograph._base.guard import guard, suppress
from tachograph._base.mesh import mesh_coordinates
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.settings import Settings
from tachograph._base.threads import TelemetryThread
from tachograph.black_box import BlackBox
from tachograph.diagnostics import HangLimits, HangThresholds, RuleSettings
from tachograph.journal import read_rank_map, write_rank_map
from tachograph.recorder._activity import Activity, ActivityObserver
from tachograph.recorder._backpressure import Backpressure
from tachograph.recorder._buffer_items import (
    LARGE_STEP_BYTES,
    BufferItem,
    FlushMarker,
    ItemHandler,
    LargeItem,
    PendingRecord,
    size_bytes,
)
from tachograph.recorder._files import Files, ReportError, WriterState
from tachograph.recorder._hang_stacks import HangStacks
from tachograph.recorder._live_diagnostics import LiveDiagnostics
from tachograph.recorder._losses import LossCounter
from tachograph.recorder._rank_monitor import RankMonitor, explain_end, is_consequence, own_status
from tachograph.recorder._record_builder import RecordBuilder
from tachograph.recorder.collectors.system import memory_fields
from tachograph.records import RANK_MESH, Encodable, StepTable, encode

__all__ = ["Writer"]

_CHUNK_SIZE = 256
_CHUNK_BYTES = 512 << 10
"""Items, and bytes of large items, that are encoded in one go; bounds how long the interpreter lock is held."""

_MAX_BATCH_BYTES = 8 << 20
_MIN_PEEK_INTERVAL_S = 0.1
_NUM_PEEKED_ITEMS = 8
_MAX_TICK_S = 0.5
"""Half of the second that may be lost with a killed process; the other half is for writing."""

_LAST_CATCH_UP_S = 1.0
"""How long the end of a run waits for the CSV mirror. The journal is complete then, so a longer wait gains nothing."""

_FOLDER_POLL_S = 0.05
_MAX_FOLDER_WAIT_S = 5.0
_RETRY_SHARE = 0.8
_MAX_NEWS_WAIT_S = 5.0
_NEWS_POLL_S = 0.2
_HEARTBEAT_S = 5.0
_RANK_HEARTBEAT_S = 2.0
"""In a job of several ranks, heartbeats state what each rank is doing."""

_RANK_MAP_S = 20.0
_CHECK_S = 1.0
_MEMORY_S = 1.0
_COLLECT_S = 0.9
"""With a tick every half second, collected data is written after one second at most."""


def _no_position() -> tuple[int | None, str]:
    return None, ""


def _hang_thresholds(rules: Mapping[str, RuleSettings]) -> HangThresholds:
    thresholds = rules.get("rank_hang")
    return thresholds if isinstance(thresholds, HangThresholds) else HangThresholds()


class _Batch:
    """Encoded lines that are written together, their records, and the markers to set when they are in the file."""

    __slots__ = ("data", "markers", "num_bytes", "records")

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.num_bytes = 0
        self.records: list[Encodable] = []
        self.markers: list[FlushMarker] = []


class Writer:
    """Moves items from the buffer into the files."""

    def __init__(
        self,
        make_files: Callable[[ReportError, Callable[[], None]], Files],
        settings: Settings,
        builder: RecordBuilder,
        anchor: WallAnchor,
        clock: Clock,
        rules: Mapping[str, RuleSettings] | None = None,
    ) -> None:
        """Prepare the writer; `start` starts its thread.

        Args:
            make_files: opens the files, given a function that reports a fault, and one to call during a long task.
            settings: the settings of the run.
            builder: builds records from buffer items.
            anchor: converts steady readings into wall times.
            clock: the clock of the run.
            rules: thresholds by rule, of which a rank needs to know when it hangs.
        """
        self._settings = settings
        self._builder = builder
        self._anchor = anchor
        self._clock = clock
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # unlike an Event, safe to use in a signal handler
        self.files = make_files(self._report_error, self._write_buffer)
        self._batch = _Batch()
        self._last_write_took_s = 0.0
        self._last_write_at = 0.0
        self._peek_interval_s = _MIN_PEEK_INTERVAL_S
        self._due_at: dict[str, float] = {}
        self._stopping = False
        self._finished_at: float | None = None
        self._end: PendingRecord | None = None
        self._deadline_s = 0.0
        self._has_ended = ReentrantEvent()
        self._thread = TelemetryThread(self._run, name="tachograph-writer")
        self.diagnostics: LiveDiagnostics | None = None
        self.black_box: BlackBox | None = None
        self._thread_id = threading.get_ident()
        self._activity: ActivityObserver | None = None
        self._hang_stacks: HangStacks | None = None
        self._hang_thresholds = _hang_thresholds(rules or {})
        self._rank_monitor: RankMonitor | None = None
        self._last_error = ""
        self._mesh: dict[str, int] = {}
        self.loop_position: Callable[[], tuple[int | None, str]] = _no_position
        """Returns how many iterations are complete, and the phase of an open span such as a validation."""
        self.collective_wait: Callable[[float, float], tuple[float, int] | None] | None = None
        """Returns how long the rank waited in collectives between two times; see `Backend`."""
        self.last_collective: Callable[[], str] = lambda: ""
        """Returns the last collective that returned, with its number."""
        self.describe_collective: Callable[[str], str] = lambda name: name
        """Returns the call of a collective that the training thread is in, given the name of the function."""
        self.collect: Callable[[], None] = lambda: None
        """Polls the collectors of the run."""
        self.media_pending: Callable[[], int] = lambda: 0
        """Returns how many records of media are not stored yet."""
        self.poll_controls: Callable[[], None] = lambda: None
        self.divert_training: Callable[[], None] = lambda: None
        """Makes the next `log` take the slow path."""
        self.on_large_step: Callable[[], None] = lambda: None
        """Makes `log` count the bytes of its next steps."""
        self.log_every: Callable[[], int] = lambda: settings.log_every
        self.energy_kwh: dict[str, float] = {}
        """The energy counters of this rank, for its heartbeat; set by the sampler."""
        self.buffer: deque[BufferItem] = deque()
        self.losses = LossCounter()
        self.pressure = Backpressure(self.buffer, settings.buffer_size, clock.steady_s, self.wake)

    @property
    def last_step(self) -> int | None:
        """The latest step of which a record was built; None before the first one."""
        return self._builder.last_step

    def start(self) -> None:
        """Start the thread."""
        self.files.beat()
        self._due_at["ranks"] = time.monotonic() + _CHECK_S  # first the records: comparing ranks imports a lot
        self.pressure.note_progress()
        self._thread.start()
        self.pressure.writer_ident = self._thread.ident

    @property
    def is_late(self) -> bool:
        """Whether the writer cannot keep up."""
        return self.pressure.is_late

    @property
    def saw_array(self) -> bool:
        """Whether an array arrived that its owner could still change; `log` copies arrays from then on."""
        return self._builder.saw_array

    def add_handler(self, types: Iterable[type], handler: ItemHandler, *, deferrable: Iterable[type] = ()) -> None:
        """Register the handler of item types that a layer above puts into the buffer."""
        self._builder.add_handler(types, handler, deferrable=deferrable)

    def add_record(self, event: str, fields: dict[str, Any]) -> None:
        """Queue a record other than a step."""
        if event == "start":
            self._mesh = dict(fields.get("mesh") or {})
        elif event == "error":
            self._last_error = f"{fields.get('error_type')}: {fields.get('error_message')}"
        item = PendingRecord(self._clock.steady_s(), event, fields)
        if not self.put(item, num_bytes=size_bytes(fields)):
            self.losses.add("the buffer was full")

    def put(self, item: BufferItem, *, num_bytes: int = 0, force: bool = False) -> bool:
        """Queue an item unless the buffer is full; return whether it was queued. The caller counts a loss."""
        return self.pressure.add(item, num_bytes=num_bytes, force=force)

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
        deadline_s = time.monotonic() + timeout_s
        while not marker.written.wait(min(deadline_s - time.monotonic(), 0.1)):
            # The run may end before the marker is in the buffer, in a signal handler.
            if self._has_ended.is_set() or time.monotonic() >= deadline_s:
                return self._has_ended.is_set() and not self.buffer and not self.files.has_pending
        return not self.files.has_pending

    def close(self, timeout_s: float, end: dict[str, Any] | None = None) -> bool:
        """Write everything, close the files and end the thread; return whether the journal has every record in time.

        The thread adds the `end` record, because it ends only once: two calls, one of them in a signal handler that
        interrupted the other one, would write two of them or none.

        Args:
            timeout_s: how long to wait.
            end: the fields of the `end` record; the fields of the first call count.
        """
        if self._end is None and end is not None:
            self._end = PendingRecord(self._clock.steady_s(), "end", end)
        self._deadline_s = time.monotonic() + timeout_s
        self._stopping = True
        self._wake.put(True)
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            deadline_s = time.monotonic() + timeout_s
            while time.monotonic() < deadline_s and not self._has_ended.wait(min(deadline_s - time.monotonic(), 0.1)):
                if self._finished_at is not None:  # only the mirror is left, and it has a process to complete it
                    deadline_s = min(deadline_s, self._finished_at + 2 * _LAST_CATCH_UP_S)
        return self._finished_at is not None and not self.files.has_pending and not self.files.is_lost

    def abandon(self) -> None:
        """In a forked child: the thread and the files belong to the parent."""
        self.buffer.clear()
        self.files.abandon()

    # The thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wait()
                with guard("writing the journal"):
                    self._tick()
            with guard("closing the journal"):
                self._last_tick()
        except BaseException as fault:  # noqa: BLE001 - in strict mode; the test that caused it will see it
            guard.report("writing the journal", fault)
        finally:
            for item in (*self._batch.markers, *self.buffer):
                if type(item) is FlushMarker:
                    item.written.set()
            self.files.release()
            self.loop_position = _no_position  # its owner refers to the run
            self._has_ended.set()

    def _wait(self) -> None:
        """Wait for the next tick, with a look at the buffer now and then: large steps must not pile up until then.

        To wake up costs more than to look, so a loop of small steps is looked at more and more rarely.
        """
        tick_at = time.monotonic() + min(self._settings.flush_interval_s, _MAX_TICK_S)
        while (left_s := tick_at - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._wake.get(timeout=min(left_s, self._peek_interval_s))
                break
            if self._has_large_step():
                break
            if self.buffer:
                self._peek_interval_s = min(2 * self._peek_interval_s, _MAX_TICK_S)
        self.pressure.note_progress()

    def _has_large_step(self) -> bool:
        """Return whether one of the newest items is a large step, and divert `log` if so."""
        with suppress(IndexError):  # fewer items
            for position in range(1, _NUM_PEEKED_ITEMS + 1):
                if self._is_large(self.buffer[-position]):
                    return True
        return False

    def _is_large(self, item: BufferItem) -> bool:
        """Return whether an item is a large step that took the fast path, and divert `log` if so."""
        if type(item) is not tuple or size_bytes(item[2]) <= LARGE_STEP_BYTES:
            return False
        self._peek_interval_s = _MIN_PEEK_INTERVAL_S
        self.on_large_step()
        return True

    def _tick(self) -> None:
        with guard("maintaining the run folder"):
            self._maintain()
        box = self.black_box
        has_signal = box is not None and bool(box.signal_name)  # before the steps that the dump is to contain
        self._write([])
        self._write_buffer()
        if box is not None and has_signal:
            box.write_signal_dump()
            self._write_buffer()
        self._report_losses()
        if not self._stopping:  # or on a slow disk the mirror would take the time that the last records need
            with self.pressure.in_files():
                self.files.catch_up(budget_s=0.1 * self._settings.flush_interval_s)

    def _last_tick(self) -> None:
        if self._settings.ranks != "off" and ranks.world_size() > 1:
            self._record_mesh()  # of a run that has just started
        if self._end is not None:
            self._explain_end(self._end)
            self.buffer.append(self._end)
        self._write_buffer()
        with guard("maintaining the run folder"):
            self._check_files()
        self._write_buffer()
        self._write(self._builder.finish())
        # Another rank may be about to create the folder; half of the time is for writing elsewhere if it does not.
        now_s = time.monotonic()
        wait_until_s = now_s + min((self._deadline_s - now_s) / 2, _MAX_FOLDER_WAIT_S)
        while self.files.is_waiting and time.monotonic() < wait_until_s:
            time.sleep(_FOLDER_POLL_S)
            self._check_files()
        deadline_s = time.monotonic() + self._settings.exit_timeout_s
        # Not to the last moment: what is given up has to be counted while the end of the run waits for it.
        retry_until_s = time.monotonic() + _RETRY_SHARE * (self._deadline_s - time.monotonic())
        while self.files.has_pending and time.monotonic() < retry_until_s:
            time.sleep(0.05)
            self._write([])
            self._write_buffer()
        with guard("maintaining the run folder"):
            self._check_files()
            self._write_buffer()
            self._write_rank_map()
        if self.files.num_pending_lines:
            self.losses.add("the disk could not be written", self.files.num_pending_lines)
        self._report_losses()
        self._finished_at = time.monotonic()
        self.files.catch_up(budget_s=min(deadline_s - time.monotonic(), _LAST_CATCH_UP_S), force=True)
        self._write_buffer()  # a fault of the mirror
        self._beat()
        if self._hang_stacks is not None:
            self._hang_stacks.close()
        self.files.close()

    def _write_buffer(self) -> None:
        """Write the items that are in the buffer now."""
        num_items = len(self.buffer)
        with self.pressure.out_of_files():  # also called in the middle of a long task of the files
            try:
                while num_items > 0:
                    chunk, markers, num_bytes = self._take_chunk()
                    if not chunk and not markers:
                        break  # the call in the middle of a task has written the rest
                    num_items -= len(chunk) + len(markers)
                    self._batch.markers += markers
                    self._add_to_batch(chunk)
                    if self._is_batch_due():
                        self._write_batch()
                    self.pressure.finish_chunk(len(chunk), num_bytes)
                    if self._builder.saw_array or self.pressure.is_late:
                        self.divert_training()
            finally:  # whatever ended the loop: nothing stays in the batch
                self._write_batch()

    def _take_chunk(self) -> tuple[list[BufferItem], list[FlushMarker], int]:
        """Remove items from the buffer, few if they are large; return them, markers, and bytes of the large ones."""
        popleft = self.buffer.popleft
        chunk: list[BufferItem] = []
        markers: list[FlushMarker] = []
        num_items = min(len(self.buffer), _CHUNK_SIZE)
        num_bytes = 0
        while num_items > 0 and num_bytes < _CHUNK_BYTES:
            num_items -= 1
            item = popleft()
            if type(item) is FlushMarker:
                markers.append(item)
                continue
            if type(item) is LargeItem:
                num_bytes += item.num_bytes
                item = self.pressure.take(item)
            if not chunk:
                self.pressure.start_chunk(item)
                if self._is_large(item):
                    num_items = min(num_items, _CHUNK_BYTES // size_bytes(item[2]))
            chunk.append(item)
            while num_items > 0 and type(self.buffer[0]) is tuple:  # most items are
                num_items -= 1
                chunk.append(popleft())
        return chunk, markers, num_bytes

    def _add_to_batch(self, chunk: list[BufferItem]) -> None:
        if self._is_due("memory", _MEMORY_S):
            with guard("reading the memory in use"):
                self._builder.memory = memory_fields()
        if self.diagnostics is not None and any(type(item) is tuple for item in chunk):
            self.diagnostics.on_progress()
        built = self._build(chunk)
        if self.black_box is not None:  # before the rules, which may ask it for evidence
            self.black_box.on_records(built)
        data, records = self._encode(self._observe(built))
        self._batch.data.append(data)
        self._batch.num_bytes += len(data)
        self._batch.records += records

    def _is_batch_due(self) -> bool:
        is_amortised = time.monotonic() - self._last_write_at >= self._last_write_took_s
        return is_amortised or self._batch.num_bytes >= _MAX_BATCH_BYTES

    def _write_batch(self) -> None:
        """Append the collected lines to the journal."""
        if not self._batch.data and not self._batch.markers:
            return
        batch, self._batch = self._batch, _Batch()  # first: the mirror may let us write the buffer in between
        started_at = time.monotonic()
        try:
            self._append(b"".join(batch.data), batch.records)
        finally:
            self._last_write_at = time.monotonic()
            self._last_write_took_s = self._last_write_at - started_at
            self.pressure.note_written()
            for marker in batch.markers:
                marker.written.set()

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
        encodable: list[Encodable] = []
        for record in records:
            try:
                lines.append(record.lines if isinstance(record, StepTable) else encode(record) + b"\n")
                encodable.append(record)
            except Exception as fault:  # noqa: BLE001 - such as a number of ten thousand digits
                self._count_fault(fault)
        return b"".join(lines), encodable

    def _count_fault(self, fault: Exception) -> None:
        self.losses.add(f"a record could not be built: {type(fault).__name__}: {fault!s:.200}")

    def _write(self, records: list[Encodable]) -> None:
        """Append records; without any, retry the bytes that could not be written before."""
        self._append(*self._encode(self._observe(records)))

    def _observe(self, records: list[Encodable]) -> list[Encodable]:
        if self.diagnostics is not None and records:
            records = self.diagnostics.observe(records, self.files.folder.path)
            self._check_diagnostics(self.diagnostics)
        return records

    def _append(self, data: bytes, records: list[Encodable]) -> None:
        with self.pressure.in_files():
            num_dropped = self.files.append(data, records)
        if num_dropped:
            self.losses.add("the disk could not be written", num_dropped)

    def _check_diagnostics(self, diagnostics: LiveDiagnostics) -> None:
        if diagnostics.fault:
            self.diagnostics = None
            self._report_error("diagnosis_stopped", "rules", reason=diagnostics.fault)

    def _report_error(self, kind: str, field: str, **details: Any) -> None:
        self.add_record("telemetry_error", {"kind": kind, "field": field, **details})

    def _report_losses(self) -> None:
        """Record the losses, past the buffer, which may be full; and not before the disk accepts the record."""
        if self.files.can_append:
            now_s = self._clock.steady_s()
            for reason, num_records in self.losses.drain().items():
                fields = {"kind": "records_lost", "num_records": num_records, "reason": reason}
                self._write(self._build([PendingRecord(now_s, "telemetry_error", fields)]))

    def _maintain(self) -> None:
        if self._is_due("check", _CHECK_S):
            jump_s = self._anchor.follow()
            if jump_s is not None:
                self._write([self._builder.clock_set(jump_s, self._clock.steady_s())])
            self._check_files()
        if self.diagnostics is not None and self._is_due("diagnose", _CHECK_S):
            self._write(self.diagnostics.tick(self._anchor.wall_s(self._clock.steady_s()), self.files.folder.path))
        if self._is_due("collect", _COLLECT_S):
            with guard("collecting"):
                self.collect()
        if self._settings.ranks != "off" and self._is_due("ranks", _CHECK_S):
            with guard("observing the other ranks"):
                self._check_ranks()
        if self._is_due("heartbeat", _HEARTBEAT_S if self._activity is None else _RANK_HEARTBEAT_S):
            self._beat()
        if self._settings.control_interval_s and self._is_due("control", self._settings.control_interval_s):
            with self.pressure.in_files():
                self.files.ensure_control_file(self.log_every())
            self.poll_controls()

    def _check_files(self) -> None:
        with self.pressure.in_files():
            self.files.check()

    def _beat(self) -> None:
        num_alerts = self.diagnostics.num_open if self.diagnostics is not None else (0, 0)
        state = WriterState(
            len(self.buffer), self.losses.num_records, *num_alerts, self._anchor.jumps_s, self.media_pending()
        )
        activity = self._observe_activity()
        with self.pressure.in_files():
            self.files.beat(state._replace(**activity._asdict(), energy_kwh=self.energy_kwh))

    # Other ranks ---------------------------------------------------------------------------------------------------

    def _observe_activity(self) -> Activity:
        """Return the activity of the training thread, in a job of several ranks."""
        if self._activity is None:
            return Activity()
        activity = self._activity.observe(*self.loop_position(), self._clock.wall_s())
        return activity._replace(last_collective=self.last_collective())

    def _describe_collective(self, name: str) -> str:
        return self.describe_collective(name)  # which is set after the thread has started

    def _check_ranks(self) -> None:
        """In a job of several ranks, rank 0 lets the rules judge all of them."""
        world_size = ranks.world_size()
        if self._activity is None:
            if world_size <= 1:
                return
            self._activity = ActivityObserver(self._thread_id, self._describe_collective)
            self._hang_stacks = HangStacks(ranks.rank(), HangLimits(self._hang_thresholds))
            if self.diagnostics is not None:
                self._rank_monitor = RankMonitor(ranks.job_id())
                self.diagnostics.keep_rank_map(read_rank_map(self.files.folder))
        self._record_mesh()
        folder, activity = self.files.folder, self._observe_activity()
        if self._hang_stacks is not None and self.files.can_append:  # the folder exists
            self._hang_stacks.check(activity, folder, time.monotonic())
        if self._rank_monitor is None or self.diagnostics is None or not self._rank_monitor.is_due:
            return
        with self.pressure.in_files():
            report = self._rank_monitor.poll(folder)
        if report.statuses:
            now_s = self._anchor.wall_s(self._clock.steady_s())
            report.statuses.insert(0, own_status(activity, now_s))
            self._write(self.diagnostics.observe_ranks(report, world_size, now_s, folder.path))
        if self._is_due("rank map", _RANK_MAP_S):
            self._write_rank_map()

    def _write_rank_map(self) -> None:
        rank_map = self.diagnostics.build_rank_map() if self.diagnostics is not None else None
        if rank_map is not None:
            with self.pressure.in_files(), suppress(OSError):  # the disk is full, or the folder is gone
                write_rank_map(self.files.folder, rank_map)

    def _record_mesh(self) -> None:
        """Record the position of this rank in the mesh of the job, which is usually made after the run started."""
        mesh = mesh_coordinates()
        if mesh and mesh != self._mesh:
            self._mesh = mesh
            self.add_record("event", {"name": RANK_MESH, "mesh": mesh})

    def _explain_end(self, end: PendingRecord) -> None:
        """State the rank that ended first, if rank 0 ended because of it."""
        reason = str(end.fields.get("reason") or "")
        if self._rank_monitor is None and self.diagnostics is not None and self._settings.ranks != "off":
            # A rank may fail before the first time that the ranks are compared.
            self._rank_monitor = RankMonitor(ranks.job_id()) if ranks.world_size() > 1 else None
        if self._rank_monitor is None or end.fields.get("status") == "finished":
            return
        with guard("observing the other ranks"):
            position, size = self.loop_position()[0], ranks.world_size()
            now_s = time.monotonic()
            wait_until_s = now_s + min((self._deadline_s - now_s) / 2, _MAX_NEWS_WAIT_S)
            while True:
                statuses = self._rank_monitor.poll(self.files.folder, grace_s=0).statuses
                explanation = explain_end(reason, self._last_error, statuses, position, size)
                # That a rank of another machine has died takes seconds to arrive through a server.
                may_follow = self._rank_monitor.has_relayed and is_consequence(reason, self._last_error)
                if explanation is not None or not may_follow or time.monotonic() >= wait_until_s:
                    break
                time.sleep(_NEWS_POLL_S)
            if explanation is not None:
                end.fields["reason"], first = explanation
                end.fields["first_failed_rank"] = {"rank": first.rank, "host": first.host}

    def _is_due(self, task: str, interval_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_at.get(task, 0.0):
            return False
        self._due_at[task] = now_s + interval_s
        return True
