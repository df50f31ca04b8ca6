"""Segments: immutable, checksummed column files, each covering a range of journal bytes.

The first segment starts at byte 0 of the journal and each following one where the previous one ends. The file name
contains the start offset, so the segments form a chain: open the file for offset 0, read its end, open the file for
that offset, and so on.

Several readers can build and use the chain at once without a lock. A reader writes a complete segment to a temporary
file and hard-links it to its final name. Linking fails if the name exists, so exactly one reader succeeds; the others
discard their work and use the file they found. Since a segment is never modified, reading needs no lock either.

Nothing in a segment is trusted. A fingerprint of the journal bytes before the end detects another journal in the same
place. Checksums of the footer, the kept records and each array, verified at first use, detect damage and partial
writes. An invalid segment counts as missing. Arrays are views of the mapped file, so damage in place reaches them even
after they were verified: `is_changed` compares the times and size of the file with the last call, and if they differ
every array is verified again at its next use. Callers ask before and after each query. Two limitations: damage
that leaves the times of the file alone, such as a failing disk, is detected only when the segment is opened again; and
journals are append-only, so a journal edited in the middle without changing its length is not detected.

Layout: arrays aligned to 8 bytes, the kept records, the `Footer` (msgpack), then its length, a checksum and `_MAGIC`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import mmap
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph._base.files import add_file
from tachograph._base.typed import decode_msgpack
from tachograph.journal import open_journal
from tachograph.store._columns import CHUNK, AttemptRange, SeriesPart, StreamRows, Summary, summarise
from tachograph.store._tail import SeriesStats, Tail

__all__ = ["Segment", "SegmentError", "segment_path", "write_segment"]

_VERSION = 2
_MAGIC = b"tachoseg"
_TRAILER = struct.Struct("<QI8s")
_FINGERPRINT_BYTES = 256
_SETTLED_AFTER_S = 2.0


class SegmentError(Exception):
    """The file is not a segment of this journal, or is damaged."""


class _ArrayEntry(msgspec.Struct, array_like=True):
    """The location of an array in the file."""

    offset: int
    num_items: int
    type: str
    checksum: int


class _StreamEntry(msgspec.Struct, array_like=True):
    step: _ArrayEntry
    time: _ArrayEntry
    epoch: _ArrayEntry | None
    ranges: list[tuple[int, int, tuple[bool, bool, bool]]]


class _SeriesEntry(msgspec.Struct, array_like=True):
    stream: str
    name: str
    stats: SeriesStats
    first_row: int
    """The first row if every following row has a value, and `rows` is empty; otherwise -1."""
    rows: _ArrayEntry
    values: _ArrayEntry
    mark_rows: _ArrayEntry
    mark_kinds: _ArrayEntry
    summary: list[_ArrayEntry]


class AttemptStats(msgspec.Struct, array_like=True):
    """Statistics of an attempt that come from plain points, which are not replayed."""

    first_step: int | None
    last_step: int | None
    last_time: float | None
    num_records: int
    num_steps: int


class Footer(msgspec.Struct, array_like=True):
    """The contents of a segment, and the state of the run at its end."""

    start: int
    end: int
    fingerprint: bytes
    """Fingerprint of the journal bytes before `end`."""
    streams: dict[str, _StreamEntry]
    series: list[_SeriesEntry]
    kept_records: tuple[int, int]
    """Offset and size of the kept records."""
    counts: dict[str, int]
    attempts: list[AttemptStats]
    epoch: float | None
    """The last recorded epoch."""
    step: int | None
    """The last recorded step."""
    num_bad_lines: int
    """The number of invalid lines in this range."""


def segment_path(folder: Path, start: int) -> Path:
    """Return the path of the segment that starts at an offset of the journal."""
    return folder / f"v{_VERSION}-{start:012x}.seg"


def fingerprint(journal: Path, end: int) -> bytes:
    """Return a hash of the journal bytes before an offset, to detect a replaced journal."""
    with open_journal(journal) as file:
        file.seek(max(0, end - _FINGERPRINT_BYTES))
        return hashlib.blake2b(file.read(min(end, _FINGERPRINT_BYTES)), digest_size=16).digest()


class _SegmentBuffer:
    def __init__(self) -> None:
        self.file = io.BytesIO()

    def array(self, values: npt.NDArray[Any]) -> _ArrayEntry:
        self.file.write(bytes(-self.file.tell() % 8))  # numpy reads aligned arrays faster
        offset = self.file.tell()
        data = np.ascontiguousarray(values).data
        self.file.write(data)
        return _ArrayEntry(offset, len(values), values.dtype.str, zlib.crc32(data))


def write_segment(
    path: Path,
    below: Path,
    tail: Tail,
    kept_records: bytes,
    *,
    start: int,
    end: int,
    fingerprint: bytes,
    counts: dict[str, int],
    attempts: list[AttemptStats],
    num_bad_lines: int,
) -> bool:
    """Write a segment; return False if another reader was first.

    Raises:
        OSError: if the folder cannot be written.
    """
    if path.exists():
        return False
    writer = _SegmentBuffer()
    streams = {}
    for name in tail.streams:
        rows = tail.rows(name)
        epoch = None if rows.epoch is None else writer.array(rows.epoch)
        ranges = [tuple(attempt_range) for attempt_range in rows.ranges]
        streams[name] = _StreamEntry(writer.array(rows.step), writer.array(rows.time), epoch, ranges)  # type: ignore[arg-type]
    series = [_write_series(writer, tail, stream, name) for stream, name in tail.series_keys]
    kept_records_offset = writer.file.tell()
    writer.file.write(kept_records)
    last_epoch = None if math.isnan(tail.epoch) else tail.epoch
    footer = msgspec.msgpack.encode(
        Footer(
            start,
            end,
            fingerprint,
            streams,
            series,
            (kept_records_offset, len(kept_records)),
            counts,
            attempts,
            last_epoch,
            tail.step,
            num_bad_lines,
        )
    )
    writer.file.write(footer)
    writer.file.write(_TRAILER.pack(len(footer), zlib.crc32(footer, zlib.crc32(kept_records)), _MAGIC))
    # No fsync: it can take seconds while a job saves a checkpoint. The checksums detect data lost in a power failure.
    return add_file(path, writer.file.getbuffer(), below=below)


def _write_series(writer: _SegmentBuffer, tail: Tail, stream: str, name: str) -> _SeriesEntry:
    part = tail.series_part(stream, name)
    assert part is not None  # noqa: S101 - the tail listed it
    # Most series have a value in every row; then the first row is enough.
    is_dense = len(part.rows) > 0 and int(part.rows[-1]) - int(part.rows[0]) + 1 == len(part.rows)
    summary = summarise(part, tail.rows(stream))
    return _SeriesEntry(
        stream=stream,
        name=name,
        stats=tail.stats(stream, name) or SeriesStats(),
        first_row=int(part.rows[0]) if is_dense else -1,
        rows=writer.array(np.asarray(part.rows[:0] if is_dense else part.rows)),
        values=writer.array(part.values),
        mark_rows=writer.array(part.mark_rows),
        mark_kinds=writer.array(part.mark_kinds),
        summary=[writer.array(column) for column in summary if column is not None],
    )


class _Identity(NamedTuple):
    """Metadata of a file that changes when its content changes."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @property
    def newest_s(self) -> float:
        return max(self.modified_ns, self.changed_ns) / 1e9


def _identity(path: Path) -> _Identity | None:
    """Return the identity of the file at a path; None if it is gone, though it may still be mapped."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Segment:
    """A segment opened for reading; its arrays are views of the memory-mapped file."""

    def __init__(self, path: Path, journal: Path, start: int) -> None:
        self.path = path
        self.num_changes = 0
        """How often `is_changed` has found a change."""
        self._identity = _identity(path)
        try:
            with open(path, "rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            size = len(self._data)
            footer_bytes, checksum, magic = _TRAILER.unpack_from(self._data, size - _TRAILER.size)
            footer_offset = size - _TRAILER.size - footer_bytes
            if magic != _MAGIC or footer_offset < 0:
                raise SegmentError(f"{path} is incomplete")
            footer = self._data[footer_offset : footer_offset + footer_bytes]
            self.footer = decode_msgpack(footer, Footer)
            self._kept_records_checksum = zlib.crc32(self._kept_records())
            if zlib.crc32(footer, self._kept_records_checksum) != checksum:
                raise SegmentError(f"{path} is damaged")
            has_same_range = self.footer.start == start < self.footer.end
            if not has_same_range or self.footer.fingerprint != fingerprint(journal, self.footer.end):
                raise SegmentError(f"{path} belongs to another journal")
        except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
            raise SegmentError(f"{path}: {error}") from error
        self._series = {(series.stream, series.name): series for series in self.footer.series}
        self._verified_arrays: set[tuple[int, int]] = set()
        self._rows: dict[str, StreamRows] = {}

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return len(self._data)

    def release_pages(self) -> None:
        """Release the pages from the memory of this process; the system may keep them cached."""
        with contextlib.suppress(AttributeError, OSError):  # not available on this system
            self._data.madvise(mmap.MADV_DONTNEED)

    @property
    def streams(self) -> list[str]:
        """The names of the streams, in order of appearance."""
        return list(self.footer.streams)

    @property
    def series_keys(self) -> list[tuple[str, str]]:
        """Stream and name of each series, in order of appearance."""
        return list(self._series)

    def is_changed(self) -> bool:
        """Return whether the file was changed since the last call; if so, arrays are verified again."""
        identity = _identity(self.path)
        is_changed, self._identity = identity != self._identity, identity
        self.num_changes += is_changed
        # The times of a file are coarse: another change right after the last one would not show.
        if is_changed or identity is None or time.time() - identity.newest_s < _SETTLED_AFTER_S:
            self._verified_arrays.clear()
            self._rows.clear()
        return is_changed

    def kept_records(self) -> bytes:
        """Return the kept records (all except plain points), one JSON object per line."""
        self._check_size()
        records = self._kept_records()
        if zlib.crc32(records) != self._kept_records_checksum:
            raise SegmentError(f"{self.path} is damaged")
        return records

    def _kept_records(self) -> bytes:
        offset, size = self.footer.kept_records
        return self._data[offset : offset + size]

    def num_rows(self, stream: str) -> int:
        """Return the number of rows of a stream in this segment."""
        entry = self.footer.streams.get(stream)
        return 0 if entry is None else entry.step.num_items

    def rows(self, stream: str) -> StreamRows:
        """Return the rows of a stream."""
        rows = self._rows.get(stream)
        if rows is None:
            entry = self.footer.streams[stream]
            epoch = None if entry.epoch is None else self._array(entry.epoch)
            ranges = [AttemptRange(*attempt_range) for attempt_range in entry.ranges]
            rows = self._rows[stream] = StreamRows(self._array(entry.step), self._array(entry.time), epoch, ranges)
        return rows

    def series_part(self, stream: str, name: str) -> SeriesPart | None:
        """Return the values of a series in this segment, or None."""
        entry = self._series.get((stream, name))
        if entry is None:
            return None
        values = self._array(entry.values)
        return SeriesPart(
            rows=self._array(entry.rows)
            if entry.first_row < 0
            else range(entry.first_row, entry.first_row + len(values)),
            values=values,
            mark_rows=self._array(entry.mark_rows),
            mark_kinds=self._array(entry.mark_kinds),
            summary=Summary(*map(self._array, entry.summary)) if len(values) >= CHUNK else None,
        )

    def stats(self, stream: str, name: str) -> SeriesStats | None:
        """Return the statistics of a series, or None if it is not in this segment."""
        entry = self._series.get((stream, name))
        return None if entry is None else entry.stats

    def _check_size(self) -> None:
        if self._data.size() < len(self._data):  # reading past the end of the file would kill the process (SIGBUS)
            raise SegmentError(f"{self.path} was truncated")

    def _array(self, entry: _ArrayEntry) -> npt.NDArray[Any]:
        values = np.frombuffer(self._data, dtype=entry.type, count=entry.num_items, offset=entry.offset)
        # Verify each array at its first use: verifying a large segment when it is opened would be slow.
        if (entry.offset, entry.num_items) not in self._verified_arrays:
            self._check_size()
            if zlib.crc32(values.data) != entry.checksum:
                raise SegmentError(f"{self.path} is damaged")
            self._verified_arrays.add((entry.offset, entry.num_items))
        return values
