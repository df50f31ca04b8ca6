"""The files that become an artifact, as they are when it is logged.

The content of a file is read later, by another thread. So the file is opened now: it may then be renamed, replaced or
deleted. A change of its content is noticed by its size and its modification time, and rejected. At most `_MAX_OPEN`
files of a process are open; of further ones, only the facts are noted.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tachograph._base.guard import faults
from tachograph._base.hashing import BLOCK_BYTES, hash_blocks
from tachograph.exceptions import ArtifactError
from tachograph.journal.artifacts._names import check_artifact_path, check_artifact_paths

__all__ = ["PendingFile", "blocks_of", "collect_sources", "hash_content", "open_source"]

"""Files are read in pieces of this size."""

_FLAGS = 0
for _flag in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY", "O_NOINHERIT"):  # a named pipe must not block
    _FLAGS |= getattr(os, _flag, 0)
_MAX_OPEN = 128
_open_descriptors: set[int] = set()
"""The files that are open for artifacts which are not stored yet; a process may have about a thousand."""
_MAX_FILES = 1_000_000


class FileFacts(NamedTuple):
    """What changes when the content of a file does."""

    size_bytes: int
    modified_ns: int
    inode: int


class PendingFile:
    """A file that is about to be stored.

    Attributes:
        path: where it will be in the artifact.
        data: the content, if it is not in a file.
        url: where the content lies, if it is only pointed at.
        is_ours: whether the file at `local_path` was made for the store, which may take it.
        sha256: the hash of a file that is ours, if it was computed already.
        folder: an object that deletes the folder of a file that is ours when nothing refers to it any more.
    """

    __slots__ = ("_descriptor", "data", "facts", "folder", "is_ours", "local_path", "path", "sha256", "url")

    def __init__(
        self,
        path: str,
        local_path: str | None = None,
        *,
        data: bytes | None = None,
        url: str | None = None,
        is_ours: bool = False,
        sha256: str | None = None,
    ) -> None:
        self.path = check_artifact_path(path)
        self.local_path = None if local_path is None else os.path.abspath(local_path)
        self.data = data
        self.url = url
        self.is_ours = is_ours
        self.sha256 = sha256
        self.folder: object = None
        self.facts: FileFacts | None = None
        self._descriptor: int | None = None
        if self.local_path is not None:
            descriptor = open_source(self.local_path)
            self.facts = facts_of(descriptor)
            if not is_ours and len(_open_descriptors) < _MAX_OPEN:
                self._descriptor = descriptor
                _open_descriptors.add(descriptor)
            else:
                os.close(descriptor)

    def open(self) -> int:
        """Return a new descriptor of the file.

        Raises:
            ArtifactError: if it was changed, replaced or deleted after it was added.
        """
        assert self.local_path is not None  # noqa: S101 - data and references are not opened
        if self._descriptor is not None:
            descriptor = os.dup(self._descriptor)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            descriptor = open_source(self.local_path)
        try:
            self.check(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def check(self, descriptor: int) -> None:
        """Raise `ArtifactError` if the file was changed after it was added."""
        if facts_of(descriptor) != self.facts:
            raise ArtifactError(
                f"{self.local_path!r} was changed before it was stored; change files only after wait() has returned"
            )

    def hash(self) -> str:
        """Return the SHA-256 of the content; it is computed once.

        Raises:
            ArtifactError: if the file was changed, replaced or deleted after it was added.
        """
        if self.sha256 is None and self.data is not None:
            self.sha256 = hashlib.sha256(self.data).hexdigest()
        elif self.sha256 is None:
            descriptor = self.open()
            try:
                sha256 = hash_content(descriptor)
                self.check(descriptor)
                self.sha256 = sha256
            finally:
                os.close(descriptor)
        return self.sha256 or ""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            _open_descriptors.discard(self._descriptor)  # first: once it is closed, the number may be used again
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.close()


def open_source(path: str) -> int:
    """Open a regular file, which may be a link to one. Never blocks.

    Raises:
        ArtifactError: if it cannot be read, or is something else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except faults(OSError) as error:
        raise ArtifactError(f"cannot read {path!r}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{path!r} is not a regular file, so it cannot be part of an artifact")
    return descriptor


def blocks_of(descriptor: int) -> Iterator[bytes]:
    """Yield the content of an open file in pieces."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    while block := os.read(descriptor, BLOCK_BYTES):
        yield block


def hash_content(descriptor: int) -> str:
    """Return the SHA-256 of an open file."""
    return hash_blocks(blocks_of(descriptor)).sha256


def facts_of(descriptor: int) -> FileFacts:
    """Return the facts of an open file."""
    status = os.fstat(descriptor)
    return FileFacts(status.st_size, status.st_mtime_ns, status.st_ino)


def collect_sources(files: Any, *, follow_links: bool = False, name: str | None = None) -> list[PendingFile]:
    """Return the files that a path, several paths or a dict name.

    Args:
        files: a file or a folder; a list of these; or a dict from paths in the artifact to files, folders or bytes.
            A file has its own name in the artifact, and the content of a folder its path inside the folder.
        follow_links: whether links in a folder may lead out of it. A path that is named here may be a link.
        name: the path in the artifact of a single file or folder.

    Raises:
        ArtifactError: if there is no such file, two files would have the same path, or one would be the folder of
            another one.
    """
    sources: dict[str, PendingFile] = {}
    for prefix, item in _named_items(files, name):
        for path, local_path, data in _expand(prefix, item, follow_links):
            if path in sources:
                raise ArtifactError(
                    f"two files would be {path!r} in the artifact; pass a dict from paths in the artifact to files"
                )
            if len(sources) >= _MAX_FILES:
                raise ArtifactError(f"an artifact has at most {_MAX_FILES:,} files; pack them into archives")
            sources[path] = PendingFile(path, local_path, data=data)
    if not sources:
        raise ArtifactError(f"there are no files in {files!r:.200}")
    check_artifact_paths(sources)
    return list(sources.values())


def _named_items(files: Any, name: str | None) -> Iterator[tuple[str | None, Any]]:
    if isinstance(files, Mapping):
        for path, item in files.items():
            yield check_artifact_path(path), item
    elif isinstance(files, (str, os.PathLike)):
        yield name, files
    elif isinstance(files, Iterable) and not isinstance(files, (bytes, bytearray)):
        for item in files:
            yield None, item
    else:
        raise ArtifactError(f"expected a path, a list of paths or a dict of paths, got {type(files).__name__}")


def _expand(prefix: str | None, item: Any, follow_links: bool) -> Iterator[tuple[str, str | None, bytes | None]]:
    """Yield path, local path and data of each file."""
    if isinstance(item, (bytes, bytearray, memoryview)):
        if prefix is None:
            raise ArtifactError("bytes need a path in the artifact: pass a dict from paths to bytes")
        yield prefix, None, bytes(item)
        return
    if not isinstance(item, (str, os.PathLike)):
        raise ArtifactError(f"expected a path, got {type(item).__name__}")
    local_path = os.path.abspath(os.fspath(item))
    if not os.path.isdir(local_path):
        yield prefix or os.path.basename(local_path), local_path, None
        return
    for path in _files_below(Path(local_path), follow_links):
        inner = path.relative_to(local_path).as_posix()
        yield f"{prefix}/{inner}" if prefix else inner, str(path), None


def _files_below(folder: Path, follow_links: bool) -> Iterator[Path]:
    """Yield the files of a folder. A link to a folder inside is left out: its files are there under their own path."""
    real_folder = os.path.realpath(folder)
    waiting = [str(folder)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except faults(OSError) as error:
            raise ArtifactError(f"cannot read {error.filename!r}: {error.strerror}") from error
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
                continue
            if entry.is_symlink():
                target = os.path.realpath(entry.path)
                is_inside = target.startswith(real_folder + os.sep)
                if not is_inside and (not follow_links or os.path.isdir(target)):
                    raise ArtifactError(
                        f"{entry.path!r} is a link to {target!r}, outside of the folder; "
                        "remove the link, or add its target by its own path"
                    )
                if os.path.isdir(target):
                    continue
            yield Path(entry.path)
