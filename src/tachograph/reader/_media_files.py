"""The files of a run's media: ``media/<first two digits>/<sha256>.<ext>``, or the same path inside of ``media.zip``.

`tacho compact` packs the files of an ended run into that archive, uncompressed, so that a run with many pictures is a
few files. A file outside of the archive takes precedence: a run that is resumed writes such files again.

The archive may come from anywhere. Only entries that are named like media files and are stored as they are count, and
only the bytes of an entry are ever read. Nothing is extracted.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import struct
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tachograph._base.files import open_to_read
from tachograph._base.guard import faults, suppress
from tachograph._base.hashing import hash_blocks, read_blocks
from tachograph.journal import RunFolder

__all__ = [
    "MediaFileName",
    "file_size",
    "has_media",
    "is_media_file",
    "list_packed_media",
    "media_entry",
    "media_pack",
    "media_path",
    "media_size",
    "open_media",
    "parse_media_entry",
]

_MAX_CACHED_PACKS = 8
_MAX_VERIFIED = 10_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_EXTENSION = re.compile(r"[a-z0-9]{1,10}(\.[a-z0-9]{1,10})?")
_LOCAL_HEADER = struct.Struct("<4s22xHH")


class MediaFileName(NamedTuple):
    """What names a media file."""

    sha256: str
    extension: str


class _PackedEntry(NamedTuple):
    """An entry of an archive."""

    header_offset: int
    size_bytes: int


_Identity = tuple[int, int, int, int]
_cached_packs: OrderedDict[str, tuple[_Identity, dict[str, _PackedEntry]]] = OrderedDict()
_cached_packs_lock = threading.Lock()


def is_media_file(sha256: Any, extension: Any) -> bool:
    """Return whether hash and extension may name a file: nothing else ever becomes part of a path."""
    return (
        isinstance(sha256, str)
        and isinstance(extension, str)
        and _SHA256.fullmatch(sha256) is not None
        and _EXTENSION.fullmatch(extension) is not None
    )


def media_entry(sha256: str, extension: str) -> str:
    """Return the path of a media file below ``media/``.

    Raises:
        ValueError: if the hash or the extension is invalid.
    """
    if not is_media_file(sha256, extension):
        raise ValueError(f"no media file has the name {sha256!r}.{extension!r}")
    return f"{sha256[:2]}/{sha256}.{extension}"


def parse_media_entry(path: str) -> MediaFileName | None:
    """Return hash and extension of a path below ``media/``, or None if it is not the path of a media file."""
    sha256, _, extension = path[3:].partition(".")
    is_valid = is_media_file(sha256, extension) and path[:3] == f"{sha256[:2]}/"
    return MediaFileName(sha256, extension) if is_valid else None


def media_path(folder: RunFolder, sha256: str, extension: str) -> Path:
    """Return the path of a media file of a run, unless it is packed.

    Raises:
        ValueError: if the hash or the extension is invalid.
    """
    return folder.media / media_entry(sha256, extension)


def media_pack(folder: RunFolder) -> Path:
    """Return the path of the archive of a run's media, which may not exist."""
    return folder.path / "media.zip"


def open_media(folder: RunFolder, sha256: str, extension: str) -> BinaryIO | None:
    """Open a media file of a run, or return None. Follows no links, so no other file can be read this way.

    A file that is also the file of another program (a hard link) is opened only if its content is still that of its
    hash: the program may have written to it since. A packed file has no descriptor: use `file_size` for its size.
    """
    try:
        file = open_to_read(media_path(folder, sha256, extension), below=folder.path)
    except faults(OSError, ValueError):
        return _open_packed(folder, sha256, extension)
    try:
        status = os.fstat(file.fileno())
        if status.st_nlink == 1 or _has_content(file, sha256, status):
            return file
    except faults(OSError):
        pass
    file.close()
    return None


_verified_files: OrderedDict[tuple[str, int, int, int], bool] = OrderedDict()
"""Whether linked files have the content of their hash, by hash, inode, size and modification time."""


def _has_content(file: BinaryIO, sha256: str, status: os.stat_result) -> bool:
    key = (sha256, status.st_ino, status.st_size, status.st_mtime_ns)
    is_same = _verified_files.get(key)
    if is_same is None:
        is_same = _verified_files[key] = hash_blocks(read_blocks(file)).sha256 == sha256
        file.seek(0)
        while len(_verified_files) > _MAX_VERIFIED:
            _verified_files.popitem(last=False)
    return is_same


def has_media(folder: RunFolder, sha256: str, extension: str) -> bool:
    """Return whether a media file is there."""
    return media_size(folder, sha256, extension) is not None


def media_size(folder: RunFolder, sha256: str, extension: str) -> int | None:
    """Return the size of a media file, or None if it is missing."""
    with suppress(OSError, ValueError):
        status = os.lstat(media_path(folder, sha256, extension))
        if stat.S_ISREG(status.st_mode):
            return status.st_size
    with suppress(ValueError):
        packed = list_packed_media(folder).get(media_entry(sha256, extension))
        return None if packed is None else packed.size_bytes
    return None


def file_size(file: BinaryIO) -> int:
    """Return the size of an open media file; its position is the beginning then."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size_bytes


def list_packed_media(folder: RunFolder) -> dict[str, _PackedEntry]:
    """Return the entries of the archive of a run's media by path; none if there is no valid archive."""
    path = media_pack(folder)
    try:
        status = os.lstat(path)
    except faults(OSError):
        return {}
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _cached_packs_lock:
        cached = _cached_packs.get(str(path))
        if cached is not None and cached[0] == identity:
            _cached_packs.move_to_end(str(path))
            return cached[1]
    entries = _read_entries(folder)
    with _cached_packs_lock:
        _cached_packs[str(path)] = (identity, entries)
        while len(_cached_packs) > _MAX_CACHED_PACKS:
            _cached_packs.popitem(last=False)
    return entries


def _read_entries(folder: RunFolder) -> dict[str, _PackedEntry]:
    import zipfile  # most runs have no archive

    try:
        with open_to_read(media_pack(folder), below=folder.path) as file, zipfile.ZipFile(file) as archive:
            return {
                entry.filename: _PackedEntry(entry.header_offset, entry.file_size)
                for entry in archive.infolist()
                if entry.compress_type == zipfile.ZIP_STORED
                and entry.file_size == entry.compress_size
                and not entry.flag_bits & 1  # encrypted
                and parse_media_entry(entry.filename) is not None
            }
    except faults(OSError, ValueError, zipfile.BadZipFile, NotImplementedError, struct.error, EOFError):
        return {}


def _open_packed(folder: RunFolder, sha256: str, extension: str) -> BinaryIO | None:
    with contextlib.ExitStack() as closing, suppress(OSError, ValueError, struct.error):
        entry = list_packed_media(folder).get(media_entry(sha256, extension))
        if entry is None:
            return None
        file = closing.enter_context(open_to_read(media_pack(folder), below=folder.path))
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(entry.header_offset)
        signature, num_name_bytes, num_extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        start = entry.header_offset + _LOCAL_HEADER.size + num_name_bytes + num_extra_bytes
        if signature != b"PK\x03\x04" or start + entry.size_bytes > size_bytes:
            return None
        closing.pop_all()
        return io.BufferedReader(_FilePart(file, start, entry.size_bytes))
    return None


class _FilePart(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size_bytes: int) -> None:
        self._file = file
        self._start = start
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        num_bytes = max(0, min(len(view), self._size_bytes - self._position))
        self._file.seek(self._start + self._position)
        data = self._file.read(num_bytes)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
