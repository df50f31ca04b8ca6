"""Open a journal for reading, plain or compressed. All readers open journals here.

An ended journal can be compressed. ``metrics.jsonl.gz`` then takes the place of ``metrics.jsonl``. It is a gzip file of
*members*, each with the same number of plain bytes (1 MiB, more if there would be too many), so that any part can be
read without the part before it. The last member is empty; its header has the index, in an extra field that other
programs ignore:

    "TG" length | version, bytes per member, plain bytes, compressed bytes of each member | length of the header, magic

The file contains its own index, so one rename puts both in place. Offsets always count plain bytes, so cursors and
cached columns stay valid when a journal is compressed or restored.

If both files exist, a command was killed between creating the one and removing the other. Then both have the same
content, unless a process has continued the plain one since. So the plain one counts.

Nothing in the file is trusted: sizes are checked against the size of the file, and each member against its checksum.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from tachograph._base.files import create_file, move_file, open_to_read, replacing, temporary_path, write_all
from tachograph._base.guard import faults, suppress

__all__ = [
    "MemberCache",
    "complete_size",
    "compress_journal",
    "compressed_path",
    "journal_size",
    "open_journal",
    "restore_journal",
    "skip_hole",
    "stat_journal",
]

_MEMBER_BYTES = 1 << 20
_MAX_MEMBER_BYTES = 1 << 30
_MAX_MEMBERS = 16_000
_LEVEL = 6
_LAST_LINE_BYTES = 64 << 10
_MAGIC = b"tachogzi"
_HEADER = struct.Struct("<4sIBB")
"""A gzip header: magic and flags, time, extra flags, system."""
_INDEX_START = struct.Struct("<BIQ")
"""Version, bytes per member, plain bytes."""
_MARK = struct.Struct("<H8s")
"""Length of the header of the last member, and the magic."""
_EMPTY = b"\x03\x00" + bytes(8)
"""No data, its checksum and its size."""
_VERSION = 1

MemberCache = dict[tuple[int, ...], bytes]
"""The last member that was read, for a reader that opens the journal again and again."""


def compressed_path(path: Path) -> Path:
    """Return the path of a journal when it is compressed."""
    return path.with_name(path.name + ".gz")


def open_journal(path: str | os.PathLike[str], *, is_raw: bool = False, cache: MemberCache | None = None) -> BinaryIO:
    """Open a journal, plain or compressed; offsets count plain bytes.

    Args:
        path: the plain journal, ``metrics.jsonl``, whether it exists or not.
        is_raw: without a buffer.
        cache: the last member read, if the same journal is opened again and again.

    Raises:
        OSError: if it cannot be read, or is compressed and damaged.
    """
    try:
        return cast(BinaryIO, open(path, "rb", buffering=0) if is_raw else open(path, "rb"))
    except faults(FileNotFoundError):
        try:
            file = _CompressedJournal(compressed_path(Path(path)), {} if cache is None else cache)
        except faults(FileNotFoundError):
            # It may have been restored in the meantime; and the error names the plain file.
            return cast(BinaryIO, open(path, "rb", buffering=0) if is_raw else open(path, "rb"))
    return cast(BinaryIO, file if is_raw else io.BufferedReader(file))


def stat_journal(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the status of the file that has the journal; of a compressed journal, its size counts compressed bytes.

    Raises:
        OSError: if there is none.
    """
    try:
        return os.stat(path)
    except faults(FileNotFoundError):
        try:
            return os.stat(os.fspath(path) + ".gz")
        except faults(FileNotFoundError):
            return os.stat(path)


def journal_size(path: str | os.PathLike[str]) -> int:
    """Return the number of plain bytes of a journal.

    Raises:
        OSError: if it cannot be read.
    """
    try:
        return os.stat(path).st_size
    except faults(FileNotFoundError):
        with open_journal(path, is_raw=True) as file:
            return file.seek(0, os.SEEK_END)


def skip_hole(file: BinaryIO, offset: int) -> int:
    """Return where the next bytes of a plain file are that were written: `offset` unless it is in a hole.

    A file that a fault has made longer has a hole of any size, which reads as zeros.
    """
    return _seek_to(file, offset, "SEEK_DATA", otherwise=offset)


def _find_hole(file: BinaryIO, offset: int, size: int) -> int:
    """Return where the next hole of a plain file begins; its size without one."""
    return max(_seek_to(file, offset, "SEEK_HOLE", otherwise=size), offset + 1)


def _seek_to(file: BinaryIO, offset: int, whence: str, *, otherwise: int) -> int:
    """Return the next position of a kind in a plain file, or its size; `otherwise` if that cannot be found."""
    if isinstance(getattr(file, "raw", file), _CompressedJournal) or not hasattr(os, whence):
        return otherwise
    fd = file.fileno()
    position = os.lseek(fd, 0, os.SEEK_CUR)  # a buffered file relies on it
    try:
        return os.lseek(fd, offset, getattr(os, whence))
    except faults(OSError) as fault:
        return os.fstat(fd).st_size if fault.errno == errno.ENXIO else otherwise
    finally:
        os.lseek(fd, position, os.SEEK_SET)


def complete_size(file: BinaryIO) -> int:
    """Return the size of an open file up to the end of its last complete line.

    Raises:
        OSError: if it cannot be read.
    """
    size = file.seek(0, os.SEEK_END)
    end = 0  # of the last bytes that were written
    while (start := skip_hole(file, end)) < size:
        end = _find_hole(file, start, size)
    while end > 0:
        start = max(0, end - _LAST_LINE_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


class _CompressedJournal(io.RawIOBase):
    """Reads the plain bytes of a compressed journal at any offset."""

    def __init__(self, path: Path, cache: MemberCache) -> None:
        super().__init__()
        self._path = path
        self._cache = cache
        self._position = 0
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with this object
        try:
            status = os.fstat(self._file.fileno())
            self._identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            self._read_index(status.st_size)
        except BaseException:
            self._file.close()
            raise

    def _read_index(self, file_bytes: int) -> None:
        tail = self._pread(_MARK.size + len(_EMPTY), max(0, file_bytes - _MARK.size - len(_EMPTY)))
        if len(tail) != _MARK.size + len(_EMPTY) or tail[_MARK.size :] != _EMPTY:
            raise self._damage_error("it was not compressed by tacho; decompress it with: gunzip")
        header_bytes, magic = _MARK.unpack(tail[: _MARK.size])
        start = file_bytes - len(_EMPTY) - header_bytes
        fixed_at = _HEADER.size + 6  # length of the extra fields, and name and length of ours
        if magic != _MAGIC or header_bytes < fixed_at + _INDEX_START.size + _MARK.size or start < 0:
            raise self._damage_error("it was not compressed by tacho; decompress it with: gunzip")
        header = self._pread(header_bytes, start)
        version, self._member_bytes, self._size = _INDEX_START.unpack_from(header, fixed_at)
        table = header[fixed_at + _INDEX_START.size : -_MARK.size]
        sizes = struct.unpack(f"<{len(table) // 4}I", table[: len(table) // 4 * 4])
        if version != _VERSION:
            raise self._damage_error("it was compressed by a newer version; update tachograph")
        num_members = -(-self._size // self._member_bytes) if 0 < self._member_bytes <= _MAX_MEMBER_BYTES else -1
        if sum(sizes) != start or len(sizes) != num_members:
            raise self._damage_error("its index is invalid")
        self._starts = [0]
        for size in sizes:
            self._starts.append(self._starts[-1] + size)

    def _pread(self, size: int, offset: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)

    def _damage_error(self, reason: str) -> OSError:
        return OSError(errno.EIO, f"cannot be read: {reason}", str(self._path))

    def _member(self, index: int) -> bytes:
        key = (*self._identity, index)
        if key in self._cache:
            return self._cache[key]
        start, end = self._starts[index], self._starts[index + 1]
        num_plain_bytes = min(self._member_bytes, self._size - index * self._member_bytes)
        decompressor = zlib.decompressobj(wbits=31)
        try:
            data = decompressor.decompress(self._pread(end - start, start), num_plain_bytes + 1)
        except zlib.error as error:
            raise self._damage_error(f"the part at {start} is damaged") from error
        if len(data) != num_plain_bytes or not decompressor.eof:
            raise self._damage_error(f"the part at {start} is damaged")
        self._cache.clear()
        self._cache[key] = data
        return data

    # The interface of a file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as there are bytes, as a plain file does."""
        view = memoryview(buffer).cast("B")
        num_read = 0
        while num_read < len(view) and self._position < self._size:
            index, offset = divmod(self._position, self._member_bytes)
            part = self._member(index)[offset : offset + len(view) - num_read]
            view[num_read : num_read + len(part)] = part
            num_read += len(part)
            self._position += len(part)
        return num_read

    def close(self) -> None:
        with suppress(AttributeError):  # it could not be opened
            self._file.close()
        super().close()


# Writing -------------------------------------------------------------------------------------------------------------


def compress_journal(
    path: Path, *, below: Path, publishing: Callable[[], contextlib.AbstractContextManager[bool]]
) -> tuple[int, int] | None:
    """Compress a journal that nothing writes any more.

    Args:
        path: the plain journal.
        below: the run folder.
        publishing: called when the compressed file is complete and verified. It yields whether the file may take the
            place of the journal, and keeps others from writing the journal meanwhile.

    Returns:
        The sizes of the plain and of the compressed file, or None if nothing was changed: the journal is compressed
        already, would not get smaller, or has changed.

    Raises:
        OSError: if it cannot be read or written. Then nothing was changed.
    """
    target = compressed_path(path)
    for leftover in path.parent.glob(f".{target.name}.*.tmp"):  # of a process that was killed
        if leftover.stat().st_mtime < time.time() - 86_400:
            leftover.unlink(missing_ok=True)
    try:
        source = open_to_read(path, below=below)
    except faults(FileNotFoundError):
        return None
    temporary = temporary_path(target)
    with source:
        before = os.fstat(source.fileno())
        descriptor = create_file(temporary, below=below, mode=before.st_mode & 0o777)
        try:
            try:
                plain_hash = _write_members(source, descriptor, before.st_size)
                os.fsync(descriptor)
                compressed_bytes = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if compressed_bytes >= before.st_size or _hash_compressed(temporary) != plain_hash:
                return None
            os.utime(temporary, ns=(before.st_mtime_ns, before.st_mtime_ns))
            with publishing() as is_allowed:
                now = path.stat()
                is_same = (now.st_ino, now.st_size, now.st_mtime_ns) == (
                    before.st_ino,
                    before.st_size,
                    before.st_mtime_ns,
                )
                if not is_allowed or not is_same:
                    return None
                move_file(temporary, target, below=below)
                path.unlink()
            return before.st_size, compressed_bytes
        finally:
            temporary.unlink(missing_ok=True)


def _write_members(source: BinaryIO, descriptor: int, size: int) -> bytes:
    """Write the members and the index; return a hash of the plain bytes."""
    member_bytes = _MEMBER_BYTES * max(1, -(-size // (_MEMBER_BYTES * _MAX_MEMBERS)))
    digest = hashlib.blake2b()
    sizes: list[int] = []
    num_left = size
    while num_left and (plain := source.read(min(member_bytes, num_left))):
        digest.update(plain)
        compressor = zlib.compressobj(_LEVEL, wbits=31)
        sizes.append(write_all(descriptor, compressor.compress(plain) + compressor.flush()))
        num_left -= len(plain)
    content = _INDEX_START.pack(_VERSION, member_bytes, size - num_left) + struct.pack(f"<{len(sizes)}I", *sizes)
    field_bytes = len(content) + _MARK.size
    header_bytes = _HEADER.size + 6 + field_bytes
    header = _HEADER.pack(b"\x1f\x8b\x08\x04", 0, 0, 255) + struct.pack("<H2sH", 4 + field_bytes, b"TG", field_bytes)
    write_all(descriptor, header + content + _MARK.pack(header_bytes, _MAGIC) + _EMPTY)
    return digest.digest()


def _hash_compressed(path: Path) -> bytes:
    digest = hashlib.blake2b()
    with _CompressedJournal(path, {}) as file:
        while block := file.read(_MEMBER_BYTES):
            digest.update(block)
    return digest.digest()


def restore_journal(path: Path, *, below: Path) -> bool:
    """Replace a compressed journal with a plain one, to continue it; return False if it is not compressed.

    Raises:
        OSError: if it cannot be read or written. Then the compressed one is left as it was.
    """
    target = compressed_path(path)
    if os.path.lexists(path) or not target.is_file():
        return False
    with open_journal(path) as file, replacing(path, below=below) as descriptor:
        status = os.fstat(file.fileno())
        while block := file.read(_MEMBER_BYTES):
            write_all(descriptor, block)
        os.fsync(descriptor)
        os.utime(descriptor, ns=(status.st_mtime_ns, status.st_mtime_ns))
    os.close(descriptor)
    target.unlink()
    return True
