"""A segment: the columns of a stretch of a journal in one file that is written once and never changed.

The first segment begins at byte 0 of the journal, each other one where the one before ends, and its name says where. So
several readers can make and read them at once without a lock: whoever is first to put a segment in its place has made
it for all. A segment that does not fit its journal, is damaged, or was not written whole counts as not there. Journals
are only ever appended to: one that was changed in the middle, by hand and without a change of length, is not noticed.

In a file: arrays, then the records that are no plain points, then the `Footer`, its length and `_MAGIC`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph.store._columns import CHUNK, Rows, SeriesPart, Stretch, Summary, summarise
from tachograph.store._tail import SeriesStats, Tail

__all__ = ["Segment", "SegmentError", "segment_path", "write_segment"]

_VERSION = 1
_MAGIC = b"tachoseg"
_CLOSING = struct.Struct("<QI8s")
_SEAL_BYTES = 256


class SegmentError(Exception):
    """The file is no segment of this journal, or is damaged."""


class _Array(msgspec.Struct, array_like=True):
    """Where an array lies in the file."""

    at: int
    num_items: int
    type: str
    checksum: int


class _Stream(msgspec.Struct, array_like=True):
    step: _Array
    time: _Array
    epoch: _Array | None
    stretches: list[tuple[int, int, tuple[bool, bool, bool]]]


class _Series(msgspec.Struct, array_like=True):
    stream: str
    name: str
    stats: SeriesStats
    first_row: int
    """Where it has a value in every row, its first one, and then `rows` is empty."""
    rows: _Array
    values: _Array
    mark_rows: _Array
    mark_kinds: _Array
    summary: list[_Array]


class AttemptStats(msgspec.Struct, array_like=True):
    """What only plain points say of an attempt."""

    first_step: int | None
    last_step: int | None
    last_time: float | None
    num_records: int
    num_steps: int


class Footer(msgspec.Struct, array_like=True):
    """What is in a segment, and what was known of the run at its end."""

    start: int
    end: int
    seal: bytes
    """Of the bytes of the journal before the end."""
    streams: dict[str, _Stream]
    series: list[_Series]
    kept: tuple[int, int]
    """Where the records that are no plain points lie, and how many bytes they are."""
    counts: dict[str, int]
    attempts: list[AttemptStats]
    epoch: float | None
    """The last epoch that was told."""
    step: int | None
    """The last step that was told."""
    num_bad_lines: int
    """Lines of this stretch that could not be read."""


def segment_path(folder: Path, start: int) -> Path:
    """Return where the segment that begins at a byte of the journal lies."""
    return folder / f"v{_VERSION}-{start:012x}.seg"


def seal(journal: Path, end: int) -> bytes:
    """Return what tells a journal from another one that was put in its place."""
    with open(journal, "rb") as file:
        file.seek(max(0, end - _SEAL_BYTES))
        return hashlib.blake2b(file.read(min(end, _SEAL_BYTES)), digest_size=16).digest()


class _Writer:
    def __init__(self) -> None:
        self.file = io.BytesIO()

    def array(self, values: npt.NDArray[Any]) -> _Array:
        self.file.write(bytes(-self.file.tell() % 8))
        at = self.file.tell()
        data = np.ascontiguousarray(values).data
        self.file.write(data)
        return _Array(at, len(values), values.dtype.str, zlib.crc32(data))


def write_segment(
    path: Path,
    tail: Tail,
    kept: bytes,
    *,
    start: int,
    end: int,
    seal: bytes,
    counts: dict[str, int],
    attempts: list[AttemptStats],
    num_bad_lines: int,
) -> bool:
    """Put a segment in its place; return False if another reader was first.

    Raises:
        OSError: if the folder cannot be written.
    """
    if path.exists():
        return False
    writer = _Writer()
    streams = {}
    for name in tail.streams:
        rows = tail.rows(name)
        epoch = None if rows.epoch is None else writer.array(rows.epoch)
        stretches = [tuple(stretch) for stretch in rows.stretches]
        streams[name] = _Stream(writer.array(rows.step), writer.array(rows.time), epoch, stretches)  # type: ignore[arg-type]
    series = [_write_series(writer, tail, stream, name) for stream, name in tail.series]
    kept_at = writer.file.tell()
    writer.file.write(kept)
    last_epoch = None if math.isnan(tail.epoch) else tail.epoch
    footer = msgspec.msgpack.encode(
        Footer(
            start,
            end,
            seal,
            streams,
            series,
            (kept_at, len(kept)),
            counts,
            attempts,
            last_epoch,
            tail.step,
            num_bad_lines,
        )
    )
    writer.file.write(footer)
    writer.file.write(_CLOSING.pack(len(footer), zlib.crc32(footer, zlib.crc32(kept)), _MAGIC))
    return _put(path, writer.file.getbuffer())


def _write_series(writer: _Writer, tail: Tail, stream: str, name: str) -> _Series:
    part = tail.part(stream, name)
    assert part is not None  # noqa: S101 - the tail itself named it
    is_dense = len(part.rows) > 0 and int(part.rows[-1]) - int(part.rows[0]) + 1 == len(part.rows)
    summary = summarise(part, tail.rows(stream))
    return _Series(
        stream=stream,
        name=name,
        stats=tail.stats(stream, name) or SeriesStats(),
        first_row=int(part.rows[0]) if is_dense else -1,
        rows=writer.array(np.asarray(part.rows[:0] if is_dense else part.rows)),
        values=writer.array(part.values),
        mark_rows=writer.array(part.mark_rows),
        mark_kinds=writer.array(part.mark_kinds),
        summary=[writer.array(column) for column in summary],
    )


def _put(path: Path, data: memoryview) -> bool:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            # Not synced: that can take seconds beside a job that saves a checkpoint. The checksums tell what a power
            # cut left unwritten.
            file.write(data)
        try:
            os.link(temporary, path)  # unlike a rename, fails if it is there
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            os.replace(temporary, path)
        return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


class Segment:
    """A segment, opened for reading; its arrays are views of the file."""

    def __init__(self, path: Path, journal: Path, start: int) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            size = len(self._data)
            length, checksum, magic = _CLOSING.unpack_from(self._data, size - _CLOSING.size)
            footer_at = size - _CLOSING.size - length
            if magic != _MAGIC or footer_at < 0:
                raise SegmentError(f"{path} is not a whole segment")
            footer = self._data[footer_at : footer_at + length]
            self.footer = msgspec.msgpack.decode(footer, type=Footer)
            if zlib.crc32(footer, zlib.crc32(self.kept())) != checksum:
                raise SegmentError(f"{path} is damaged")
            is_ours = self.footer.start == start < self.footer.end
            if not is_ours or self.footer.seal != seal(journal, self.footer.end):
                raise SegmentError(f"{path} is of another journal")
        except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
            raise SegmentError(f"{path}: {error}") from error
        self._series = {(series.stream, series.name): series for series in self.footer.series}
        self._rows: dict[str, Rows] = {}
        self._checked: set[tuple[int, int]] = set()

    @property
    def size_bytes(self) -> int:
        """How much of the address space it takes."""
        return len(self._data)

    def let_go(self) -> None:
        """Count no longer as memory of this process; the system may still have it at hand."""
        with contextlib.suppress(AttributeError, OSError):  # a system without it
            self._data.madvise(mmap.MADV_DONTNEED)

    @property
    def streams(self) -> list[str]:
        """The names of the streams, in order of appearance."""
        return list(self.footer.streams)

    @property
    def series(self) -> list[tuple[str, str]]:
        """Stream and name of each series, in order of appearance."""
        return list(self._series)

    def kept(self) -> bytes:
        """Return the lines of the records that are no plain points."""
        at, size = self.footer.kept
        return self._data[at : at + size]

    def num_rows(self, stream: str) -> int:
        """Return how many rows a stream has here."""
        found = self.footer.streams.get(stream)
        return 0 if found is None else found.step.num_items

    def rows(self, stream: str) -> Rows:
        """Return where the points of a stream lie."""
        rows = self._rows.get(stream)
        if rows is None:
            found = self.footer.streams[stream]
            epoch = None if found.epoch is None else self._array(found.epoch)
            stretches = [Stretch(*stretch) for stretch in found.stretches]
            rows = self._rows[stream] = Rows(self._array(found.step), self._array(found.time), epoch, stretches)
        return rows

    def part(self, stream: str, name: str) -> SeriesPart | None:
        """Return a series, as far as it is here."""
        found = self._series.get((stream, name))
        if found is None:
            return None
        values = self._array(found.values)
        return SeriesPart(
            rows=self._array(found.rows)
            if found.first_row < 0
            else range(found.first_row, found.first_row + len(values)),
            values=values,
            mark_rows=self._array(found.mark_rows),
            mark_kinds=self._array(found.mark_kinds),
            summary=Summary(*map(self._array, found.summary)) if len(values) >= CHUNK else None,
        )

    def stats(self, stream: str, name: str) -> SeriesStats | None:
        """Return a series in a few numbers, if it is here."""
        found = self._series.get((stream, name))
        return None if found is None else found.stats

    def _array(self, array: _Array) -> npt.NDArray[Any]:
        if self._data.size() < len(self._data):  # to look behind the file's end would end the process
            raise SegmentError(f"{self.path} was cut short")
        found = np.frombuffer(self._data, dtype=array.type, count=array.num_items, offset=array.at)
        if (array.at, array.num_items) not in self._checked:
            if zlib.crc32(found.data) != array.checksum:
                raise SegmentError(f"{self.path} is damaged")
            self._checked.add((array.at, array.num_items))
        return found
