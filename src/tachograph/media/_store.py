"""The files of the media of a run: `media/<first two digits>/<SHA-256>.<ext>`.

A file is written under a temporary name and renamed, so it is complete or not there. Its name is the hash of its
content, so equal content is one file. The store knows how many files and bytes there are; it never reads a journal.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tachograph._base.files import add_file, make_folder, open_to_read, replace_file, replacing, write_all
from tachograph.journal import RunFolder
from tachograph.media._snapshots import FileAt, SnapshotError

__all__ = ["MediaStore", "StoredFile"]

_BLOCK_BYTES = 1 << 20
_MAX_COPIES = 3
_THUMBNAIL_NAME = "{}-320.webp"


class StoredFile(NamedTuple):
    """A file in the store."""

    sha256: str
    ext: str
    num_bytes: int
    is_new: bool = True
    has_changed: bool = False
    """Whether a file of the user changed while it was copied."""

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields of an item that refer to the file."""
        return {"sha256": self.sha256, "ext": self.ext, "bytes": self.num_bytes}


class _ChangedFileError(Exception):
    """A file is no longer the one that was hashed."""


class MediaStore:
    """Adds and removes files. Used only by the media thread."""

    def __init__(self, run_folder: Callable[[], RunFolder | None]) -> None:
        self._run_folder = run_folder
        self._path: Path | None = None
        self.num_bytes = 0
        self.num_files = 0

    def open(self) -> None:
        """Count the files of earlier attempts, and remove temporary files of an attempt that was killed."""
        folder = self._folder()
        if folder is None or folder == self._path:
            return
        self._path, self.num_bytes, self.num_files = folder, 0, 0
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                with suppress(OSError):
                    if name.startswith(".") and name.endswith(".tmp"):
                        os.unlink(path)
                    else:
                        self.num_bytes += os.stat(path).st_size
                        self.num_files += 1

    def add(self, data: bytes, ext: str) -> StoredFile:
        """Store bytes.

        Raises:
            OSError: if they cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self._path_of(digest, ext)
        is_new = path is not None and not path.exists() and self._add_file(path, data)
        if is_new:
            self.num_bytes += len(data)
            self.num_files += 1
        return StoredFile(digest, ext, len(data), is_new)

    def _add_file(self, path: Path, data: bytes) -> bool:
        run_path = self._make_parent(path)
        return add_file(path, data, below=run_path)

    def add_copy(self, file: FileAt, ext: str) -> StoredFile:
        """Store a copy of a file of the user, block by block.

        Raises:
            OSError: if it cannot be written.
            SnapshotError: if it cannot be read, or changes all the time.
        """
        for _ in range(_MAX_COPIES):
            digest, num_bytes = hash_file(file.path)
            path = self._path_of(digest, ext)
            is_new = path is not None and not path.exists()
            if path is None or not is_new or self._copy(file.path, path, digest):
                break
        else:
            raise SnapshotError(f"{file.path!r} changed whenever it was copied")
        if is_new:
            self.num_bytes += num_bytes
            self.num_files += 1
        return StoredFile(digest, ext, num_bytes, is_new, _state(file.path) != (file.size_bytes, file.modified_ns))

    def _copy(self, source: str, path: Path, expected_digest: str) -> bool:
        """Copy a file; return False, and leave nothing, if its content has changed since it was hashed."""
        run_path = self._make_parent(path)
        digest = hashlib.sha256()
        try:
            with open_user_file_to_read(source) as file, replacing(path, below=run_path) as descriptor:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
                    write_all(descriptor, block)
                if digest.hexdigest() != expected_digest:
                    raise _ChangedFileError
        except _ChangedFileError:
            return False
        os.close(descriptor)
        return True

    def remove(self, sha256: str, ext: str) -> None:
        """Delete a file, if it exists."""
        path = self._path_of(sha256, ext)
        if path is None:
            return
        with suppress(OSError):
            num_bytes = os.stat(path).st_size
            os.unlink(path)
            self.num_bytes -= num_bytes
            self.num_files -= 1

    def read(self, sha256: str, ext: str) -> bytes | None:
        """Return the content of a file, or None if it is missing."""
        path = self._path_of(sha256, ext)
        if path is None:
            return None
        with suppress(OSError), open_to_read(path) as file:
            return file.read()
        return None

    def add_thumbnail(self, sha256: str, data: bytes) -> None:
        """Store the thumbnail that the dashboard shows, for a file that is removed."""
        run_folder = self._run_folder()
        if run_folder is None:
            return
        path = run_folder.private / "thumbs" / _THUMBNAIL_NAME.format(sha256)
        make_folder(path.parent, below=run_folder.path)
        replace_file(path, data, below=run_folder.path)

    def _folder(self) -> Path | None:
        run_folder = self._run_folder()
        return None if run_folder is None else run_folder.media

    def _path_of(self, sha256: str, ext: str) -> Path | None:
        folder = self._folder()
        return None if folder is None else folder / sha256[:2] / f"{sha256}.{ext}"

    def _make_parent(self, path: Path) -> Path:
        """Create the folder of a file; return the folder of the run."""
        run_folder = self._run_folder()
        assert run_folder is not None  # noqa: S101 - a path was made from it
        make_folder(path.parent, below=run_folder.path)
        return run_folder.path


def hash_file(path: str) -> tuple[str, int]:
    """Return the hash and the size of a file of the user.

    Raises:
        SnapshotError: if it cannot be read.
    """
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with open_user_file_to_read(path) as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                num_bytes += len(block)
    except OSError as error:
        raise SnapshotError(f"cannot read {path!r}: {error.strerror}") from None
    return digest.hexdigest(), num_bytes


def open_user_file_to_read(path: str) -> BinaryIO:
    """Open a regular file that the user named.

    Raises:
        OSError: if it cannot be opened, or is no regular file: a pipe would block forever.
    """
    return open_to_read(Path(os.path.realpath(path)))


def _state(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
