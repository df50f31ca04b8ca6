"""Back-ups of a data folder: one archive, made while the server runs, and restored into a new folder.

Journals, annotations and the audit log only grow, so each is copied up to its last complete line; other files are
replaced as a whole. A client that had sent more than the archive has continues where the restored file ends, as after
every restart of the server. The index of runs and the folders are listed together, under the lock of registrations:
an entry without its folder would mean that the run was deleted. A file that disappears while it is read, because
a run was moved, makes the back-up begin again.

The archive is a compressed tar file. A file with several names, such as a picture of several runs, is in it once, and
as a link under the other names. Its last member lists all others with their SHA-256, so an archive that is cut or
damaged is not restored. It has hashes of access keys, but not the secret that signs sessions: people log in again.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from tachograph._base.files import (
    add_name,
    create_file,
    exclusive_lock,
    make_folder,
    make_temporary_folder,
    move_folder,
    open_to_read,
    replacing,
    write_all,
)
from tachograph._base.hashing import hash_blocks, read_blocks
from tachograph._base.typed import decode_json
from tachograph.exceptions import TachographError
from tachograph.journal import complete_size

__all__ = ["BackupError", "BackupSummary", "create_backup", "restore_backup"]

_MANIFEST = "tachograph-backup.json"
_MAX_MANIFEST_BYTES = 1 << 30
_NUM_ATTEMPTS = 3
_SKIPPED_FOLDERS = {".tacho": {"cache"}, ".server": {"counts_of_keys", "failures", "processes"}}
"""By the name of the folder that they are in: the server builds them again."""
_SKIPPED_FILES = re.compile(r".*\.(lock|tmp|part)|probe-[\d-]+|session\.key")


class BackupError(TachographError):
    """A back-up cannot be made, or an archive cannot be restored."""


class BackupSummary(msgspec.Struct, frozen=True):
    """The size of a back-up."""

    num_files: int
    num_bytes: int


class _ArchivedFile(msgspec.Struct):
    size: int
    sha256: str


class _Manifest(msgspec.Struct):
    version: int
    created: float
    files: dict[str, _ArchivedFile]


class _FileChangedError(Exception):
    """A file disappeared or became shorter."""


def create_backup(root: Path, target: Path) -> BackupSummary:
    """Write an archive of a data folder, also while a server uses it.

    Args:
        root: the data folder.
        target: the archive; the file must not exist.

    Raises:
        BackupError: if the folder is not one of a server, or the archive exists or is in the folder.
        OSError: if a file cannot be read or written.
    """
    root, target = Path(os.path.realpath(root)), Path(os.path.realpath(target))
    if not (root / ".server").is_dir():
        raise BackupError(f"{root} is not the data folder of a server: it has no folder .server")
    if target.is_relative_to(root):
        raise BackupError(f"{target} is in the data folder: choose a place outside of it")
    if os.path.lexists(target):
        raise BackupError(f"{target} exists: choose another name")
    for _ in range(_NUM_ATTEMPTS):
        try:
            with replacing(target, below=target.parent, mode=0o600, must_be_new=True) as descriptor:
                manifest = _write_archive(root, _DescriptorWriter(descriptor))
                os.fsync(descriptor)
            os.close(descriptor)
        except _FileChangedError:
            continue
        return _summary(manifest)
    raise BackupError(f"runs in {root} were moved or deleted while they were read: try again")


def restore_backup(archive: Path, root: Path) -> BackupSummary:
    """Unpack an archive into a new data folder, which appears only if everything in it is intact.

    Args:
        archive: the archive.
        root: the data folder; it must be empty or not exist.

    Raises:
        BackupError: if the archive is damaged or not a back-up, or the folder is not empty.
        OSError: if a file cannot be read or written.
    """
    root = root.absolute()
    if os.path.lexists(root) and (not root.is_dir() or os.listdir(root)):
        raise BackupError(f"{root} is not an empty folder: restore into a new one")
    root.parent.mkdir(parents=True, exist_ok=True)
    with make_temporary_folder(root.parent, below=root.parent) as folder:
        content = folder / "data"
        content.mkdir(mode=0o700)
        make_folder(content / ".server" / "runs", below=content, mode=0o700)
        try:
            with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:gz") as members:
                manifest = _unpack(members, content)
        except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise BackupError(f"{archive} is damaged or not a back-up: {error}") from error
        if root.is_dir():
            root.rmdir()
        move_folder(content, root, below=root.parent)
    return _summary(manifest)


def _summary(manifest: _Manifest) -> BackupSummary:
    return BackupSummary(len(manifest.files), sum(file.size for file in manifest.files.values()))


# Writing -------------------------------------------------------------------------------------------------------------


def _write_archive(root: Path, output: _DescriptorWriter) -> _Manifest:
    with exclusive_lock(root / ".server" / "register.lock", below=root, mode=0o600):
        names = sorted(_list_files(root))
    manifest = _Manifest(1, time.time(), {})
    first_names: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=cast(BinaryIO, output), mode="w:gz", compresslevel=3) as archive:
        for name in names:
            manifest.files[name] = _add_file(archive, root, name, first_names, manifest)
        data = msgspec.json.encode(manifest)
        header = tarfile.TarInfo(_MANIFEST)
        header.size = len(data)
        archive.addfile(header, io.BytesIO(data))
    return manifest


def _list_files(root: Path) -> Iterator[str]:
    for path, folders, files in os.walk(root):
        skipped_folders = _SKIPPED_FOLDERS.get(os.path.basename(path), set())
        folders[:] = [name for name in folders if name not in skipped_folders]
        for name in files:
            full_path = os.path.join(path, name)
            if not _SKIPPED_FILES.fullmatch(name) and os.path.isfile(full_path) and not os.path.islink(full_path):
                yield Path(full_path).relative_to(root).as_posix()


def _add_file(
    archive: tarfile.TarFile, root: Path, name: str, first_names: dict[tuple[int, int], str], manifest: _Manifest
) -> _ArchivedFile:
    try:
        file = open_to_read(root / name, below=root)
    except FileNotFoundError as error:
        raise _FileChangedError from error
    with file:
        header = tarfile.TarInfo(name)
        file_info = os.fstat(file.fileno())
        header.mtime = int(file_info.st_mtime)
        if file_info.st_nlink > 1:
            first_name = first_names.setdefault((file_info.st_dev, file_info.st_ino), name)
            if first_name != name:
                header.type, header.linkname = tarfile.LNKTYPE, first_name
                archive.addfile(header)
                return manifest.files[first_name]
        header.size = complete_size(file) if name.endswith(".jsonl") else file_info.st_size
        file.seek(0)
        reader = _HashingReader(file)
        try:
            archive.addfile(header, reader)
        except OSError as error:
            if error.errno is None:  # fewer bytes than announced
                raise _FileChangedError from error
            raise
        return _ArchivedFile(header.size, reader.digest.hexdigest())


class _DescriptorWriter:
    """The part of a file that `tarfile` writes to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> int:
        return write_all(self._descriptor, data)

    def flush(self) -> None:
        pass


class _HashingReader:
    """A file that computes the hash of the bytes that are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


# Reading -------------------------------------------------------------------------------------------------------------


def _unpack(members: tarfile.TarFile, folder: Path) -> _Manifest:
    """Write the files of an archive below a folder; return its manifest after comparing them.

    Only regular files with plain relative names are accepted, and other names of these files, and no name twice, so
    nothing is written elsewhere.
    """
    archived_files: dict[str, _ArchivedFile] = {}
    for member in members:
        if member.islnk():
            archived_files[_check_name(member.name)] = _unpack_link(member, folder, archived_files)
            continue
        source = members.extractfile(member) if member.isreg() else None
        if source is None:
            raise BackupError(f"{member.name[:200]!r} in the archive is not a regular file")
        if member.name == _MANIFEST:
            manifest = _read_manifest(source, member.size)
            if manifest.files != archived_files:
                raise BackupError("the files in the archive differ from its list of files: it is damaged")
            return manifest
        archived_files[_check_name(member.name)] = _unpack_file(source, member, folder)
    raise BackupError("the archive has no list of files: it was cut")


def _unpack_link(member: tarfile.TarInfo, folder: Path, archived_files: dict[str, _ArchivedFile]) -> _ArchivedFile:
    if member.linkname not in archived_files or member.name in archived_files:
        raise BackupError(f"{member.name[:200]!r} in the archive is another name of a file that it does not have")
    path = folder / member.name
    make_folder(path.parent, below=folder, mode=0o700)
    add_name(folder / member.linkname, path, below=folder)
    return archived_files[member.linkname]


def _unpack_file(source: Any, member: tarfile.TarInfo, folder: Path) -> _ArchivedFile:
    path = folder / member.name
    make_folder(path.parent, below=folder, mode=0o700)
    try:
        descriptor = create_file(path, below=folder, mode=0o600)
    except (FileExistsError, NotADirectoryError) as error:
        raise BackupError(f"the archive has {member.name[:200]!r} twice") from error
    try:
        content = hash_blocks(read_blocks(source), copy_to=descriptor)
        os.utime(descriptor, (member.mtime, member.mtime))
    finally:
        os.close(descriptor)
    return _ArchivedFile(content.num_bytes, content.sha256)


def _check_name(name: str) -> str:
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or any(part in {"", ".", ".."} for part in parts):
        raise BackupError(f"{name[:200]!r} in the archive is not a valid path")
    return name


def _read_manifest(source: Any, size: int) -> _Manifest:
    if size > _MAX_MANIFEST_BYTES:
        raise BackupError("the list of files in the archive is too large")
    try:
        manifest = decode_json(source.read(), _Manifest)
    except msgspec.MsgspecError as error:
        raise BackupError(f"the list of files in the archive is damaged: {error}") from error
    if manifest.version != 1:
        raise BackupError(f"the archive has version {manifest.version}: restore it with a newer Tachograph")
    return manifest
