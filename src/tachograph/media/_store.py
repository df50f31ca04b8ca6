"""The files of the media of a run: `media/<first two digits>/<SHA-256>.<ext>`.

A file is written under a temporary name and renamed, so it is complete or not there. Its name is the hash of its
content, so equal content is one file. The store knows how many files and bytes there are; it never reads a journal.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tachograph._base.files import (
    add_file,
    clone_file,
    link_user_file,
    make_folder,
    open_to_read,
    replace_file,
    replacing,
)
from tachograph._base.hashing import HashedContent, hash_blocks, read_blocks
from tachograph.journal import RunFolder
from tachograph.media._snapshots import FileAt, SnapshotError

__all__ = ["MediaStore", "StoredFile", "has_file_changed", "open_user_file_to_read"]

_MAX_COPIES = 3
_POLL_S = 0.01
_THUMBNAIL_NAME = "{}-320.webp"


class StoredFile(NamedTuple):
    """A file in the store."""

    sha256: str
    ext: str
    num_bytes: int
    is_new: bool = True
    has_changed: bool = False
    """Whether a file of the user changed while it was copied."""
    is_linked: bool = False
    """Whether it is another name of a file of the user."""

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields of an item that refer to the file."""
        mark = {"linked": True} if self.is_linked else {}
        return {"sha256": self.sha256, "ext": self.ext, "bytes": self.num_bytes, **mark}


class _ChangedFileError(Exception):
    """A file is no longer the one that was hashed."""


class _NotClonedError(Exception):
    """The file system cannot share the blocks of files."""


class MediaStore:
    """Adds and removes files. Used only by the media thread."""

    def __init__(
        self, run_folder: Callable[[], RunFolder | None], between_blocks: Callable[[], None] = lambda: None
    ) -> None:
        """Create a store.

        Args:
            run_folder: returns the folder of the run.
            between_blocks: is called between the blocks of files that are read; it may add other files.
        """
        self._run_folder = run_folder
        self._between_blocks = between_blocks
        self._path: Path | None = None
        self._is_closed = False
        self._num_writing = 0
        self.num_bytes = 0
        self.num_files = 0

    def close(self, timeout_s: float) -> None:
        """Write no further file, and wait for the one that is being written. Called by the thread that ends the run."""
        self._is_closed = True
        deadline_s = time.monotonic() + timeout_s
        while self._num_writing and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def open(self) -> None:
        """Count the files of earlier attempts, and remove temporary files of an attempt that was killed."""
        folder = self._folder()
        if folder is None or folder == self._path:
            return
        self._path, self.num_bytes, self.num_files = folder, 0, 0
        with suppress(OSError):  # media of earlier attempts that `tacho compact` has packed
            self.num_bytes += os.stat(folder.with_name("media.zip")).st_size
            self.num_files += 1
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                with suppress(OSError):
                    if name.startswith(".") and name.endswith(".tmp"):
                        os.unlink(path)
                    else:
                        self.num_bytes += os.stat(path).st_size
                        self.num_files += 1

    def has(self, sha256: str, ext: str) -> bool:
        """Return whether a file is stored."""
        path = self._path_of(sha256, ext)
        return path is not None and path.exists()

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
        with self._writing(path) as run_path:
            return add_file(path, data, below=run_path)

    def add_copy(self, file: FileAt, ext: str) -> StoredFile:
        """Store a copy of a file of the user, block by block.

        Raises:
            OSError: if it cannot be written.
            SnapshotError: if it cannot be read, or changes all the time.
        """
        for _ in range(_MAX_COPIES):
            digest, num_bytes = self.hash_file(file.path)
            path = self._path_of(digest, ext)
            is_new = path is not None and not path.exists()
            if path is None or not is_new or self._copy(file.path, path, digest):
                break
        else:
            raise SnapshotError(f"{file.path!r} changed whenever it was copied")
        if is_new:
            self.num_bytes += num_bytes
            self.num_files += 1
        return StoredFile(digest, ext, num_bytes, is_new, has_file_changed(file))

    def add_link(self, file: FileAt, ext: str) -> StoredFile | None:
        """Store a file of the user without copying it; return None where that is not possible.

        The file gets a second name (a hard link), or, where files can share blocks, a clone, which stays as it is if
        the program changes its file later.

        Raises:
            SnapshotError: if it cannot be read, or changes all the time.
        """
        for _ in range(_MAX_COPIES):
            try:
                source = open_user_file_to_read(file.path)
            except OSError as error:
                raise SnapshotError(f"cannot read {file.path!r}: {error.strerror}") from None
            with source:
                before = _facts(os.fstat(source.fileno()))
                digest, num_bytes = hash_blocks(read_blocks(source))
                path = self._path_of(digest, ext)
                has_changed = before[:2] != (file.size_bytes, file.modified_ns)
                if path is None or path.exists():
                    return StoredFile(digest, ext, num_bytes, is_new=False, has_changed=has_changed)
                is_linked = False
                if not self._clone(source, path):
                    is_linked = self._link(file.path, path)
                    if not is_linked:
                        return None
                if _facts(os.fstat(source.fileno())) == before and (not is_linked or _facts(os.stat(path)) == before):
                    self.num_bytes += num_bytes
                    self.num_files += 1
                    return StoredFile(digest, ext, num_bytes, has_changed=has_changed, is_linked=is_linked)
                os.unlink(path)
        raise SnapshotError(f"{file.path!r} changed whenever it was read")

    def _clone(self, source: BinaryIO, path: Path) -> bool:
        try:
            with self._writing(path) as run_path, replacing(path, below=run_path) as descriptor:
                if not clone_file(source.fileno(), descriptor):
                    raise _NotClonedError
        except _NotClonedError:
            return False
        os.close(descriptor)
        return True

    def _link(self, source: str, path: Path) -> bool:
        with suppress(OSError), self._writing(path) as run_path:
            link_user_file(source, path, below=run_path)
            return True
        return False

    def _copy(self, source: str, path: Path, expected_digest: str) -> bool:
        """Copy a file; return False, and leave nothing, if its content has changed since it was hashed."""
        try:
            with (
                self._writing(path) as run_path,
                open_user_file_to_read(source) as file,
                replacing(path, below=run_path) as descriptor,
            ):
                if hash_blocks(self._blocks_until_closed(file), copy_to=descriptor).sha256 != expected_digest:
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
        with self._writing(path) as run_path:
            replace_file(path, data, below=run_path)

    def _folder(self) -> Path | None:
        run_folder = self._run_folder()
        return None if run_folder is None else run_folder.media

    def _path_of(self, sha256: str, ext: str) -> Path | None:
        folder = self._folder()
        return None if folder is None else folder / sha256[:2] / f"{sha256}.{ext}"

    @contextmanager
    def _writing(self, path: Path) -> Iterator[Path]:
        """Create the folder of a file, which is written inside; yield the folder of the run.

        Raises:
            OSError: if the store is closed.
        """
        run_folder = self._run_folder()
        assert run_folder is not None  # noqa: S101 - a path was made from it
        self._num_writing += 1  # before the look at `_is_closed`, which `close` sets first
        try:
            self._raise_if_closed()
            make_folder(path.parent, below=run_folder.path)
            yield run_folder.path
        finally:
            self._num_writing -= 1

    def hash_file(self, path: str) -> HashedContent:
        """Return the hash and the size of a file of the user.

        Raises:
            OSError: if the store is closed.
            SnapshotError: if it cannot be read.
        """
        try:
            with open_user_file_to_read(path) as file:
                return hash_blocks(self._blocks_until_closed(file))
        except OSError as error:
            self._raise_if_closed()
            raise SnapshotError(f"cannot read {path!r}: {error.strerror}") from None

    def _blocks_until_closed(self, file: BinaryIO) -> Iterator[bytes]:
        for block in read_blocks(file):
            self._between_blocks()
            self._raise_if_closed()
            yield block

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise OSError(errno.ECANCELED, "the run has ended")


def open_user_file_to_read(path: str) -> BinaryIO:
    """Open a regular file that the user named.

    Raises:
        OSError: if it cannot be opened, or is no regular file: a pipe would block forever.
    """
    return open_to_read(Path(os.path.realpath(path)))


def _facts(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what changes when a file is changed or replaced."""
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def has_file_changed(file: FileAt) -> bool:
    """Return whether a file of the user was changed or deleted since it was logged."""
    try:
        status = os.stat(file.path)
    except OSError:
        return True
    return (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.modified_ns)
