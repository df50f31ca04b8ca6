"""`SinkDriver`: follows a journal and feeds one sink. Every sink, notifications included, is driven by this class.

A sink that was chosen by name has its driver in another process; see `_process.py`.

How it works. Each driver has one daemon thread, which polls the journal and passes whole blocks of records to
`Sink.write`. It never blocks training and never loses a record, because three rules hold:

Cursor. The cursor is the journal offset up to which the sink has accepted records. It is saved *after* each `write`,
so a crash between the two repeats a block instead of skipping it. Delivery is therefore at least once, and a sink
whose receiver must not get a record twice must remember the sent ones. The cursor is stored in the run folder, in
`.tacho/sink-<name>.json`, so a resumed run continues where the last attempt stopped, and readers see with `read_lags`
which sinks lack records, and why. A `BackgroundSink` stores the cursor itself, next to its queue, because the two must
change in one atomic write.

Retry. If `open` or `write` raises, the driver sets the offset back to the start of the block and tries again after a
pause that doubles from the poll interval up to a minute. The sink is opened again first, since its connection may be
the cause. An exception with `wait_s`, such as the seconds of an HTTP `Retry-After`, makes the pause at least that long.
Each distinct error is reported once, as a `telemetry_error` record of kind `sink_failed`. The backlog is the journal
itself, so a sink that is down for hours costs no memory.

Rejection. A receiver may refuse some records for good. The sink calls `on_rejected` and returns as usual; the driver
reports each reason once, as a `telemetry_error` of kind `sink_rejected`, and the total when it ends. The cursor file
has them too, for `read_rejections`: a report that comes after the run has ended no longer reaches the journal.

Replay. A `ReplayingSink` first gets the records before the cursor, once per driver.

Close. `Run.finish` calls `close(0)` on every driver and then `close(remaining time)`: all of them start on their last
round at once, and one that hangs does not use up the time of the others. The last round has a few attempts without
pauses other than the ones that the receiver asks for, then the thread closes the sink and ends. If the deadline passes
first, `close` returns False and leaves the daemon thread behind; the cursor shows the next attempt, or a later export,
where to continue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from tachograph._base.files import open_lock, read_small, replace_file
from tachograph._base.guard import faults, guard, suppress
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.threads import TelemetryThread
from tachograph._base.typed import decode_json
from tachograph.journal import JournalFollower, RunFolder, count_records, journal_size
from tachograph.records import finite_or_none, mask_text
from tachograph.sinks._sink import BackgroundSink, RejectingSink, ReplayingSink, Sink

try:
    import fcntl
except faults(ImportError):  # Windows: two processes may export the same records
    fcntl = None  # type: ignore[assignment]

__all__ = ["SinkDriver", "SinkLag", "backoff_s", "create_cursor", "lock_export", "read_lags", "read_rejections"]

_POLL_INTERVAL_S = 1.0
_MAX_BACKOFF_S = 60.0
_MAX_LAST_ATTEMPTS = 3
_MAX_REPORTED = 20
_BLOCK_BYTES = 256 << 10
_MAX_CURSOR_BYTES = 64 << 10


class _Cursor(msgspec.Struct, omit_defaults=True):
    journal_bytes: int
    error: str = ""
    """Why the last attempt to export the records after the cursor failed."""
    rejections: list[str] = []
    """What the receiver rejected for good. The journal may lack a rejection that came after the run had ended."""


class SinkLag(NamedTuple):
    """The records that a sink has not accepted."""

    sink: str
    num_records: int
    error: str
    """Why the last attempt failed; empty if it did not fail but took too long."""


def read_lags(folder: RunFolder) -> list[SinkLag]:
    """Return the sinks that have not accepted every record of a run."""
    lags = []
    for sink, cursor in _read_cursors(folder):
        with suppress(OSError):
            num_records = count_records(folder.journal, cursor.journal_bytes)
            if num_records:
                lags.append(SinkLag(sink, num_records, cursor.error))
    return lags


def read_rejections(folder: RunFolder) -> list[tuple[str, str]]:
    """Return what receivers rejected for good: pairs of the sink's name and a text with number and reason."""
    return [(sink, text) for sink, cursor in _read_cursors(folder) for text in cursor.rejections]


def _read_cursors(folder: RunFolder) -> Iterator[tuple[str, _Cursor]]:
    for path in sorted(folder.private.glob("sink-*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            yield path.stem.removeprefix("sink-"), decode_json(read_small(path, _MAX_CURSOR_BYTES), _Cursor)


def create_cursor(folder: RunFolder, sink: str) -> None:
    """Create the cursor of a sink that is new to a run, so that `read_lags` counts all records as not accepted."""
    path = folder.private / f"sink-{sink}.json"
    with suppress(OSError):
        if not path.exists():
            folder.private.mkdir(exist_ok=True)
            replace_file(path, msgspec.json.encode(_Cursor(0)), below=folder.path)


def lock_export(folder: RunFolder, sink: str) -> int | None:
    """Lock the export of a run to one sink, until the descriptor is closed or this process ends.

    Returns:
        The descriptor; -1 on a file system without locks; None if another process has the lock.
    """
    with suppress(OSError):
        folder.private.mkdir(exist_ok=True)
        descriptor = open_lock(folder.private / f"sink-{sink}.lock", below=folder.path)
        try:
            if fcntl is not None:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except faults(BlockingIOError):
            os.close(descriptor)
            return None
        return descriptor
    return -1


class SinkDriver:
    """Feeds one sink from a journal, starting where the previous attempt stopped."""

    def __init__(
        self, folder: RunFolder, sink: Sink, report: Callable[[str, str, str], None], *, from_start: bool = True
    ) -> None:
        """Load the cursor; `start` begins to read.

        Args:
            folder: the run.
            sink: the sink to drive.
            report: called for each failure with its kind, the sink's name and the reason.
            from_start: whether a sink that is new to the run also receives the records written before now.
        """
        self._folder = folder
        self._sink = sink
        self._background = sink if isinstance(sink, BackgroundSink) else None
        self._report = report
        self._poll_interval_s = self._background.poll_interval_s if self._background else _POLL_INTERVAL_S
        self._is_open = False
        self._reported_errors: set[str] = set()
        self._rejection_counts: dict[tuple[str, str], list[int]] = {}
        """By reason and kind of item: how many were rejected, and how many of them were reported."""
        self._rejections: dict[tuple[str, str], str] = {}
        """The reports of rejections, by the same key."""
        self._earlier_rejections: list[str] = []
        """The reports of earlier attempts."""
        self._num_failures = 0
        self._not_before_s = 0.0
        """When the receiver may be called again, on `time.monotonic`."""
        self._stopping = ReentrantEvent()
        self._has_ended = ReentrantEvent()
        self._cursor_path = folder.private / f"sink-{sink.name}.json"
        cursor = self._background.load_cursor(folder) if self._background else self._load_cursor()
        if cursor is None:
            cursor = 0 if from_start or not folder.exists() else journal_size(folder.journal)
        self._accepted_bytes = cursor
        self._follower = JournalFollower(folder.journal, cursor, block_bytes=_BLOCK_BYTES)
        if self._background is None:
            # With from_start=False the starting point must survive a crash before the first write.
            self._save_cursor(cursor)
        self._is_replayed = False
        if isinstance(sink, RejectingSink):
            sink.on_rejected = self._handle_rejection
        self._thread = TelemetryThread(self._run, name=f"tachograph-{sink.name}")

    @property
    def name(self) -> str:
        """The sink's name."""
        return self._sink.name

    def start(self) -> None:
        """Start to follow the journal."""
        if self._background is not None:
            with guard(f"starting the sink {self.name}"):
                self._background.start()
        self._thread.start()

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder, to which the journal was moved."""
        self._folder = folder
        self._cursor_path = folder.private / self._cursor_path.name
        self._follower.move(folder.journal)
        if self._background is not None:
            with guard(f"moving the sink {self.name}"):
                self._background.move(folder)

    def close(self, timeout_s: float) -> bool:
        """Pass on the remaining records and stop.

        Call it with 0 to start the last round without waiting, and again to wait for its end.

        Returns:
            Whether the sink accepted every record in time. If not, they stay in the journal for the next attempt.
        """
        deadline_s = time.monotonic() + max(timeout_s, 0.0)
        is_final_call = timeout_s > 0 or self._stopping.is_set()
        self._stopping.set()
        if self._background is not None and is_final_call:
            with guard(f"flushing the sink {self.name}"):  # the thread that ends the run is the user's
                self._background.flush(deadline_s)
        return self._has_ended.wait(deadline_s - time.monotonic()) and self._num_failures == 0

    # The driver's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._has_ended.set()

    def _follow(self) -> None:
        is_last = False
        while not is_last:
            pause_s = backoff_s(self._poll_interval_s, self._num_failures, _MAX_BACKOFF_S)
            is_last = self._stopping.wait(max(pause_s, self._requested_pause_s()))
            for _ in range(_MAX_LAST_ATTEMPTS if is_last else 1):
                requested_s = self._requested_pause_s()
                if requested_s > _MAX_BACKOFF_S:
                    break
                time.sleep(requested_s)
                try:
                    self._write_new_records()
                    self._num_failures = 0
                    break
                except (Exception, SystemExit) as error:  # noqa: BLE001 - a sink may raise anything
                    self._handle_failure(error)
        self._report_rejections()
        with suppress(Exception):
            self._sink.close()
        self._report_rejections()

    def _requested_pause_s(self) -> float:
        """Return how long the receiver asked the driver to wait."""
        return max(self._not_before_s - time.monotonic(), 0.0)

    def _write_new_records(self) -> None:
        if not self._is_open:
            self._sink.open(self._folder, self._start_record())
            if isinstance(self._sink, ReplayingSink) and not self._is_replayed:
                self._sink.replay(self._earlier_records())
                self._is_replayed = True
            self._is_open = True
        while True:
            block_offset = self._follower.offset
            records = self._follower.poll_block()
            if self._follower.offset == block_offset:
                break
            try:
                self._sink.write(records)
            except Exception:
                self._follower.offset = block_offset
                raise
            self._save_cursor(self._follower.offset)
            time.sleep(0)  # release the interpreter: a long backlog must not starve the training thread
        if self._background is not None:
            self._background.poll()

    def _earlier_records(self) -> Iterator[dict[str, Any]]:
        """Yield the records before the cursor."""
        earlier = JournalFollower(self._folder.journal, end=self._follower.offset, block_bytes=_BLOCK_BYTES)
        while records := earlier.poll_block():
            yield from records
            time.sleep(0)

    def _start_record(self) -> dict[str, Any]:
        head = JournalFollower(self._folder.journal, block_bytes=64 << 10).poll_block()
        return next((record for record in head if record["event"] == "start"), {})

    def _handle_failure(self, error: BaseException) -> None:
        self._num_failures += 1
        self._is_open = False
        self._not_before_s = time.monotonic() + (finite_or_none(getattr(error, "wait_s", None)) or 0.0)
        # The text may quote a token, and a failing sink must not fill the journal.
        reason = mask_text(f"{type(error).__name__}: {error}")[:500]
        if self._background is None:
            self._save_cursor(self._follower.offset, reason)  # before the report, whose readers look for the lag
        if reason not in self._reported_errors and len(self._reported_errors) < _MAX_REPORTED:
            self._reported_errors.add(reason)
            self._report("sink_failed", self._sink.name, f"{reason}; will be retried")

    def _handle_rejection(self, num_items: int, items: str, reason: str) -> None:
        key = (mask_text(reason)[:500], items)
        if key not in self._rejection_counts and len(self._rejection_counts) >= _MAX_REPORTED:
            key = ("other reasons", "items")
        counts = self._rejection_counts.setdefault(key, [0, 0])
        counts[0] += num_items
        if not counts[1]:
            self._report_rejection(key)

    def _report_rejections(self) -> None:
        """Report the totals of reasons that occurred again after their report."""
        for key, (num_rejected, num_reported) in self._rejection_counts.items():
            if num_rejected > num_reported:
                self._report_rejection(key)

    def _report_rejection(self, key: tuple[str, str]) -> None:
        counts, (reason, items) = self._rejection_counts[key], key
        counts[1] = counts[0]
        text = f"the receiver rejected {counts[0]} {items} for good: {reason}; the journal has the records"
        self._rejections[key] = text
        if self._background is None:  # before the report, which gets lost if the training process has ended
            self._save_cursor(self._accepted_bytes)
        self._report("sink_rejected", self._sink.name, text)

    def _load_cursor(self) -> int | None:
        try:
            cursor = decode_json(read_small(self._cursor_path, _MAX_CURSOR_BYTES), _Cursor)
        except faults(OSError, msgspec.MsgspecError):
            return None
        self._earlier_rejections = cursor.rejections[-_MAX_REPORTED:]
        return cursor.journal_bytes

    def _save_cursor(self, journal_bytes: int, error: str = "") -> None:
        self._accepted_bytes = journal_bytes
        if self._background is not None:
            self._background.save_cursor(journal_bytes)
            return
        with suppress(OSError):  # costs no records: some are written twice after a restart
            cursor = _Cursor(journal_bytes, error, [*self._earlier_rejections, *self._rejections.values()])
            replace_file(self._cursor_path, msgspec.json.encode(cursor), below=self._folder.path)


def backoff_s(first_s: float, num_failures: int, max_s: float) -> float:
    """Return the pause after a number of failures in a row: doubled for each one, up to a limit."""
    # The exponent is bounded because 2.0**1024 overflows, which would end the thread of a sink that is down for a day.
    return min(first_s * 2.0 ** min(num_failures, 30), max_s)
