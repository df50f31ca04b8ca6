"""Follow a growing journal: return complete lines only, count and skip invalid ones.

The follower keeps an offset and opens the file anew for each poll, so it needs no lock and survives a replaced file. It
detects replacement by content, not only by inode: a deleted journal that its writer restored is a new file with the
same bytes, while a different journal may reuse the inode. Whenever device, inode or size have changed, the follower
compares the 256 bytes before its offset with those it has read; if they differ, it starts again from the beginning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tachograph._base.guard import faults
from tachograph.journal._files import MemberCache, complete_size, open_journal, skip_hole
from tachograph.records import decode, decode_block

__all__ = ["JournalFollower", "count_records", "read_records"]

_MAX_LINE_BYTES = 64 << 20


class JournalFollower:
    """Reads the records appended since the last poll. Needs no write permission and takes no lock.

    An incomplete last line is not read until its newline is written. A file that was replaced or truncated is read
    again from the beginning, and `num_restarts` is incremented.
    """

    def __init__(
        self, path: str | os.PathLike[str], offset: int = 0, *, end: int | None = None, block_bytes: int = 1 << 20
    ) -> None:
        # Lines after the offset `end` are not read; the default is the end of the file.
        self._path = Path(path)
        self._end = sys.maxsize if end is None else end
        self._block_bytes = block_bytes
        self._identity: tuple[int, int, int] | None = None
        self._last_line = b""
        self._members: MemberCache = {}
        self._offset = offset
        self.num_bad_lines = 0
        self.bad_offsets: list[int] = []
        """The offsets of the first ten invalid lines."""
        self.num_restarts = 0

    @property
    def offset(self) -> int:
        """The offset of the first unread line; set it to read again from there."""
        return self._offset

    @offset.setter
    def offset(self, offset: int) -> None:
        self._offset = offset
        self._identity, self._last_line = None, b""

    def poll(self) -> list[dict[str, Any]]:
        """Return all complete records that were not returned before."""
        records: list[dict[str, Any]] = []
        while True:
            before = self.offset
            records += self.poll_block()
            if self.offset == before:
                return records

    def poll_block(self) -> list[dict[str, Any]]:
        """Return the next block of records; empty if there are no new ones."""
        while lines := self.poll_lines():
            if records := self.parse(lines, self.offset - len(lines)):
                return records  # a block with only invalid lines is not the end of the file
        return []

    def poll_lines(self) -> bytes:
        """Return the next block of complete lines, to be parsed with `parse`; empty if there are no new ones."""
        try:
            with open_journal(self._path, is_raw=True, cache=self._members) as file:
                self._check_identity(file)
                lines = self._complete_lines(file)
        except faults(FileNotFoundError):
            return b""
        if lines:
            self._offset += len(lines)
            self._last_line = lines[-256:]
        return lines

    def parse(self, lines: bytes, start: int) -> list[dict[str, Any]]:
        """Return the records in complete lines, and count invalid ones.

        Args:
            lines: the lines.
            start: the offset of the first one.
        """
        records = decode_block(lines)
        return list(self._parse(lines, start)) if records is None else records

    @classmethod
    def from_end(cls, path: str | os.PathLike[str], num_bytes: int) -> JournalFollower:
        """Return a follower that starts at the first line within the last `num_bytes` of the file."""
        with open_journal(path) as file:
            size = file.seek(0, os.SEEK_END)
            if num_bytes >= size:
                return cls(path)
            file.seek(size - num_bytes - 1)
            while (rest_of_line := file.readline(1 << 20)) and not rest_of_line.endswith(b"\n"):
                file.seek(skip_hole(file, file.tell()))  # a damaged file may have no end of a line for gigabytes
            return cls(path, file.tell())

    @staticmethod
    def complete_bytes(path: Path) -> int:
        """Return the offset after the last complete line."""
        with open_journal(path) as file:
            return complete_size(file)

    def move(self, path: str | os.PathLike[str]) -> None:
        """Continue in another file with the same content."""
        self._path = Path(path)

    def _check_identity(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino, status.st_size)
        if identity == self._identity:
            return
        if self._identity is None and self.offset and not self._last_line:  # started at an offset: trust it
            self._last_line = _read_at(file, min(256, self.offset), max(0, self.offset - 256))
        size = len(self._last_line)
        is_shorter = file.seek(0, os.SEEK_END) < self.offset
        if is_shorter or _read_at(file, size, self.offset - size) != self._last_line:
            self._offset, self._last_line = 0, b""
            self.num_restarts += 1
        self._identity = identity

    def _complete_lines(self, file: BinaryIO) -> bytes:
        size = self._block_bytes
        while True:
            block = _read_at(file, max(0, min(size, self._end - self.offset)), self.offset)
            end = block.rfind(b"\n") + 1
            if end:
                return block[:end]
            if len(block) < size:  # the end, inside an incomplete line
                return b""
            if size >= _MAX_LINE_BYTES:  # not a record: skip it, or every poll would read it again
                self._count_bad(self.offset)
                self._offset = max(self.offset + len(block), skip_hole(file, self.offset + len(block)))
                self._last_line = _read_at(file, 256, self.offset - 256)
            else:
                size *= 4

    def _parse(self, block: bytes, start: int) -> Iterator[dict[str, Any]]:
        offset = start
        for line in block.split(b"\n"):
            if line:
                try:
                    yield decode(line)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    self._count_bad(offset)
            offset += len(line) + 1

    def _count_bad(self, offset: int) -> None:
        self.num_bad_lines += 1
        if len(self.bad_offsets) < 10:
            self.bad_offsets.append(offset)


def _read_at(file: BinaryIO, size: int, offset: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def read_records(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield all records that the journal contains now."""
    follower = JournalFollower(path)
    while records := follower.poll_block():
        yield from records


def count_records(path: str | os.PathLike[str], offset: int = 0) -> int:
    """Return how many lines the journal has from an offset on; much faster than reading the records."""
    num_lines = 0
    with open_journal(path) as file:
        file.seek(offset)
        while block := file.read(1 << 20):
            num_lines += block.count(b"\n")
    return num_lines
