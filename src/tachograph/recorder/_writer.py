"""The writer: one thread that takes what waits in the buffer, makes records of it and appends them.

Everything slow happens here and nowhere else. The training thread only appends to `buffer`, which it never waits for.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tachograph.clock import Clock, WallAnchor
from tachograph.guard import guard
from tachograph.journal import (
    Appender,
    Claim,
    ControlFile,
    CsvMirror,
    Heartbeat,
    RunFolder,
    atomic_write,
    claim_run_folder,
    this_process,
    uptime_s,
)
from tachograph.recorder._entries import FlushMark, Note, StepEntry
from tachograph.recorder._pipeline import Piece, Pipeline
from tachograph.recorder._system import memory_fields
from tachograph.records import StepTable, encode
from tachograph.settings import Settings

__all__ = ["Losses", "Writer"]

_CHUNK = 256
"""Entries encoded in one go; bounds how long the interpreter is held."""

_HEARTBEAT_S = 5.0
_CHECK_S = 1.0
_ATTACH_S = 1.0


class Losses:
    """Counts what could not be kept, from any thread."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may log while its own thread is in here.
        self._lock = threading.RLock()
        self._unreported: dict[str, int] = {}
        self.num_records = 0

    def count(self, reason: str, num_records: int = 1) -> None:
        """Count lost records."""
        with self._lock:
            self.num_records += num_records
            self._unreported[reason] = self._unreported.get(reason, 0) + num_records

    def take(self) -> dict[str, int]:
        """Return what was not reported yet."""
        if not self._unreported:
            return {}
        with self._lock:
            unreported, self._unreported = self._unreported, {}
        return unreported


class Writer:
    """Owns the files of a run while it is recorded."""

    def __init__(
        self,
        claim: Claim,
        settings: Settings,
        pipeline: Pipeline,
        anchor: WallAnchor,
        clock: Clock,
        run_id: str,
    ) -> None:
        self._claim = claim
        self._folder = claim.folder
        self._settings = settings
        self._pipeline = pipeline
        self._anchor = anchor
        self._clock = clock
        self._run_id = run_id
        self._process = this_process()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # unlike an Event, safe to use in a signal handler
        self._appender = Appender(self._folder.journal)
        self._mirror = CsvMirror(self._folder, breathe=self._breathe) if settings.csv else None
        self._is_breathing = False
        self._mirror_fault = ""
        self._write_fault_s: float | None = None
        self._is_lost = False
        self._glue: dict[tuple[str, ...], list[bytes]] = {}
        self._due: dict[str, float] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tachograph-writer", daemon=True)
        self.control_file = ControlFile(self._folder)
        self._has_control_file = False
        self.poll_controls: Callable[[], None] = lambda: None
        self.call_trainer: Callable[[], None] = lambda: None
        self.on_move: Callable[[RunFolder, str], None] = lambda folder, reason: None
        self.log_every: Callable[[], int] = lambda: settings.log_every
        self.buffer: deque[StepEntry | Note | FlushMark] = deque()
        self.losses = Losses()
        self.taken_s = 0.0
        """When entries were last taken from the buffer; a caller with a full buffer looks whether we are at work."""

    def start(self) -> None:
        """Begin to write."""
        self._beat()
        self._thread.start()

    @property
    def saw_array(self) -> bool:
        """Whether something came in that its owner could still change; `log` is more careful from then on."""
        return self._pipeline.saw_array

    def note(self, event: str, fields: dict[str, Any]) -> None:
        """Queue a record that is not a step."""
        if len(self.buffer) >= self._settings.buffer_size + 1024:
            self.losses.count("the buffer was full")
            return
        self.buffer.append(Note(self._clock.steady_s(), event, fields))

    def wake(self) -> None:
        """Make the writer look at once."""
        if self._wake.qsize() < 2:
            self._wake.put(True)

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was logged so far is in the file; return False if that took longer than the time given."""
        if threading.current_thread() is self._thread:
            return False
        mark = FlushMark()
        self.buffer.append(mark)
        self._wake.put(True)
        return mark.written.wait(max(timeout_s, 0.0)) and not self._appender.pending

    def close(self, timeout_s: float) -> bool:
        """Write everything, close the files and end the thread; return False if the deadline came first."""
        self._stopping = True
        self._wake.put(True)
        if threading.current_thread() is not self._thread:
            self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive() and not self._appender.pending

    def abandon(self) -> None:
        """In a forked child: the thread and the files are the parent's."""
        self.buffer.clear()
        self._appender.close()

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
            guard.caught("writing the journal", fault)
        finally:
            for entry in self.buffer:
                if type(entry) is FlushMark:
                    entry.written.set()
            self._claim.release()

    def _tick(self) -> None:
        with guard("looking after the run folder"):
            self._look_after()
        self._write([])
        self._write_waiting()
        self._report_losses()
        if not self._appender.pending:
            self._mirror_from_journal(budget_s=0.1 * self._settings.flush_interval_s)

    def _last_tick(self) -> None:
        self._write_waiting()
        self._write(self._pipeline.finish())
        self._report_losses()
        self._write_waiting()
        deadline_s = time.monotonic() + self._settings.exit_timeout_s
        while self._appender.pending and time.monotonic() < deadline_s:
            time.sleep(0.05)
            self._write([])
            self._write_waiting()
        self._mirror_from_journal(budget_s=deadline_s - time.monotonic(), force=True)
        if self._mirror is not None:
            with guard("closing metrics.csv"):
                self._mirror.close()
        self._beat()
        self._appender.sync()
        self._appender.close()

    def _write_waiting(self) -> None:
        buffer = self.buffer
        for _ in range(len(buffer) // _CHUNK + 1):
            chunk = [buffer.popleft() for _ in range(min(len(buffer), _CHUNK))]
            if not chunk:
                return
            if self._is_due("attach", _ATTACH_S):
                with guard("reading the memory in use"):
                    self._pipeline.attach = memory_fields()
            try:
                self._write(self._records(chunk))
                if self._pipeline.saw_array:
                    self.call_trainer()
            finally:
                self.taken_s = time.monotonic()
                for entry in chunk:
                    if type(entry) is FlushMark:
                        entry.written.set()

    def _records(self, chunk: list[StepEntry | Note | FlushMark]) -> list[Piece]:
        """Make records of a chunk; if that fails, of each entry by itself, so that a fault costs one record."""
        try:
            return self._pipeline.process(chunk)
        except Exception:  # noqa: BLE001 - told below, for the entry that causes it
            pieces: list[Piece] = []
            for entry in chunk:
                try:
                    pieces += self._pipeline.process([entry])
                except Exception as fault:  # noqa: BLE001
                    self._lost_one(fault)
            return pieces

    def _encoded(self, pieces: list[Piece]) -> tuple[bytes, list[Piece]]:
        lines: list[bytes] = []
        kept: list[Piece] = []
        for piece in pieces:
            try:
                lines.append(piece.lines(self._glue) if isinstance(piece, StepTable) else encode(piece) + b"\n")
                kept.append(piece)
            except Exception as fault:  # noqa: BLE001 - such as a number of ten thousand digits
                self._lost_one(fault)
        return b"".join(lines), kept

    def _lost_one(self, fault: Exception) -> None:
        self.losses.count(f"a record could not be made: {type(fault).__name__}: {fault!s:.200}")

    def _write(self, pieces: list[Piece]) -> None:
        if not pieces and not self._appender.pending:
            return
        data, pieces = self._encoded(pieces)
        follows_on = not self._appender.pending
        start = self._appender.size_bytes
        fault = self._appender.append(data)
        dropped, self._appender.num_dropped_lines = self._appender.num_dropped_lines, 0
        if dropped:
            self.losses.count("the disk could not be written", dropped)
        if fault is not None:
            if self._write_fault_s is None:
                self._write_fault_s = self._clock.steady_s()
                self.note("telemetry_error", {"kind": "write_failed", "reason": str(fault), "field": "metrics.jsonl"})
            return
        if self._write_fault_s is not None:
            waited_s = self._clock.steady_s() - self._write_fault_s
            self._write_fault_s = None
            self.note("telemetry_error", {"kind": "write_recovered", "after_s": waited_s, "field": "metrics.jsonl"})
        if self._mirror is not None and follows_on and not self._is_breathing:
            with self._mirroring(self._mirror):
                self._mirror.add(pieces, start, self._appender.size_bytes)

    def _breathe(self) -> None:
        """Write what waits while the mirror is at a long task; the mirror itself catches up afterwards."""
        if not self._is_breathing:
            self._is_breathing = True
            try:
                self._write_waiting()
            finally:
                self._is_breathing = False

    def _mirror_from_journal(self, *, budget_s: float, force: bool = False) -> None:
        if self._mirror is not None:
            with self._mirroring(self._mirror):
                self._mirror.catch_up(self._appender.size_bytes, budget_s=budget_s, force=force)
                self._mirror_fault = ""

    @contextlib.contextmanager
    def _mirroring(self, mirror: CsvMirror) -> Iterator[None]:
        """Keep the mirror's faults from the journal. A full disk passes; anything else would come again and again."""
        try:
            yield
        except FileNotFoundError:
            mirror.lost()  # the whole folder is gone, which the next check will find and tell
        except OSError as error:
            mirror.lost()
            if str(error) != self._mirror_fault:
                self._mirror_fault = str(error)
                fields = {"kind": "csv_behind", "field": "metrics.csv", "reason": f"{error}; it will catch up"}
                self.note("telemetry_error", fields)
        except Exception as error:
            self._mirror = None
            fields = {"kind": "csv_stopped", "field": "metrics.csv", "reason": f"{type(error).__name__}: {error}"}
            self.note("telemetry_error", fields)
            raise

    def _report_losses(self) -> None:
        for reason, num_records in self.losses.take().items():
            self.note("telemetry_error", {"kind": "records_lost", "num_records": num_records, "reason": reason})

    def _look_after(self) -> None:
        if self._is_due("check", _CHECK_S):
            jump_s = self._anchor.follow()
            if jump_s is not None:
                self.note("event", {"name": "clock_set", "jump_s": round(jump_s, 3)})
            if not self._appender.is_in_place():
                self._put_back()
            elif self._appender.is_cut():
                reason = "the journal was made shorter while the run was being recorded"
                self.note("telemetry_error", {"kind": "journal_cut", "field": "metrics.jsonl", "reason": reason})
                if self._mirror is not None:
                    self._mirror.start_over()
            elif not self._folder.lock.exists():  # .tacho may be deleted at any time
                with contextlib.suppress(OSError):
                    self._folder.private.mkdir(exist_ok=True)
                    self._claim.renew()
                    self._beat()
        if self._is_due("heartbeat", _HEARTBEAT_S):
            self._beat()
        if self._settings.control_interval_s and self._is_due("control", self._settings.control_interval_s):
            if not self._has_control_file:
                with contextlib.suppress(OSError):  # a full disk: tried again, and requests are read all the same
                    self.control_file.reset({"log_every": self.log_every()}, self._clock.wall_s())
                    self._has_control_file = True
            self.poll_controls()

    def _put_back(self) -> None:
        try:
            self._folder.private.mkdir(parents=True, exist_ok=True)
            if not self._claim.renew():
                self._move_out()
                return
            saved = self._appender.restore()
        except OSError as error:  # tried again at the next check; until then records go to the deleted file
            if not self._is_lost:
                self._is_lost = True
                reason = f"the journal was deleted and cannot be put back: {error}"
                self.note("telemetry_error", {"kind": "journal_moved", "field": "metrics.jsonl", "reason": reason})
            return
        self._is_lost = False
        if self._mirror is not None:
            self._mirror.lost()
            if not saved:
                self._mirror.start_over()
        reason = "the journal was deleted or replaced while the run was being recorded"
        reason += "; its records were put back" if saved else "; the file in its place is continued"
        self.note("telemetry_error", {"kind": "journal_moved", "field": "metrics.jsonl", "reason": reason})

    def _move_out(self) -> None:
        """Another process has made a run in our place since the folder was deleted: take our records elsewhere."""
        name = self._folder.name
        self._claim = claim_run_folder(str(self._folder.path.parent), name, resume=False)
        self._folder = self._claim.folder
        self._appender.restore(self._folder.journal)
        self._mirror = CsvMirror(self._folder, breathe=self._breathe) if self._mirror is not None else None
        self.control_file = ControlFile(self._folder)
        self._has_control_file = False
        reason = (
            f"the folder {name!r} was deleted and taken by another process; this run goes on as {self._folder.name!r}"
        )
        self.note("telemetry_error", {"kind": "journal_moved", "field": "metrics.jsonl", "reason": reason})
        self._beat()
        self.on_move(self._folder, reason)

    def _beat(self) -> None:
        heartbeat = Heartbeat(
            run_id=self._run_id,
            process=self._process,
            time=self._clock.wall_s(),
            uptime_s=uptime_s(),
            journal_bytes=self._appender.size_bytes,
            num_waiting=len(self.buffer),
            num_dropped=self.losses.num_records,
        )
        with contextlib.suppress(OSError):  # a full disk; readers still have the pid
            atomic_write(self._folder.heartbeat, msgspec.json.encode(heartbeat))

    def _is_due(self, what: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due.get(what, 0.0):
            return False
        self._due[what] = now_s + every_s
        return True
