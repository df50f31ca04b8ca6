"""`ArtifactVersion`: one version of an artifact, to download and to verify."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.files import UnsafeFileError, make_folder, open_to_read, replacing
from tachograph._base.guard import faults
from tachograph._base.hashing import hash_blocks, read_blocks
from tachograph.exceptions import ArtifactError
from tachograph.journal.artifacts._names import check_artifact_path
from tachograph.journal.artifacts._sources import open_source

__all__ = ["ArtifactFile", "ArtifactVersion", "blob_path", "is_sha256"]

_HEX = frozenset("0123456789abcdef")


class ArtifactFile(msgspec.Struct, omit_defaults=True):
    """A file of an artifact."""

    path: str
    """Where the file is in the artifact, with slashes."""
    size_bytes: int = 0
    sha256: str = ""
    """The SHA-256 of the content, 64 hexadecimal digits; empty for a `url` that was not read."""
    url: str | None = None
    """Where the content lies, if it is not stored."""


class ArtifactVersion(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A version of an artifact: its files, and what was said about them when it was logged.

    Example:
        >>> model = run.use_artifact("model:best")
        >>> folder = model.download()
    """

    name: str
    version: str
    """`v0`, `v1` and so on."""
    digest: str
    """The SHA-256 of the list of files; equal files are the same version."""
    type: str = "file"
    description: str | None = None
    metadata: dict[str, Any] = {}
    files: list[ArtifactFile] = []
    run_id: str | None = None
    """The run that logged it first."""
    run_name: str | None = None
    time: float = 0.0
    """When it was logged, in seconds since the epoch."""
    aliases: list[str] = []
    """The aliases that point at the version, as of the moment at which it was read."""
    log_dir: str = ""
    """The log folder that contains it."""

    def __str__(self) -> str:
        return f"{self.name}:{self.version}"

    @property
    def num_files(self) -> int:
        """Number of files."""
        return len(self.files)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def path(self) -> str:
        """The folder with the files, ``artifacts/NAME-VERSION`` in the working folder; downloaded on first use."""
        return self.download()

    def download(self, to: str | os.PathLike[str] | None = None) -> str:
        """Write copies of the files to a folder, and return the path of the folder.

        Each file is checked against its hash. A file that is there already is not written again if it is the same, and
        replaced if it is not; other files in the folder stay.

        Args:
            to: the folder; by default ``artifacts/NAME-VERSION`` in the working folder.

        Raises:
            ArtifactError: if a file is missing or was changed, or cannot be written.
        """
        folder = Path(os.path.abspath(to or os.path.join("artifacts", self._folder_name())))
        try:
            os.makedirs(folder, exist_ok=True)
        except faults(OSError) as error:
            raise ArtifactError(f"cannot create {str(folder)!r}: {error.strerror}") from error
        for file in self.files:
            self._download(file, folder)
        return str(folder)

    def verify(self) -> None:
        """Read all files, and compare them with their hashes.

        Raises:
            ArtifactError: for the first file that is missing or was changed.
        """
        for file in self.files:
            self._check(file, hash_blocks(self._blocks(file)).sha256)

    def _folder_name(self) -> str:
        return f"{self.name}-{self.version}"

    def _download(self, file: ArtifactFile, folder: Path) -> None:
        target = folder / check_artifact_path(file.path)
        if _has_content(target, folder, file):
            return
        try:
            if target.parent != folder:
                make_folder(target.parent, below=folder)
            with replacing(target, below=folder) as descriptor:
                self._check(file, hash_blocks(self._blocks(file), copy_to=descriptor).sha256)
            os.close(descriptor)
        except UnsafeFileError as error:
            raise ArtifactError(f"cannot write {str(target)!r}: {error}") from error
        except faults(OSError) as error:
            raise ArtifactError(f"cannot write {str(target)!r}: {error.strerror}") from error

    def _blocks(self, file: ArtifactFile) -> Iterator[bytes]:
        """Yield the content of a file in pieces."""
        if not file.sha256:
            raise ArtifactError(f"{self}: {file.path!r} is a reference to {file.url!r}, which is not stored; fetch it")
        root = Path(self.log_dir)
        path = blob_path(root, file.sha256) if file.url is None else Path(file.url)
        try:
            # In the log folder of another user, a reference may name a device that never ends.
            with open_to_read(path, below=root) if file.url is None else open(open_source(file.url), "rb") as content:
                if os.fstat(content.fileno()).st_size == file.size_bytes:  # otherwise it was changed
                    yield from read_blocks(content)
        except faults(OSError) as error:
            raise ArtifactError(
                f"{self}: {file.path!r} cannot be read: {error.strerror} ({path}); log the same files again to "
                "restore it"
            ) from error

    def _check(self, file: ArtifactFile, sha256: str) -> None:
        if sha256 == file.sha256:
            return
        if file.url is not None:
            raise ArtifactError(
                f"{self}: {file.path!r} refers to {file.url!r}, which was changed; log it again as a new version"
            )
        where = blob_path(Path(self.log_dir), file.sha256)
        raise ArtifactError(
            f"{self}: the content of {file.path!r} was changed ({where}); delete that file and log the same "
            "files again to restore it"
        )


def blob_path(log_dir: Path, sha256: str) -> Path:
    """Return where a content is stored.

    Raises:
        ArtifactError: if that is no SHA-256.
    """
    if not is_sha256(sha256):
        raise ArtifactError(f"{sha256!r:.80} is not a SHA-256 in hexadecimal; the list of files was changed")
    return log_dir / ".tachograph" / "artifacts" / "files" / sha256[:2] / sha256


def is_sha256(text: str) -> bool:
    """Return whether a text is a SHA-256 in hexadecimal."""
    return len(text) == 64 and _HEX.issuperset(text)


def _has_content(path: Path, folder: Path, file: ArtifactFile) -> bool:
    """Return whether a file has the content already."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size_bytes or status.st_nlink > 1:
            return False
        with open_to_read(path, below=folder) as content:
            return hash_blocks(read_blocks(content)).sha256 == file.sha256
    except faults(OSError):
        return False
