"""`wandb.Artifact`: a name, a type and files, stored with the artifacts of the log folder.

As with W&B, `add_file` and `add_dir` copy a file at once, unless the policy is `immutable`: the script may change it
afterwards. The copy lies on the file system of the store, which takes it over without another copy. `log_artifact`
stores the rest in a thread; `wait` waits for it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from tachograph._base.files import create_file
from tachograph._base.guard import warn
from tachograph._base.settings import resolve_settings
from tachograph._base.typed import decode_json
from tachograph.bridges.drop_in import run_to_join
from tachograph.bridges.wandb.facade.data_types import Histogram, Media, Table
from tachograph.bridges.wandb.facade.errors import (
    ArtifactFinalizedError,
    ArtifactNotLoggedError,
    CommError,
    WaitTimeoutError,
)
from tachograph.bridges.wandb.facade.stored_values import TYPES, ValueWriter, read_value
from tachograph.exceptions import ArtifactError
from tachograph.journal.artifacts import (
    ArtifactFile,
    ArtifactStore,
    ArtifactVersion,
    PendingFile,
    check_artifact_path,
    collect_sources,
    digest_of,
    parse_reference,
)
from tachograph.recorder import Run
from tachograph.recorder.collectors.artifacts import PendingArtifact, log_artifact, record_use
from tachograph.records import restore_non_finite, to_json

__all__ = ["ArtifactEntry", "LoggedArtifact", "find_artifact", "safe_artifact_name"]

_NAME = re.compile(r"[a-zA-Z0-9_\-.]+")


class ArtifactEntry:
    """A file of an artifact, or a reference to one.

    Attributes:
        path: where it is in the artifact.
        digest: the SHA-256 of the content; W&B has an MD5 here.
        size: the size in bytes.
        ref: the address of a reference.
    """

    def __init__(self, artifact: LoggedArtifact, file: ArtifactFile, local_path: str | None = None) -> None:
        self._artifact = artifact
        self.path = self.name = file.path
        self.digest = file.sha256
        self.size = file.size_bytes
        self.ref = file.url
        self.local_path = local_path
        self.extra: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<ArtifactEntry {self.path!r}>"

    def __fspath__(self) -> str:
        return self.path

    def download(self, root: str | os.PathLike[str] | None = None, *_arguments: Any, **_options: Any) -> str:
        """Write a copy of the file, and return its path."""
        return str(Path(self._artifact.download(root, path_prefix=self.path), self.path))

    def ref_target(self) -> str:
        """Return the address of a reference.

        Raises:
            ValueError: if the entry is a file.
        """
        if self.ref is None:
            raise ValueError("only reference entries support ref_target()")
        return self.ref

    ref_url = ref_target


class _ArtifactManifest:
    """The entries of an artifact, by their paths."""

    def __init__(self, entries: dict[str, ArtifactEntry]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)


class _StagingFolder:
    """A folder for copies of files, deleted with the object."""

    def __init__(self, log_dir: str | None) -> None:
        self.store = None if log_dir is None else ArtifactStore(log_dir)
        self.path = Path(tempfile.mkdtemp(prefix="tachograph-")) if self.store is None else self.store.stage()
        removal = weakref.finalize(self, shutil.rmtree, self.path, True)
        # At the exit of the process the artifacts that are waiting need their files; the run waits for them.
        removal.atexit = self.store is None


class LoggedArtifact:
    """An artifact: a name, a type and files.

    Args:
        name: the name; letters, digits, dashes, underscores and dots.
        type: the type, such as `model` or `dataset`.
        description: a text.
        metadata: any values.
        options: other arguments of W&B, which have no effect.

    Raises:
        ValueError: if the name has other characters.
    """

    open_api: Callable[[str], Any]
    """Returns the `LocalApi` of a log folder; set by its module, which imports this one."""

    def __init__(
        self,
        name: str,
        type: str,  # noqa: A002 - the name of the original
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                "Artifact name may only contain alphanumeric characters, dashes, underscores, and dots. "
                f"Invalid name: {name!r}"
            )
        self._name = name
        self._type = type
        self._description = description
        self._metadata = dict(metadata or {})
        self._files: dict[str, PendingFile] = {}
        self._folder: _StagingFolder | None = None
        self._is_final = False
        self._pending: PendingArtifact | None = None
        self._version: ArtifactVersion | None = None
        self._tags: list[str] = []
        self.ttl = None
        self.incremental = bool(options.get("incremental"))
        self.distributed_id: str | None = None
        self.use_as = options.get("use_as")

    @classmethod
    def from_version(cls, version: ArtifactVersion) -> LoggedArtifact:
        """Return a stored version."""
        artifact = cls("artifact", version.type, version.description, version.metadata)
        artifact._name, artifact._is_final, artifact._version = version.name, True, version
        return artifact

    def __repr__(self) -> str:
        return f"<Artifact {self.name}>"

    # Attributes ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name, with the version once there is one: ``model:v0``."""
        self._look()
        return f"{self._name}:{self._version.version}" if self._version is not None else self._name

    source_name = qualified_name = name

    @property
    def collection_name(self) -> str:
        """The name without the version."""
        return self._name

    @property
    def type(self) -> str:
        """The type."""
        return self._type

    @property
    def version(self) -> str:
        """The version: `v0`, `v1` and so on.

        Raises:
            ArtifactNotLoggedError: if it is not stored yet.
        """
        return self._logged("version").version

    source_version = version

    @property
    def state(self) -> str:
        """`PENDING` or `COMMITTED`."""
        self._look()
        return "PENDING" if self._version is None else "COMMITTED"

    @property
    def id(self) -> str | None:
        """The digest, once the artifact is stored."""
        self._look()
        return None if self._version is None else self._version.digest

    @property
    def digest(self) -> str:
        """The hash of the paths and the contents of all files."""
        return digest_of(sorted(self._entry_files(), key=lambda file: file.path))

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.size_bytes for file in self._entry_files())

    @property
    def file_count(self) -> int:
        """The number of files."""
        return len(self._entry_files())

    @property
    def description(self) -> str | None:
        """The description."""
        return self._description

    @description.setter
    def description(self, description: str | None) -> None:
        self._description = description

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = dict(metadata or {})

    @property
    def aliases(self) -> list[str]:
        """The aliases that point at the version.

        Raises:
            ArtifactNotLoggedError: if it is not stored yet.
        """
        return self._logged("aliases").aliases

    @aliases.setter
    def aliases(self, aliases: Sequence[str]) -> None:
        self._logged("aliases").aliases = list(aliases)

    @property
    def tags(self) -> list[str]:
        """The tags, which are only remembered."""
        return self._tags

    @tags.setter
    def tags(self, tags: Sequence[str]) -> None:
        self._tags = list(tags)

    @property
    def created_at(self) -> str:
        """When the version was stored, in UTC."""
        time_s = self._logged("created_at").time
        return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    updated_at = created_at

    @property
    def entity(self) -> str:
        """Empty: there is no account."""
        return ""

    project = source_entity = source_project = entity

    @property
    def url(self) -> str:
        """Empty: there is no page on the web."""
        return ""

    @property
    def manifest(self) -> _ArtifactManifest:
        """The entries by their paths."""
        return _ArtifactManifest({file.path: self._entry(file) for file in self._entry_files()})

    def _entry_files(self) -> list[ArtifactFile]:
        self._look()
        if self._version is not None:
            return self._version.files
        return [_file_of(file) for file in self._files.values()]

    def _entry(self, file: ArtifactFile) -> ArtifactEntry:
        local_file = self._files.get(file.path)
        return ArtifactEntry(self, file, None if local_file is None else local_file.local_path)

    def is_draft(self) -> bool:
        """Return whether the artifact has not been stored yet."""
        return self.state == "PENDING"

    def _look(self) -> None:
        """Take the version if it has been stored by now."""
        if self._version is None and self._pending is not None and self._pending.is_done:
            with contextlib.suppress(ArtifactError):
                self._version = self._pending.wait()
                if not self._version.version:  # a run that records nothing
                    files = [_file_of(file) for file in self._files.values()]
                    self._version = msgspec.structs.replace(self._version, version="v0", files=files)
                self._files, self._folder = {}, None

    def _logged(self, attribute: str) -> ArtifactVersion:
        self._look()
        if self._version is None:
            raise ArtifactNotLoggedError(
                f"'Artifact.{attribute}' used prior to logging artifact. "
                "Call wait() before accessing logged artifact properties."
            )
        return self._version

    # Adding --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def new_file(
        self,
        name: str,
        mode: str = "x",
        encoding: str | None = None,
        policy: str = "mutable",
    ) -> Iterator[IO[Any]]:
        """Open a new file, which is part of the artifact when it is closed.

        Raises:
            ValueError: if there is a file of that name, unless the mode is ``w`` or ``wb``.
        """
        path = self._check_new(name)
        if "x" in mode and path in self._files:
            raise ValueError(f"File with name {name!r} already exists in artifact {self._name!r}")
        folder = self._stage()
        target = folder.path / os.urandom(8).hex()
        file: IO[Any] = open(create_file(target, below=folder.path), "w+b", closefd=True)  # noqa: SIM115 - closed below
        if "b" not in mode:
            file = io.TextIOWrapper(file, encoding=encoding or "utf-8", write_through=True)
        try:
            yield file
        except BaseException:
            file.close()
            target.unlink(missing_ok=True)
            raise
        file.close()
        self._files[path] = PendingFile(path, str(target), is_ours=True)
        self._files[path].folder = folder

    def add_file(
        self,
        local_path: str | os.PathLike[str],
        name: str | None = None,
        is_tmp: bool | None = False,
        skip_cache: bool | None = False,
        policy: Literal["mutable", "immutable"] | None = "mutable",
        overwrite: bool = False,
    ) -> ArtifactEntry:
        """Add a file, as it is now; with the policy `immutable`, as it is when the artifact is stored.

        Raises:
            ValueError: if the path is not a file, or another file has that name already.
        """
        if not os.path.isfile(local_path):
            raise ValueError(f"Path is not a file: {os.fspath(local_path)!r}")
        path = self._check_new(name or os.path.basename(os.fspath(local_path)))
        return self._add(PendingFile(path, os.fspath(local_path)), policy, is_replaced=overwrite)

    def add_dir(
        self,
        local_path: str | os.PathLike[str],
        name: str | None = None,
        skip_cache: bool | None = False,
        policy: Literal["mutable", "immutable"] | None = "mutable",
        merge: bool = False,
    ) -> None:
        """Add the files of a folder, as they are now; see `add_file`.

        Raises:
            ValueError: if the path is not a folder, or another file has the name of one already.
        """
        if not os.path.isdir(local_path):
            raise ValueError(f"Path is not a directory: {os.fspath(local_path)!r}")
        prefix = self._check_new(name) if name and name.strip("/.") else None
        if not any(files for _, _, files in os.walk(local_path)):
            return
        with _as_value_error():
            for file in collect_sources(local_path, follow_links=True, name=prefix):
                self._add(file, policy, is_replaced=merge)

    def _add(self, file: PendingFile, policy: str | None, *, is_replaced: bool) -> ArtifactEntry:
        if policy not in ("mutable", "immutable", None):
            raise ValueError(f"Invalid policy {policy!r}. Policy may only be `mutable` or `immutable`.")
        local_path = file.local_path
        if policy != "immutable":
            folder = self._stage()
            with _as_value_error():
                file = (folder.store or ArtifactStore(folder.path)).stage_copy(file, folder.path)
            file.folder = folder
        existing = self._files.get(file.path)
        if existing is not None and not is_replaced and _file_of(existing).sha256 != _file_of(file).sha256:
            raise ValueError(f"Cannot add the same path twice: {file.path!r}")
        self._files[file.path] = file
        return ArtifactEntry(self, _file_of(file), local_path)

    def add_reference(
        self,
        uri: Any,
        name: str | None = None,
        checksum: bool = True,
        max_objects: int | None = None,
    ) -> list[ArtifactEntry]:
        """Note the address of a file. Only local files (``file://``) are read, to check them when they are used.

        Raises:
            ValueError: if the address has no scheme, or a local file does not exist.
        """
        address = str(getattr(uri, "ref", None) or uri)
        parts = urlsplit(address)
        if not parts.scheme:
            raise ValueError("References must be URIs. To reference a local file, use file://")
        if parts.scheme != "file":
            path = self._check_new(name or os.path.basename(parts.path) or parts.netloc)
            references = [PendingFile(path, url=address)]
        else:
            local_path = unquote(parts.path)
            with _as_value_error():
                files = collect_sources(local_path, follow_links=True, name=None if name is None else _clean(name))
                references = [PendingFile(file.path, file.local_path, url=file.local_path) for file in files]
        self._files.update({reference.path: reference for reference in references})
        return [ArtifactEntry(self, _file_of(reference)) for reference in references]

    def add(self, obj: Any, name: str, overwrite: bool = False) -> ArtifactEntry:
        """Add a table, a picture or other media, which `get` returns again. Pictures in cells become files.

        Raises:
            ValueError: if the object is of another class, or has no data that can be stored.
        """
        if not isinstance(obj, (Table, Media, Histogram)):
            raise ValueError(
                f"Artifact.add supports tables and media, got {type(obj).__name__}: save it to a file and call add_file"
            )
        self._check_new(name)
        folder = self._stage()
        with tempfile.TemporaryDirectory(dir=folder.path) as media_folder:
            writer = ValueWriter(Path(media_folder), self._add_media_file)
            if isinstance(obj, Table):
                columns = [str(column) for column in obj.columns]
                rows = [list(map(writer.to_json, row, columns)) for row in obj.data]
                value = {"_type": "table", "columns": columns, "data": rows, "ncols": len(columns), "nrows": len(rows)}
            else:
                value = writer.to_json(obj, name)
        if not isinstance(value, dict):
            raise ValueError(f"Artifact.add({name!r}): {writer.problems.get(name, 'several items are no single file')}")
        self._report(name, writer.problems)
        suffix = f".{value['_type']}.json"
        path = self._check_new(name if name.endswith(suffix) else f"{name}{suffix}")
        with self.new_file(path, "wb" if overwrite else "xb") as file:
            file.write(to_json(value).encode())
        return ArtifactEntry(self, _file_of(self._files[path]))

    def _add_media_file(self, path: str, local_path: Path) -> None:
        if path not in self._files:
            self._add(PendingFile(path, str(local_path)), "mutable", is_replaced=True)

    def _report(self, name: str, problems: Mapping[str, str]) -> None:
        """Report values that were not stored, once for each column."""
        run = run_to_join()
        for column, problem in problems.items():
            warn("the artifact %r: in column %r of %r, cells are empty: %s", self._name, column, name, problem)
            if run is not None:
                run.report_error("value_not_stored", f"{self._name}/{name}.{column}", problem)

    def __setitem__(self, name: str, obj: Any) -> None:
        self.add(obj, name)

    def remove(self, item: Any) -> None:
        """Remove a file or a folder.

        Raises:
            FileNotFoundError: if there is none.
        """
        path = self._check_new(getattr(item, "path", item))
        paths = [each for each in self._files if each == path or each.startswith(f"{path}/")]
        if not paths:
            raise FileNotFoundError(f"No such file or directory: {path}")
        for each in paths:
            del self._files[each]

    def _check_new(self, name: Any) -> str:
        if self._is_final:
            raise ArtifactFinalizedError("the artifact has been logged. Can't modify finalized artifact.")
        with _as_value_error():
            return check_artifact_path(_clean(name))

    def _stage(self) -> _StagingFolder:
        if self._folder is None:
            run = run_to_join()
            if run is None:
                self._folder = _StagingFolder(resolve_settings({}).log_dir)
            else:
                self._folder = _StagingFolder(None if run.folder is None else str(run.folder.path.parent))
        return self._folder

    # Logging -------------------------------------------------------------------------------------------------------

    def log_to(self, run: Run, aliases: Sequence[str]) -> None:
        """Start to store the artifact as one of a run."""
        if self._version is not None:  # only the aliases are new
            self._version = self._link(self._name, aliases)
            return
        self._is_final = True
        self._pending = log_artifact(
            run,
            self._name,
            sources=list(self._files.values()),
            type=self._type,
            metadata=self._metadata,
            description=self._description,
            aliases=aliases,
        )

    def record_use(self, run: Run) -> None:
        """Record that a run uses the artifact."""
        record_use(run, self._logged("use"))

    def finalize(self) -> None:
        """Allow no further changes."""
        self._is_final = True

    def save(self, *_arguments: Any, **_options: Any) -> None:
        """Store the aliases of a logged artifact; log another one with the active run.

        Raises:
            CommError: if nothing can be stored.
        """
        if self.is_draft():
            run = run_to_join()
            if run is None:
                raise CommError("Artifact.save needs an active run: call wandb.init first")
            if self._pending is None:
                self.log_to(run, ())
            return
        version = self._logged("save")
        if (self._metadata, self._description) != (version.metadata, version.description):
            warn("Artifact.save: only aliases of a stored version can be changed; metadata and description stay")
        with _as_comm_error():
            store = ArtifactStore(version.log_dir)
            self._version = store.set_aliases(version.name, version.version, version.aliases)

    def wait(self, timeout: float | None = None, *_arguments: Any, **_options: Any) -> LoggedArtifact:
        """Wait until the artifact is stored.

        Raises:
            ArtifactNotLoggedError: if it was not logged.
            CommError: if it cannot be stored.
            WaitTimeoutError: if the time is over.
        """
        if self._version is None:
            if self._pending is None:
                self._logged("wait")
            assert self._pending is not None  # noqa: S101 - the line before raises
            if timeout is not None and not self._pending.is_done:
                with contextlib.suppress(ArtifactError):
                    self._pending.wait(timeout)
                if not self._pending.is_done:
                    raise WaitTimeoutError("Artifact upload wait timed out, failed to fetch Artifact response")
            with _as_comm_error():
                self._pending.wait()
            self._look()
        return self

    def new_draft(self) -> LoggedArtifact:
        """Return an artifact with the same files, which can be changed."""
        version = self._logged("new_draft")
        artifact = LoggedArtifact(self._name, self._type, self._description, self._metadata)
        for file in version.files:
            if file.url is not None:
                artifact.add_reference(file.url, file.path)
        if any(file.url is None for file in version.files):
            artifact.add_dir(self.download(str(artifact._stage().path / "base")))
        return artifact

    # Reading -------------------------------------------------------------------------------------------------------

    def download(
        self,
        root: str | os.PathLike[str] | None = None,
        allow_missing_references: bool = False,
        skip_cache: bool | None = None,
        path_prefix: str | os.PathLike[str] | None = None,
        multipart: bool | None = None,
    ) -> str:
        """Write copies of the files to a folder, check them, and return the path of the folder.

        Args:
            root: the folder; by default ``artifacts/NAME:VERSION`` in the working folder.
            allow_missing_references: whether to leave out references, which cannot be downloaded.
            skip_cache: has no effect.
            path_prefix: only files whose paths start like this.
            multipart: has no effect.

        Raises:
            ArtifactNotLoggedError: if the artifact is not stored yet.
            CommError: if a file is gone or was changed, or cannot be written.
        """
        version = self._logged("download")
        prefix = "" if path_prefix is None else os.fspath(path_prefix)
        files = [file for file in version.files if file.path.startswith(prefix)]
        if allow_missing_references:
            files = [file for file in files if file.sha256]
        with _as_comm_error():
            return msgspec.structs.replace(version, files=files).download(root or self._default_root())

    def checkout(self, root: str | None = None) -> str:
        """Make a folder have exactly the files of the artifact: others in it are deleted."""
        version = self._logged("checkout")
        folder = Path(root or self._default_root())
        paths = {folder / file.path for file in version.files}
        for path in folder.rglob("*"):
            if not path.is_dir() and path not in paths:
                path.unlink()
        return self.download(folder)

    def _default_root(self) -> str:
        return os.path.join(os.environ.get("WANDB_ARTIFACT_DIR") or "artifacts", self.name)

    def verify(self, root: str | os.PathLike[str] | None = None) -> None:
        """Check that a folder has exactly the files of the artifact.

        Raises:
            ValueError: if a file is missing, was changed, or does not belong to it.
        """
        version = self._logged("verify")
        folder = Path(root or self._default_root())
        files = {file.path: file for file in version.files}
        for path in folder.rglob("*"):
            if not path.is_dir() and path.relative_to(folder).as_posix() not in files:
                raise ValueError(f"Found file {str(path)!r} which is not a member of artifact {self.name}")
        for file in version.files:
            path = folder / file.path
            if file.sha256 and (
                not path.is_file() or _file_of(PendingFile(file.path, str(path))).sha256 != file.sha256
            ):
                raise ValueError(f"Digest mismatch for file: {file.path}")

    def file(self, root: str | os.PathLike[str] | None = None) -> str:
        """Download the only file, and return its path.

        Raises:
            ValueError: if there are several.
        """
        files = self._logged("file").files
        if len(files) != 1:
            raise ValueError(f"artifact {self.name!r} has {len(files)} files, not one: use download()")
        return str(Path(self.download(root), files[0].path))

    def files(self, names: Sequence[str] | None = None, per_page: int = 50) -> list[ArtifactEntry]:
        """Return the files."""
        files = self._logged("files").files
        return [self._entry(file) for file in files if names is None or file.path in names]

    def get_entry(self, name: Any) -> ArtifactEntry:
        """Return a file by its path.

        Raises:
            KeyError: if there is none.
        """
        path = _clean(name)
        entry = self.manifest.entries.get(path)
        if entry is None:
            raise KeyError(f"Path not contained in artifact: {path}")
        return entry

    get_path = get_entry

    def get(self, name: str) -> Any:
        """Return a table, a picture or another object that was added, or None."""
        version = self._logged("get")
        paths = {file.path for file in version.files}
        base = _clean(name)
        path = next((each for kind in TYPES if (each := _path_of_type(base, kind)) in paths), None)
        if path is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            self.download(folder, path_prefix=path)
            value = restore_non_finite(decode_json(Path(folder, path).read_bytes(), dict[str, Any]))
            if any(each.startswith("media/") for each in paths):
                self.download(folder, path_prefix="media/")

            def read_file(media_path: str) -> bytes:
                if media_path not in paths:
                    raise CommError(f"the artifact {self.name!r} has no file {media_path!r}")
                return Path(folder, media_path).read_bytes()

            if value.get("_type") == "table" or "columns" in value:
                return Table(columns=value["columns"], data=read_value(value["data"], read_file))
            return read_value(value, read_file)

    __getitem__ = get

    def get_added_local_path_name(self, local_path: str) -> str | None:
        """Return the path in the artifact of a file that was added, or None."""
        name = os.path.basename(local_path)
        return name if name in self.manifest.entries else None

    def logged_by(self) -> Any:
        """Return the run that logged the version, or None if it is not here."""
        version = self._logged("logged_by")
        return self.open_api(version.log_dir).run_of(version)

    def used_by(self) -> list[Any]:
        """Return the runs that used the version."""
        version = self._logged("used_by")
        runs: list[Any] = self.open_api(version.log_dir).users_of(version)
        return runs

    def delete(self, delete_aliases: bool = False) -> None:
        """Remove the version.

        Raises:
            CommError: if an alias points at it, unless aliases may be removed too.
        """
        version = self._logged("delete")
        aliases = [alias for alias in version.aliases if alias != "latest"]
        if aliases and not delete_aliases:
            raise CommError(f"artifact {self.name!r} has the aliases {aliases}: pass delete_aliases=True")
        with _as_comm_error():
            ArtifactStore(version.log_dir).remove(version.name, version.version)

    def link(self, target_path: str, aliases: Sequence[str] | None = None) -> LoggedArtifact:
        """Store the version also under another name, such as that of a model in a registry."""
        name = safe_artifact_name(target_path.rpartition("/")[2])
        return LoggedArtifact.from_version(self.wait()._link(name, aliases or ()))

    def _link(self, name: str, aliases: Sequence[str]) -> ArtifactVersion:
        version = self._logged("link")
        if not version.log_dir:  # of a run that records nothing
            return version
        with _as_comm_error():
            return ArtifactStore(version.log_dir).link(version, name, aliases)


def find_artifact(log_dir: str | os.PathLike[str], name: str, type: str | None = None) -> LoggedArtifact:  # noqa: A002
    """Return a version of an artifact: `name`, `name:v2` or `name:best`, with or without entity and project.

    Raises:
        CommError: if there is none.
        ValueError: if it has another type.
    """
    try:
        reference = ":".join(parse_reference(name.rpartition("/")[2]))
        artifact = LoggedArtifact.from_version(ArtifactStore(log_dir).find(reference))
    except ArtifactError as error:
        raise CommError(f"artifact {name!r} not found: {error}") from None
    if type is not None and artifact.type != type:
        raise ValueError(f"Supplied type {type} does not match type {artifact.type} of artifact {artifact.name}")
    return artifact


def safe_artifact_name(text: str) -> str:
    """Return a text with dashes instead of characters that names of artifacts do not have."""
    name = re.sub(r"[^a-zA-Z0-9_\-.]+", "-", text).lstrip(".")[:128]
    if name != text:
        warn(
            "the artifact %r is called %r, because names have letters, digits, dashes, underscores and dots", text, name
        )
    return name or "artifact"


def _path_of_type(name: str, kind: str) -> str:
    return name if name.endswith(f".{kind}.json") else f"{name}.{kind}.json"


def _clean(name: Any) -> str:
    return os.path.normpath(str(os.fspath(name))).replace(os.sep, "/")


def _file_of(file: PendingFile) -> ArtifactFile:
    """Return the facts of a file; its hash is computed once."""
    if file.local_path is None:
        return ArtifactFile(file.path, url=file.url)
    size_bytes = file.facts.size_bytes if file.facts is not None else 0
    return ArtifactFile(file.path, size_bytes, file.hash(), file.url)


@contextlib.contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except ArtifactError as error:
        raise ValueError(str(error)) from None


@contextlib.contextmanager
def _as_comm_error() -> Iterator[None]:
    try:
        yield
    except ArtifactError as error:
        raise CommError(str(error)) from None
