"""Backpressure: how much may wait between the threads that log and the writer thread, and for how long.

The buffer is bounded in records, in bytes and in time. Records and bytes bound the memory. Time bounds the loss when
the process is killed: no call of a loop that outruns the writer returns while the oldest item that is not in the file
is older than `MAX_AGE_S`, or while the buffer holds more than the writer can process in `MAX_BACKLOG_S` at the pace of
its last chunks.

A caller that exceeds a bound wakes the writer and waits, so that a loop that does nothing but log runs at the pace of
the writer instead of losing records. It waits for a writer that computes, not for a disk: the bounds in time are
ignored once the writer has been in the file system for `_SLOW_DISK_S`, and after `_STUCK_S` in there nothing is waited
for at all. Then an item that does not fit is dropped, and the caller counts the loss.

Callers of the hot path append to the buffer without coming here. The bounds hold for them, too, because they come here
once the buffer holds more than `BACKPRESSURE_SIZE` items, and because the writer diverts them as soon as it is late or
finds large items; their appends before that are small, or a burst of at most one flush interval.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tachograph.recorder._buffer_items import BACKPRESSURE_SIZE, BufferItem, LargeItem, queued_at

__all__ = ["Backpressure"]

MAX_BYTES = 64 << 20
"""Bytes in large items; all others together are smaller than this."""

MAX_AGE_S = 0.6
"""More than the longest pause of the writer, so that only a writer that cannot keep up is late."""

MAX_BACKLOG_S = 0.3

_BACKLOG_ITEMS = 1024
_BACKLOG_BYTES = 1 << 20
"""With less than this in the buffer the loop does other work than logging, and does not wait because of the time."""

_RESERVE = 1024
"""Items beyond `buffer_size` that are accepted for records other than steps."""

_MIN_PACE_ITEMS = 32
_YIELD_S = 0.0005
_SLOW_DISK_S = 0.05
_STUCK_S = 0.25
_HUNG_S = 1.0
"""How long to wait for a writer that computes without finishing a chunk, such as one that waits for a device."""


class Backpressure:
    """Decides whether an item may be added to the buffer, and makes its caller wait where that helps."""

    def __init__(
        self, buffer: deque[BufferItem], buffer_size: int, steady_s: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        self._buffer = buffer
        self._buffer_size = buffer_size
        self._steady_s = steady_s
        self._wake = wake
        self._added_bytes: dict[int, int] = {}  # by thread, without a lock: see `LossCounter`
        self._removed_bytes = 0
        self._last_progress_at = time.monotonic()
        self._in_files_since: float | None = None
        self._oldest_unwritten_at: float | None = None
        self._chunk_started_at = 0.0
        self._item_s = 10e-6
        self._byte_s = 10e-9
        self.writer_ident: int | None = None
        """The thread of the writer, which never waits for itself."""

    # On any thread -------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes in the large items of the buffer."""
        return sum(list(self._added_bytes.values())) - self._removed_bytes

    @property
    def age_s(self) -> float:
        """The age of the oldest item that is not in the file; 0 if there is none, or if its age is unknown."""
        oldest_at = self._oldest_unwritten_at
        if oldest_at is None:
            try:
                oldest_at = queued_at(self._buffer[0])
            except IndexError:
                return 0.0
        return 0.0 if oldest_at is None else self._steady_s() - oldest_at

    @property
    def is_late(self) -> bool:
        """Whether the writer cannot keep up, and records are older than they should be."""
        num_items, num_bytes = len(self._buffer), self.held_bytes
        if num_items < _BACKLOG_ITEMS and num_bytes < _BACKLOG_BYTES:
            return False
        backlog_s = num_items * self._item_s + num_bytes * self._byte_s
        return backlog_s > MAX_BACKLOG_S or self.age_s > MAX_AGE_S

    def add(self, item: BufferItem, *, num_bytes: int = 0, force: bool = False) -> bool:
        """Add an item unless there is no room for it; return whether it was added.

        Args:
            item: the item.
            num_bytes: about how much memory it takes, if that is much.
            force: add it in any case.
        """
        num_bytes = min(num_bytes, MAX_BYTES // 2)
        if not self._has_room(item, num_bytes) and not force:
            return False
        if num_bytes > LargeItem.MIN_BYTES:
            thread = threading.get_ident()
            self._added_bytes.setdefault(thread, 0)
            self._added_bytes[thread] += num_bytes
            item = LargeItem(item, num_bytes)
        self._buffer.append(item)
        return True

    def _has_room(self, item: BufferItem, num_bytes: int) -> bool:
        buffer = self._buffer
        max_items = self._buffer_size if type(item) is tuple else self._buffer_size + _RESERVE

        def is_full() -> bool:
            return len(buffer) >= max_items or self.held_bytes + num_bytes > MAX_BYTES

        is_filling = len(buffer) > BACKPRESSURE_SIZE or self.held_bytes >= _BACKLOG_BYTES
        if (is_filling or is_full() or self.is_late) and threading.get_ident() != self.writer_ident:
            self._wake()
            time.sleep(0)
            while (is_full() and not self._is_stuck(_STUCK_S)) or (self.is_late and not self._is_stuck(_SLOW_DISK_S)):
                time.sleep(_YIELD_S)
        return not is_full()

    def _is_stuck(self, max_in_files_s: float) -> bool:
        since, now_s = self._in_files_since, time.monotonic()
        return now_s > (self._last_progress_at + _HUNG_S if since is None else since + max_in_files_s)

    # On the writer thread ------------------------------------------------------------------------------------------

    def note_progress(self) -> None:
        """Note that the writer is at work."""
        self._last_progress_at = time.monotonic()

    def take(self, item: LargeItem) -> BufferItem:
        """Return the content of a large item that was removed from the buffer."""
        self._removed_bytes += item.num_bytes
        return item.item

    def start_chunk(self, first: BufferItem) -> None:
        """Note the age of items that were removed from the buffer and are not in the file yet."""
        self._last_progress_at = self._chunk_started_at = time.monotonic()
        if self._oldest_unwritten_at is None:
            self._oldest_unwritten_at = queued_at(first)

    def finish_chunk(self, num_items: int, num_bytes: int) -> None:
        """Note that a chunk is done: the number of its items, and the bytes of the large ones."""
        self._last_progress_at = time.monotonic()
        took_s = self._last_progress_at - self._chunk_started_at
        # A slow chunk counts at once and is forgotten slowly: to expect a slow writer is safe.
        if num_bytes:
            self._byte_s = max(took_s / num_bytes, 0.8 * self._byte_s)
        elif num_items >= _MIN_PACE_ITEMS:
            self._item_s = max(took_s / num_items, 0.8 * self._item_s)

    def note_written(self) -> None:
        """Note that everything removed from the buffer is in the file."""
        self._oldest_unwritten_at = None

    @contextmanager
    def in_files(self) -> Iterator[None]:
        """Mark a block of the writer that waits for the file system."""
        outer_since, self._in_files_since = self._in_files_since, time.monotonic()
        try:
            yield
        finally:
            self._in_files_since = outer_since
            self._last_progress_at = time.monotonic()

    @contextmanager
    def out_of_files(self) -> Iterator[None]:
        """Mark a block inside `in_files` that computes: a long task of the files lets the journal be written."""
        outer_since, self._in_files_since = self._in_files_since, None
        try:
            yield
        finally:
            self._in_files_since = outer_since
