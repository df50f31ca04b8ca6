"""`wandb.Artifact`: files with a name and a type, recorded by their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["LoggedArtifact"]


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
