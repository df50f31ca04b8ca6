"""Media and files of artifacts, on the server: stored once per project, by the hash of their content.

    .server/blobs/projects/<project>/3f/3fa9…e1         a content
    .server/blobs/projects/<project>/3f/3fa9…-KEY.part  the beginning of one that a key is sending
    <project>/<run>/media/3f/3fa9…e1.webp               a second name (a hard link) of the content, in a run folder
    <project>/.tachograph/artifacts/files/3f/3fa9…e1    the same, in the artifacts of the project

Contents that a key for all projects sends without naming a run are in `.server/blobs/all`.

So a copy has its media like any other run folder, and every reader finds them there. The number of names of
a content is the number of its references: deleting a run, or moving it elsewhere, needs no bookkeeping. A content with
a single name is deleted by `collect` after a while. If a run gets it at that moment, the run keeps its name, and only
a later client has to send the content again. On a file system without hard links each run has a copy of its own.

A client asks for a hash first and sends the file only if the server lacks it. The answer would tell whether anyone has
sent that file, so each project has blobs of its own. A large file is sent in parts. They are appended to a file of
the key that sends them, so no other key can spoil it, and the hash of the whole decides whether it becomes a blob.

A blob counts towards the limit of the key that sent it first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tachograph._base.files import (
    add_file,
    link_file,
    make_folder,
    move_file,
    open_to_append,
    open_to_read,
    replacing,
    write_all,
)
from tachograph._base.hashing import hash_blocks, read_blocks
from tachograph.journal import RunFolder
from tachograph.reader import has_media, is_media_file, media_path
from tachograph.remote import hash_bytes
from tachograph.server.team._copies import CopyBusyError, InvalidBatchError, OutOfOrderError, StorageFullError
from tachograph.server.team._key_usage import forget_missing_blobs, list_blob

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["BlobStore", "CollectedBlobs", "StoredPart"]

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_GRACE_S = 86_400.0
"""A blob that no run refers to, and a part that no one continues, stay for so long."""
_MIN_FREE_BYTES = 256 << 20
"""Blobs leave so much space on the disk for journals."""
_DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StoredPart(NamedTuple):
    """The result of storing a part of a blob."""

    have: int
    """How many bytes of the blob are stored now."""
    num_new_bytes: int


class CollectedBlobs(NamedTuple):
    """The files that `collect` deleted."""

    num_files: int
    num_bytes: int


class BlobStore:
    """The blobs below the folder of a server. A project is named by its folder; None stands for no project."""

    def __init__(self, root: Path, *, is_durable: bool = False) -> None:
        self._root = root
        self._is_durable = is_durable

    def has(self, digest: str, project: str | None) -> bool:
        """Return whether there is a blob.

        Raises:
            InvalidBatchError: if the digest is not a SHA-256 in hexadecimal.
        """
        return self._path(digest, project).is_file()

    def part_bytes(self, digest: str, project: str | None, owner: str) -> int:
        """Return how many bytes of a blob a key has sent so far; 0 if the blob is complete.

        Raises:
            InvalidBatchError: if the digest is not a SHA-256 in hexadecimal.
        """
        with contextlib.suppress(OSError):
            return os.lstat(self._part_path(digest, project, owner)).st_size
        return 0

    def add(self, digest: str, data: bytes, project: str | None, owner: str) -> bool:
        """Store a blob for a key, whose name is the owner; return False if there is one already.

        Raises:
            CopyError: if the data has another digest, or the disk is full.
            OSError: if it cannot be written.
        """
        path = self._path(digest, project)
        if hash_bytes(data) != digest:
            raise InvalidBatchError("the body does not have this hash: it was changed on its way")
        if path.is_file():
            return False
        self._check_space(len(data))
        make_folder(path.parent, below=self._root, mode=0o700)
        list_blob(self._root, owner, path)  # first: a line without a blob does not count
        with _explaining_full_disk():
            return add_file(path, data, below=self._root, mode=0o644)

    def append(
        self, digest: str, data: bytes, project: str | None, owner: str, *, offset: int, size_bytes: int
    ) -> StoredPart:
        """Store a part of a blob; the last one makes the blob, if the whole has the digest.

        Args:
            digest: the SHA-256 of the whole.
            data: the part.
            project: the folder of the project.
            owner: the name of the key.
            offset: where the part begins.
            size_bytes: the size of the whole.

        Raises:
            OutOfOrderError: if bytes before the part are missing.
            CopyError: if the whole has another digest or size, which makes it begin again, or the disk is full.
            OSError: if it cannot be written.
        """
        if offset + len(data) > size_bytes:
            raise InvalidBatchError("the part exceeds the size of the whole")
        if offset == 0 and len(data) == size_bytes:
            is_new = self.add(digest, data, project, owner)
            return StoredPart(size_bytes, len(data) if is_new else 0)
        if self.has(digest, project):
            return StoredPart(size_bytes, 0)
        self._check_space(len(data))
        path = self._part_path(digest, project, owner)
        make_folder(path.parent, below=self._root, mode=0o700)
        if offset == 0:
            list_blob(self._root, owner, path)
        descriptor = open_to_append(path, below=self._root, mode=0o644)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # a client that lost an answer may send the part twice at once
            status = os.fstat(descriptor)
            if status.st_nlink != 1:
                raise CopyBusyError("another request has completed the file: try again")
            if offset > status.st_size:
                raise OutOfOrderError(status.st_size)
            new_data = memoryview(data)[status.st_size - offset :]
            self._write(descriptor, status.st_size, new_data)
            num_stored_bytes = max(status.st_size, offset + len(data))
            if num_stored_bytes >= size_bytes:
                self._complete(path, descriptor, digest, project, owner)
            return StoredPart(num_stored_bytes, len(new_data))
        finally:
            os.close(descriptor)

    def link(self, folder: RunFolder, digest: str, extension: str, project: str | None) -> bool:
        """Give a blob a name in the media of a run; return False if there is no such blob.

        Raises:
            InvalidBatchError: if the digest or the extension is not one of a media file.
            OSError: if it cannot be written.
        """
        if not is_media_file(digest, extension):
            raise InvalidBatchError("a media file is named by its SHA-256 and a short extension")
        target = media_path(folder, digest, extension)
        if has_media(folder, digest, extension):
            return True
        if not self.has(digest, project):
            return False
        make_folder(target.parent, below=folder.path)
        return self.link_to(digest, target, project)

    def link_to(self, digest: str, target: Path, project: str | None) -> bool:
        """Give a blob a name in a folder that exists; return False if there is no such blob.

        Raises:
            InvalidBatchError: if the digest is not a SHA-256 in hexadecimal.
            OSError: if it cannot be written.
        """
        path = self._path(digest, project)
        if not path.is_file():
            return False
        try:
            link_file(path, target, below=self._root)
        except FileNotFoundError:  # collected in the meantime
            return False
        except OSError:  # no hard links, or too many of one file
            return self._copy(path, target)
        return True

    def collect(self, *, grace_s: float = _GRACE_S) -> CollectedBlobs:
        """Delete blobs without a reference, and parts that were not continued for a while."""
        oldest = time.time() - grace_s
        num_files = num_bytes = 0
        for path in self._files():
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                # The time of the last change of the content, or of the number of names.
                if status.st_nlink == 1 and max(status.st_ctime, status.st_mtime) < oldest:
                    path.unlink()
                    num_files += 1
                    num_bytes += status.st_size
        if num_files:
            forget_missing_blobs(self._root)
        return CollectedBlobs(num_files, num_bytes)

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self._root / ".server" / "blobs"):
            yield from (Path(folder, name) for name in names)

    def _write(self, descriptor: int, size: int, data: memoryview) -> None:
        """Append to a file of a size, or leave it as it is."""
        try:
            with _explaining_full_disk():
                write_all(descriptor, data)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise

    def _complete(self, part: Path, descriptor: int, digest: str, project: str | None, owner: str) -> None:
        """Make a blob of a file that is complete; delete the file if it is not the right one."""
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            is_right = hash_blocks(read_blocks(file)).sha256 == digest
        if is_right:
            if self._is_durable:
                os.fsync(descriptor)
            path = self._path(digest, project)
            list_blob(self._root, owner, path)
            try:
                link_file(part, path, below=self._root)
            except OSError:  # no hard links
                move_file(part, path, below=self._root)
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        if not is_right:
            raise InvalidBatchError("the whole does not have this hash: send it again from its beginning")

    def _copy(self, path: Path, target: Path) -> bool:
        try:
            file = open_to_read(path, below=self._root)
        except FileNotFoundError:
            return False
        with file, _explaining_full_disk():
            with replacing(target, below=self._root) as descriptor:
                hash_blocks(read_blocks(file), copy_to=descriptor)
            os.close(descriptor)
        return True

    def _check_space(self, num_bytes: int) -> None:
        if shutil.disk_usage(self._root).free < num_bytes + _MIN_FREE_BYTES:
            raise StorageFullError("the disk of the server has no room for media")

    def _path(self, digest: str, project: str | None) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise InvalidBatchError("the name of a blob is the SHA-256 of its content, in hexadecimal")
        area = ("all",) if project is None else ("projects", project)
        return self._root.joinpath(".server", "blobs", *area, digest[:2], digest)

    def _part_path(self, digest: str, project: str | None, owner: str) -> Path:
        return self._path(digest, project).with_name(f"{digest}-{hash_bytes(owner.encode())[:16]}.part")


@contextlib.contextmanager
def _explaining_full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            raise StorageFullError(f"the disk of the server is full ({error.strerror})") from error
        raise
