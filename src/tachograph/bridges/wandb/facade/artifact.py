"""`wandb.Artifact`: files with a name and a type, recorded by their paths.

Each artifact that is logged is a version of its name: v0, v1 and so on, counted over all runs of the log folder, in the
order of time. `find_artifact` finds a version by its number or an alias; `latest` is the last one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tachograph._base.files import make_link
from tachograph.bridges.wandb.facade.errors import CommError
from tachograph.journal import list_runs, read_records
from tachograph.records import finite_or_none

__all__ = ["LoggedArtifact", "find_artifact"]


class LoggedArtifact:
    """An artifact: a name, a type and files. The files are recorded by their paths, not copied.

    Args:
        name: the name.
        type: the type, such as `model` or `dataset`.
        description: a text.
        metadata: any values.
        options: other arguments of W&B, which have no effect.
    """

    def __init__(
        self,
        name: str,
        type: str,  # noqa: A002 - the name of the original
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.type = type
        self.description = description
        self.metadata = dict(metadata or {})
        self.aliases: list[str] = []
        self.version = "v0"
        self.paths: list[str] = []

    def add_file(self, local_path: str | os.PathLike[str], *_arguments: Any, **_options: Any) -> LoggedArtifact:
        """Add a file."""
        self.paths.append(os.path.abspath(local_path))
        return self

    def add_dir(self, local_path: str | os.PathLike[str], *_arguments: Any, **_options: Any) -> None:
        """Add a folder."""
        self.paths.append(os.path.abspath(local_path))

    def add_reference(self, uri: Any, *_arguments: Any, **_options: Any) -> list[LoggedArtifact]:
        """Add the address of a file."""
        self.paths.append(str(uri))
        return [self]

    def add(self, obj: Any, name: str) -> LoggedArtifact:
        """Add a table or another object by its name; its content is not kept."""
        self.paths.append(f"{name} ({type(obj).__name__})")
        return self

    def save(self, *_arguments: Any, **_options: Any) -> None:
        """Do nothing: `log_artifact` records the artifact."""

    def wait(self, *_arguments: Any, **_options: Any) -> LoggedArtifact:
        """Return the artifact."""
        return self

    def download(self, root: str | os.PathLike[str] | None = None, *_arguments: Any, **_options: Any) -> str:
        """Return a folder with the files. Nothing is copied: files from several folders become links.

        Raises:
            CommError: if a file is gone.
        """
        for path in self.paths:
            if not os.path.exists(path):
                raise CommError(f"artifact {self.name!r}: {path!r} no longer exists; artifacts are recorded by path")
        if root is None and len(self.paths) == 1 and os.path.isdir(self.paths[0]):
            return self.paths[0]
        folders = {os.path.dirname(path) for path in self.paths}
        if root is None and len(folders) == 1:
            return folders.pop()
        folder = Path(os.path.abspath(root or os.path.join("artifacts", f"{self.name}:{self.version}")))
        folder.mkdir(parents=True, exist_ok=True)
        for part in map(Path, self.paths):
            for source in part.iterdir() if part.is_dir() else [part]:
                if not os.path.lexists(folder / source.name):
                    make_link(folder / source.name, source, below=folder)
        return str(folder)

    def file(self, root: str | os.PathLike[str] | None = None) -> str:
        """Return the path of the only file.

        Raises:
            ValueError: if there are several.
        """
        if len(self.paths) != 1 or os.path.isdir(self.paths[0]):
            raise ValueError(f"artifact {self.name!r} has more than one file: use download()")
        return str(Path(self.download(root), os.path.basename(self.paths[0])))


def find_artifact(log_dir: str | os.PathLike[str], name: str) -> LoggedArtifact:
    """Return a version of an artifact: `name`, `name:v2` or `name:best`, with or without entity and project.

    Raises:
        CommError: if there is none.
    """
    artifact_name, _, alias = name.rpartition("/")[2].partition(":")
    alias = alias or "latest"
    versions: list[tuple[float, dict[str, Any]]] = []
    for folder in list_runs(log_dir):
        for record in read_records(folder.journal):
            is_artifact = record["event"] == "event" and record.get("name") == "artifact"
            if is_artifact and record.get("artifact") == artifact_name:
                versions.append((finite_or_none(record.get("time")) or 0.0, record))
    versions.sort(key=lambda pair: pair[0])
    for version, (_, record) in reversed(list(enumerate(versions))):
        aliases = [str(one) for one in record.get("aliases") or ()]
        is_latest = version == len(versions) - 1
        if alias == f"v{version}" or (is_latest if alias == "latest" else alias in aliases):
            prefix = "metadata/"  # the names of nested values are joined in the journal
            metadata = {key.removeprefix(prefix): value for key, value in record.items() if key.startswith(prefix)}
            kind = str(record.get("type") or "unspecified")
            artifact = LoggedArtifact(artifact_name, kind, record.get("description"), metadata)
            artifact.paths = [str(path) for path in record.get("paths") or ()]
            artifact.aliases = list(dict.fromkeys([*aliases, *(["latest"] if is_latest else [])]))
            artifact.version = f"v{version}"
            return artifact
    raise CommError(f"artifact {name!r} not found: no run in {os.fspath(log_dir)!r} has logged it")
