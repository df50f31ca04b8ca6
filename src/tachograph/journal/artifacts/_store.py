"""The store of artifacts in a log folder.

    .tachograph/artifacts/files/3f/3fa9…e1     contents, named by their SHA-256; never changed
    .tachograph/artifacts/names/<name>/v0.json a version: what was said about it, and its files with their hashes
    .tachograph/artifacts/names/<name>/index.json  aliases, digests, and the number of the next version
    .tachograph/artifacts/staging/             files that are about to be stored
    .tachograph/artifacts/lock                 held while versions or aliases change
    .tachograph/artifacts/in-use.lock          shared while files are stored, exclusive for `collect_garbage`

Contents are copied, not linked: a second name of the user's file (a hard link) would change with it. Where the file
system can share blocks until one of the files is changed (Btrfs, XFS), a copy takes no time and no space. A file gets
its name when it is complete, and a version is written after all of its files. So whenever a process is killed, a
version is complete or absent; a temporary file or a content that no version names is removed by `collect_garbage`.

On a team's server each project has a store of its own, to which `receive` adds the versions of trainers. The server
numbers them itself. A trainer may send a version again, or after one that was logged later, so `receive` moves an alias
only if the version was logged after the last move, and adds no version that was removed since.

A version is created under a lock and as a new file, so two processes that log one name at once get two versions. The
index is written after the version. If the process is killed between the two, the index lacks the version; readers see
that by its number, and apply the aliases in the version themselves.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tachograph._base.files import (
    add_file,
    clone_file,
    create_file,
    exclusive_lock,
    link_file,
    make_folder,
    read_small,
    replace_file,
    replacing,
    write_all,
)
from tachograph._base.guard import faults, suppress
from tachograph._base.hashing import hash_blocks
from tachograph._base.settings import resolve_settings
from tachograph._base.typed import decode_json
from tachograph.exceptions import ArtifactError, did_you_mean
from tachograph.journal.artifacts._names import (
    check_alias,
    check_artifact_name,
    check_artifact_path,
    check_artifact_paths,
    is_version,
    parse_reference,
)
from tachograph.journal.artifacts._sources import PendingFile, blocks_of, hash_content
from tachograph.journal.artifacts._version import ArtifactFile, ArtifactVersion, blob_path, is_sha256
from tachograph.records import mask_mapping, restore_non_finite, to_json, to_plain

__all__ = [
    "ArtifactStore",
    "ClearedSpace",
    "ReceivedVersion",
    "digest_of",
    "find_artifact",
    "find_artifact_folders",
    "list_artifacts",
]

_MAX_MANIFEST_BYTES = 1 << 30
_MANIFEST = re.compile(r"v(0|[1-9][0-9]{0,8})\.json", re.ASCII)
_STAGING_S = 7 * 86_400.0
"""Files that have been waiting to be stored for longer belong to a process that was killed."""


class _Index(msgspec.Struct):
    """The content of `index.json` of a name."""

    next_number: int = 0
    aliases: dict[str, int] = {}
    digests: dict[str, int] = {}
    alias_times: dict[str, float] = {}
    """When each alias was last moved or removed."""
    removal_times: dict[str, float] = {}
    """When the versions that were removed were removed, by their digests."""


class ClearedSpace(NamedTuple):
    """Files that `collect_garbage` removed, or that are stored."""

    num_files: int
    num_bytes: int


class ReceivedVersion(NamedTuple):
    """The result of `ArtifactStore.receive`."""

    version: ArtifactVersion | None
    """None if contents are missing, or the version was removed after it was logged."""
    missing_hashes: Sequence[str] = ()
    is_new: bool = False
    manifest_path: Path = Path()
    """The file that describes the version."""


class ArtifactStore:
    """The artifacts of a log folder.

    Args:
        log_dir: the log folder.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._root = Path(os.path.abspath(log_dir))
        self._folder = self._root / ".tachograph" / "artifacts"

    # Storing -------------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        sources: Sequence[PendingFile],
        *,
        type: str = "file",  # noqa: A002 - as users call it
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        aliases: Iterable[str] = (),
        run_id: str | None = None,
        run_name: str | None = None,
    ) -> ArtifactVersion:
        """Store files as a version of a name, and return it; equal files are the version that exists already.

        The alias `latest` and the other ones then point at it.

        Raises:
            ArtifactError: if an argument is invalid, or a file cannot be read or stored.
        """
        check_artifact_name(name)
        aliases = [check_alias(alias) for alias in aliases]
        check_artifact_paths(source.path for source in sources)
        with self._explaining(f"artifact {name!r} cannot be stored"):
            self._make_folder("names", name)
            with exclusive_lock(self._folder / "in-use.lock", below=self._root, is_shared=True):
                files = [self._store(source) for source in sources]
                files.sort(key=lambda file: file.path)
                version = ArtifactVersion(
                    name=name,
                    version="",
                    digest=digest_of(files),
                    type=str(type),
                    description=description,
                    metadata=_plain_metadata(metadata),
                    files=files,
                    run_id=run_id,
                    run_name=run_name,
                    time=time.time(),
                    aliases=list(dict.fromkeys(["latest", *aliases])),
                )
                return self._commit(version)

    def link(self, version: ArtifactVersion, name: str, aliases: Iterable[str] = ()) -> ArtifactVersion:
        """Store the files of a version also under another name; they take no more space.

        Raises:
            ArtifactError: if an argument is invalid, or the version cannot be written.
        """
        check_artifact_name(name)
        new_aliases = list(dict.fromkeys(["latest", *map(check_alias, aliases)]))
        copy = msgspec.structs.replace(version, name=name, version="", aliases=new_aliases, log_dir="")
        with self._explaining(f"artifact {name!r} cannot be stored"):
            self._make_folder("names", name)
            with exclusive_lock(self._folder / "in-use.lock", below=self._root, is_shared=True):
                self.find(str(version))  # its files are there as long as it is
                return self._commit(copy)

    def receive(
        self, version: ArtifactVersion, logged_at: float, link: Callable[[str, Path], bool], *, max_missing: int
    ) -> ReceivedVersion:
        """Store a version that another log folder has, as soon as its contents are here.

        Args:
            version: the version; its aliases are those with which it was logged.
            logged_at: when it was logged, in seconds since the epoch.
            link: gives a content, named by its hash, a second name at a path; returns False if it is missing.
            max_missing: how many missing contents to return.

        Raises:
            ArtifactError: if the version is invalid, or a content has another size.
        """
        version = _checked(version)
        with self._explaining(f"artifact {version.name!r} cannot be stored"):
            self._make_folder("names", version.name)
            with exclusive_lock(self._folder / "in-use.lock", below=self._root, is_shared=True):
                missing_hashes: list[str] = []
                sizes = {file.sha256: file.size_bytes for file in version.files if not file.url}
                for sha256, num_bytes in sizes.items():
                    if not self._link(sha256, num_bytes, link):
                        missing_hashes.append(sha256)
                        if len(missing_hashes) == max_missing:
                            break
                if missing_hashes:
                    return ReceivedVersion(None, missing_hashes)
                numbers_before = self._numbers(version.name)
                committed_version = self._commit_logged(version, logged_at)
                if committed_version is None:
                    return ReceivedVersion(None)
                number = int(committed_version.version[1:])
                manifest_path = self._manifest(version.name, number)
                return ReceivedVersion(committed_version, [], number not in numbers_before, manifest_path)

    def _link(self, sha256: str, num_bytes: int, link: Callable[[str, Path], bool]) -> bool:
        if self._has(sha256, num_bytes):
            return True
        target = self._blob(sha256)
        with suppress(FileNotFoundError):
            target.unlink()  # of another size
        if not link(sha256, target):
            return False
        if not self._has(sha256, num_bytes):
            target.unlink()
            raise ArtifactError(f"the content {sha256[:12]}… has another size than the list of files says")
        return True

    def has(self, reference: str) -> bool:
        """Return whether there is such a version or alias.

        Raises:
            ArtifactError: if the text names no artifact.
        """
        name, alias = parse_reference(reference)
        return (int(alias[1:]) in self._numbers(name)) if is_version(alias) else alias in self._index(name).aliases

    def contents(self, name: str, version: str) -> dict[str, int]:
        """Return the sizes of the contents of a version by their hashes. The versions used last are kept in memory.

        Raises:
            ArtifactError: if there is no such version, or it cannot be read.
        """
        if not is_version(version):
            raise ArtifactError(f"{version!r:.80} is not a version such as 'v0'")
        path = self._manifest(check_artifact_name(name), int(version[1:]))
        try:
            status = os.lstat(path)
        except faults(OSError):
            raise ArtifactError(f"artifact {name!r} has no version {version!r}") from None
        identity = (status.st_mtime_ns, status.st_ino, status.st_size)
        return _contents(str(self._root), name, int(version[1:]), identity)

    def stage(self) -> Path:
        """Create a folder on the file system of the store, for files that are about to be stored.

        Raises:
            ArtifactError: if it cannot be created.
        """
        with self._explaining("files of an artifact cannot be written"):
            return self._make_folder("staging", secrets.token_hex(8))

    def stage_copy(self, source: PendingFile, folder: Path) -> PendingFile:
        """Copy a file to a folder of `stage`, as it is now, and compute its hash.

        Raises:
            ArtifactError: if the file cannot be read or copied.
        """
        with self._explaining(f"{source.local_path!r} cannot be copied"):
            target = folder / secrets.token_hex(8)
            descriptor = source.open()
            try:
                copy = create_file(target, below=self._root)
                try:
                    sha256 = hash_content(copy) if clone_file(descriptor, copy) else _copy(descriptor, copy)
                    source.check(descriptor)
                finally:
                    os.close(copy)
            finally:
                os.close(descriptor)
                source.close()
            return PendingFile(source.path, str(target), is_ours=True, sha256=sha256)

    def _store(self, source: PendingFile) -> ArtifactFile:
        """Store a file under its hash."""
        if source.data is not None:
            return self._store_data(source.path, source.data)
        if source.local_path is None:
            return ArtifactFile(source.path, url=source.url)
        descriptor = source.open()
        try:
            if source.url is not None:
                return ArtifactFile(source.path, os.fstat(descriptor).st_size, source.hash(), source.url)
            return self._store_file(source, descriptor)
        finally:
            os.close(descriptor)
            source.close()

    def _store_data(self, path: str, data: bytes) -> ArtifactFile:
        sha256 = hashlib.sha256(data).hexdigest()
        if not self._has(sha256, len(data)):
            target = self._blob(sha256)
            with suppress(FileNotFoundError):
                target.unlink()  # of another size
            add_file(target, data, below=self._root, mode=0o444)
        return ArtifactFile(path, len(data), sha256)

    def _store_file(self, source: PendingFile, descriptor: int) -> ArtifactFile:
        num_bytes = os.fstat(descriptor).st_size
        if source.is_ours:
            return self._take(source, descriptor, num_bytes)
        # A clone costs nothing, so it is made first. A copy is only made of a content that is new.
        folder = self._make_folder("staging")
        temporary = folder / secrets.token_hex(8)
        copy = create_file(temporary, below=self._root)
        try:
            if clone_file(descriptor, copy):
                sha256 = hash_content(copy)
            else:
                sha256 = source.hash()
                if self._has(sha256, num_bytes):
                    return ArtifactFile(source.path, num_bytes, sha256)
                sha256 = _copy(descriptor, copy)
            source.check(descriptor)
            os.fsync(copy)
            self._name(temporary, sha256, num_bytes)
            return ArtifactFile(source.path, num_bytes, sha256)
        finally:
            os.close(copy)
            with suppress(FileNotFoundError):
                temporary.unlink()

    def _take(self, source: PendingFile, descriptor: int, num_bytes: int) -> ArtifactFile:
        """Store a file that was made for the store, without another copy of it."""
        sha256 = source.hash()
        os.fsync(descriptor)
        assert source.local_path is not None  # noqa: S101 - it was opened
        path = Path(source.local_path)
        if self._root in path.parents:
            self._name(path, sha256, num_bytes)
            path.unlink()
            with suppress(OSError):
                path.parent.rmdir()  # after the last file
            return ArtifactFile(source.path, num_bytes, sha256)
        source.is_ours = False  # on another file system
        return self._store_file(source, descriptor)

    def _name(self, path: Path, sha256: str, num_bytes: int) -> None:
        """Give a complete file the name of its content, unless there is one."""
        if self._has(sha256, num_bytes):
            return
        target = self._blob(sha256)
        with suppress(FileNotFoundError):
            target.unlink()  # of another size: it was changed or is not complete
        os.chmod(path, 0o444)
        try:
            link_file(path, target, below=self._root)
        except OSError:  # a file system without hard links
            descriptor = os.open(path, os.O_RDONLY)
            try:
                with replacing(target, below=self._root, mode=0o444) as copy:
                    for block in blocks_of(descriptor):
                        write_all(copy, block)
                    os.fsync(copy)
                os.close(copy)
            finally:
                os.close(descriptor)

    def _has(self, sha256: str, num_bytes: int) -> bool:
        try:
            return os.lstat(blob_path(self._root, sha256)).st_size == num_bytes
        except FileNotFoundError:
            return False

    def _blob(self, sha256: str) -> Path:
        """Return the path of a content, whose folder exists."""
        return self._make_folder("files", sha256[:2]) / sha256

    def _commit(self, version: ArtifactVersion) -> ArtifactVersion:
        """Write a version that is logged now, and move its aliases."""
        committed_version = self._commit_logged(version, None)
        assert committed_version is not None  # noqa: S101 - only a version that was logged before its removal is not added
        return committed_version

    def _commit_logged(self, version: ArtifactVersion, logged_at: float | None) -> ArtifactVersion | None:
        """Write a version, unless there is one with the same files, and move its aliases.

        If it was logged earlier, return None if it was removed since, and leave aliases that were moved since.
        """
        with exclusive_lock(self._folder / "lock", below=self._root):
            index = self._index(version.name)
            number = index.digests.get(version.digest)
            if (
                number is None
                and logged_at is not None
                and index.removal_times.get(version.digest, -math.inf) >= logged_at
            ):
                return None
            if number is None:
                number = index.next_number
                version.version = f"v{number}"
                self._write_version(version, number)
                index.next_number = number + 1
                index.digests[version.digest] = number
            index.removal_times.pop(version.digest, None)
            for alias in version.aliases:
                if logged_at is None or index.alias_times.get(alias, -math.inf) <= logged_at:
                    index.aliases[alias] = number
                    index.alias_times[alias] = time.time() if logged_at is None else logged_at
            self._write_index(version.name, index)
            return self._read(version.name, number, index)

    def _write_version(self, version: ArtifactVersion, number: int) -> None:
        data = to_json(msgspec.to_builtins(version)).encode()
        path = self._manifest(version.name, number)
        if not add_file(path, data, below=self._root):
            raise ArtifactError(f"{str(path)!r} was created by another program; log the artifact again")

    def _write_index(self, name: str, index: _Index) -> None:
        replace_file(self._folder / "names" / name / "index.json", msgspec.json.encode(index), below=self._root)

    # Reading -------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names that have versions, sorted."""
        try:
            names = os.listdir(self._folder / "names")
        except faults(OSError):
            return []
        return sorted(name for name in names if not name.startswith(".") and self._numbers(name))

    def versions(self, name: str) -> list[ArtifactVersion]:
        """Return the versions of a name, oldest first; versions that cannot be read are left out."""
        check_artifact_name(name)
        index = self._index(name)
        versions = []
        for number in self._numbers(name):
            with suppress(ArtifactError):
                versions.append(self._read(name, number, index))
        return versions

    def find(self, reference: str) -> ArtifactVersion:
        """Return a version: ``model:v2``, ``model:best``, or ``model`` for the latest one.

        Raises:
            ArtifactError: if there is none.
        """
        name, alias = parse_reference(reference)
        numbers = self._numbers(name)
        if not numbers:
            known_names = self.names()
            examples = ", ".join(map(repr, known_names[:5])) or "there are none"
            hint = did_you_mean(name, known_names) or f"; artifacts in that folder: {examples}"
            raise ArtifactError(f"no artifact {name!r} in {str(self._root)!r}{hint}")
        index = self._index(name)
        number = int(alias[1:]) if is_version(alias) else index.aliases.get(alias)
        if number is None or number not in numbers:
            choices = ", ".join([*(f"v{each}" for each in numbers[-5:]), *sorted(index.aliases)][:20])
            raise ArtifactError(f"artifact {name!r} has no version {alias!r}; it has {choices}")
        return self._read(name, number, index)

    def _numbers(self, name: str) -> list[int]:
        try:
            files = os.listdir(self._folder / "names" / name)
        except faults(OSError):
            return []
        return sorted(int(match[1]) for match in map(_MANIFEST.fullmatch, files) if match is not None)

    def _read(self, name: str, number: int, index: _Index) -> ArtifactVersion:
        path = self._manifest(name, number)
        try:
            data = read_small(path, _MAX_MANIFEST_BYTES, below=self._root)
            version = decode_json(data, ArtifactVersion)
        except faults(OSError) as error:
            raise ArtifactError(f"cannot read {str(path)!r}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise ArtifactError(
                f"{str(path)!r} was changed: {error}; remove the version with: tacho artifact rm {name}:v{number}"
            ) from error
        version.metadata = restore_non_finite(version.metadata)
        version.name, version.version, version.log_dir = name, f"v{number}", str(self._root)
        version.aliases = sorted(alias for alias, target in index.aliases.items() if target == number)
        return version

    def _index(self, name: str) -> _Index:
        """Return the index of a name, with all versions that exist."""
        try:
            path = self._folder / "names" / name / "index.json"
            index = decode_json(read_small(path, _MAX_MANIFEST_BYTES, below=self._root), _Index)
        except faults(OSError, msgspec.MsgspecError):
            index = _Index()
        numbers = self._numbers(name)
        for number in numbers:
            if number >= index.next_number:  # a process was killed before it wrote the index
                with suppress(OSError, msgspec.MsgspecError):
                    data = read_small(self._manifest(name, number), _MAX_MANIFEST_BYTES, below=self._root)
                    version = decode_json(data, ArtifactVersion)
                    index.digests.setdefault(version.digest, number)
                    index.aliases.update(dict.fromkeys(version.aliases, number))
        index.next_number = max([index.next_number, *(number + 1 for number in numbers)])
        index.aliases = {alias: number for alias, number in index.aliases.items() if number in numbers}
        index.digests = {digest: number for digest, number in index.digests.items() if number in numbers}
        if numbers:
            index.aliases.setdefault("latest", numbers[-1])
        return index

    def _manifest(self, name: str, number: int) -> Path:
        return self._folder / "names" / name / f"v{number}.json"

    # Changing ------------------------------------------------------------------------------------------------------

    def set_aliases(self, name: str, version: str, aliases: Iterable[str]) -> ArtifactVersion:
        """Make exactly these aliases point at a version, apart from `latest`, which also moves if it is named.

        Raises:
            ArtifactError: if there is no such version, or an alias is invalid.
        """
        new_aliases = [check_alias(alias) for alias in aliases]
        number = int(self.find(f"{name}:{version}").version[1:])
        with self._explaining("aliases cannot be changed"), exclusive_lock(self._folder / "lock", below=self._root):
            index = self._index(name)
            removed_aliases = [each for each, target in index.aliases.items() if target == number and each != "latest"]
            for alias in removed_aliases:
                del index.aliases[alias]
            index.aliases.update(dict.fromkeys(new_aliases, number))
            index.alias_times.update(dict.fromkeys([*removed_aliases, *new_aliases], time.time()))
            self._write_index(name, index)
            return self._read(name, number, index)

    def remove(self, name: str, version: str) -> None:
        """Remove a version and its aliases; `latest` then is the newest version that is left.

        Its files stay until `collect_garbage`, and its number is not used again.

        Raises:
            ArtifactError: if there is no such version.
        """
        with self._explaining(f"{name}:{version} cannot be removed"):
            if not is_version(version) or int(version[1:]) not in self._numbers(check_artifact_name(name)):
                self.find(f"{name}:{version}")
            with exclusive_lock(self._folder / "lock", below=self._root):
                index = self._index(name)
                digests = [digest for digest, number in index.digests.items() if number == int(version[1:])]
                index.removal_times.update(dict.fromkeys(digests, time.time()))
                self._write_index(name, index)  # first: it has the number of the next version
                self._manifest(name, int(version[1:])).unlink(missing_ok=True)
                self._write_index(name, self._index(name))

    def disk_usage(self) -> ClearedSpace:
        """Return how many contents are stored, and how much space they take."""
        num_files = num_bytes = 0
        for path in (self._folder / "files").glob("*/*"):
            with suppress(OSError):
                num_bytes += path.lstat().st_size
                num_files += 1
        return ClearedSpace(num_files, num_bytes)

    def collect_garbage(self, *, is_dry_run: bool = False, grace_s: float = 0.0) -> ClearedSpace:
        """Delete the contents that no version has, and what processes that were killed left.

        Args:
            is_dry_run: only count them.
            grace_s: keep the contents that were stored less than so many seconds ago: a version may follow.

        Raises:
            ArtifactError: if a run is storing files at the moment, or a version cannot be read: its files are unknown.
        """
        if not self._folder.is_dir():
            return ClearedSpace(0, 0)
        with self._explaining("unused files cannot be removed"):
            try:
                with exclusive_lock(self._folder / "in-use.lock", below=self._root, may_wait=False):
                    return self._delete_unused(is_dry_run, grace_s)
            except BlockingIOError:
                raise ArtifactError("a run is storing an artifact at the moment; repeat the command later") from None

    def _delete_unused(self, is_dry_run: bool, grace_s: float) -> ClearedSpace:
        referenced_hashes: set[str] = set()
        for name in os.listdir(self._folder / "names"):
            os.listdir(self._folder / "names" / name)  # a folder that cannot be read must not look empty
            index = self._index(name)
            for number in self._numbers(name):
                referenced_hashes.update(file.sha256 for file in self._read(name, number, index).files)
        num_files = num_bytes = 0
        for path in self._unused(referenced_hashes):
            status = path.lstat()
            if grace_s > 0 and time.time() - status.st_ctime < grace_s:
                continue
            if not is_dry_run:
                path.unlink()
            num_files += 1
            num_bytes += status.st_size
        if not is_dry_run:
            self._remove_empty_folders()
        return ClearedSpace(num_files, num_bytes)

    def _unused(self, referenced_hashes: set[str]) -> Iterator[Path]:
        for path in (self._folder / "files").glob("*/*"):
            if path.name not in referenced_hashes and not path.is_dir():
                yield path
        oldest_s = time.time() - _STAGING_S
        for path in (self._folder / "staging").glob("*"):
            if not path.is_dir():
                yield path  # a copy that was not completed: nobody is storing files now
            elif path.stat().st_mtime < oldest_s:
                yield from (file for file in path.rglob("*") if not file.is_dir())

    def _remove_empty_folders(self) -> None:
        oldest_s = time.time() - _STAGING_S
        for folder in (self._folder / "staging").glob("*"):
            if folder.is_dir() and folder.stat().st_mtime < oldest_s:
                shutil.rmtree(folder, ignore_errors=True)

    # Implementation ------------------------------------------------------------------------------------------------

    def _make_folder(self, *names: str) -> Path:
        folder = self._folder.joinpath(*names)
        if not folder.is_dir():
            os.makedirs(self._root, exist_ok=True)
            make_folder(folder, below=self._root)
        return folder

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except faults(OSError) as error:
            raise ArtifactError(f"{what}: {error.strerror or error} ({error.filename or self._folder})") from error


def find_artifact(reference: str, log_dir: str | os.PathLike[str] | None = None) -> ArtifactVersion:
    """Return a version of an artifact: ``model:v2``, ``model:best``, or ``model`` for the latest one.

    Args:
        reference: name and version or alias.
        log_dir: the log folder; by default the one in the settings.

    Raises:
        ArtifactError: if there is none; the message names what there is.
    """
    return ArtifactStore(log_dir or resolve_settings({}).log_dir).find(reference)


def list_artifacts(
    log_dir: str | os.PathLike[str] | None = None, *, name: str | None = None, run: str | None = None
) -> list[ArtifactVersion]:
    """Return versions of artifacts, sorted by name, oldest first.

    Args:
        log_dir: the log folder; by default the one in the settings.
        name: only versions of this name.
        run: only versions that the run of this name or id logged.
    """
    store = ArtifactStore(log_dir or resolve_settings({}).log_dir)
    versions = [version for each in ([name] if name else store.names()) for version in store.versions(each)]
    return [version for version in versions if run is None or run in (version.run_name, version.run_id)]


def find_artifact_folders(log_dir: str | os.PathLike[str]) -> list[Path]:
    """Return the folders that have artifacts: a log folder and, on a team's server, its projects."""
    root = Path(log_dir)
    try:
        projects = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    except faults(OSError):
        return []
    folders = [root, *(root / name for name in projects if not name.startswith("."))]
    return [folder for folder in folders if (folder / ".tachograph" / "artifacts" / "names").is_dir()]


@functools.lru_cache(maxsize=16)
def _contents(log_dir: str, name: str, number: int, identity: tuple[int, int, int]) -> dict[str, int]:
    """Return the contents of a version, whose file has not been written again as long as its identity is the same."""
    version = ArtifactStore(log_dir)._read(name, number, _Index())
    return {file.sha256: file.size_bytes for file in version.files if file.sha256 and not file.url}


def _checked(version: ArtifactVersion) -> ArtifactVersion:
    """Return a version of another log folder with a digest of its own.

    Raises:
        ArtifactError: if a name, an alias, a path, a hash or a size is invalid.
    """
    files = sorted(version.files, key=lambda file: file.path)
    paths = {check_artifact_path(file.path) for file in files}
    if len(paths) < len(files):
        raise ArtifactError("two files of the artifact have the same path")
    sizes: dict[str, int] = {}
    for file in files:
        if not is_sha256(file.sha256) and not (file.url and not file.sha256):
            raise ArtifactError(f"{file.path!r}: {file.sha256!r:.80} is not a SHA-256 in hexadecimal")
        if file.size_bytes < 0 or (file.sha256 and sizes.setdefault(file.sha256, file.size_bytes) != file.size_bytes):
            raise ArtifactError(f"{file.path!r} has an invalid size")
    return msgspec.structs.replace(
        version,
        name=check_artifact_name(version.name),
        version="",
        digest=digest_of(files),
        metadata=_plain_metadata(restore_non_finite(version.metadata)),
        files=files,
        aliases=list(dict.fromkeys(check_alias(alias) for alias in version.aliases)),
        log_dir="",
    )


def digest_of(files: Iterable[ArtifactFile]) -> str:
    """Return the hash of a list of files; it depends on paths and contents alone."""
    lines = [[file.path, file.size_bytes, file.sha256 or str(file.url)] for file in files]
    return hashlib.sha256(msgspec.json.encode(lines)).hexdigest()


def _plain_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = to_plain(dict(metadata or {}), "metadata", [])
    return mask_mapping(plain) if isinstance(plain, dict) else {}


def _copy(descriptor: int, copy: int) -> str:
    """Copy a file in pieces; return the hash of the copy."""
    return hash_blocks(blocks_of(descriptor), copy_to=copy).sha256
