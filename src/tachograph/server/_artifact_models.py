"""The models of the API about artifacts."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = [
    "ArtifactContentQuery",
    "ArtifactDetail",
    "ArtifactFileView",
    "ArtifactQuery",
    "ArtifactView",
    "ArtifactsPage",
    "ArtifactsQuery",
]

Text = Annotated[str, Meta(max_length=1_000)]
Project = Annotated[
    Text | None, Meta(description="Only this project, for a key that may see all projects of a team's server.")
]


class ArtifactsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select artifacts."""

    name: Annotated[Text | None, Meta(description="Only the versions of this name.")] = None
    run: Annotated[Text | None, Meta(description="Only versions that the run of this name or id logged.")] = None
    project: Project = None


class ArtifactView(msgspec.Struct, kw_only=True):
    """A version of an artifact."""

    name: str
    version: str
    """`v0`, `v1` and so on. A team's server numbers the versions of a project in the order in which they arrive."""
    project: str
    """The project on a team's server; empty for the log folder itself."""
    digest: str
    """SHA-256 of the list of files; the same on every machine."""
    type: str
    description: str | None
    metadata: dict[str, Any]
    num_files: int
    size_bytes: int
    run_id: str | None
    """The run that logged it first."""
    run_name: str | None
    time: float
    """When it was logged, in seconds since the epoch."""
    aliases: list[str]


class ArtifactsPage(msgspec.Struct, kw_only=True):
    """Versions of artifacts, by name, newest first."""

    artifacts: list[ArtifactView]
    is_whole: bool
    """False if there are more; ask for one name."""


class ArtifactQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select a version and a part of its files."""

    version: Annotated[str, Meta(max_length=200, description="A version such as `v3`, or an alias.")] = "latest"
    project: Project = None
    offset: Annotated[int, Meta(ge=0, le=2**31, description="Number of files to skip.")] = 0
    limit: Annotated[int, Meta(ge=1, le=2_000, description="Maximum number of files.")] = 1_000


class ArtifactFileView(msgspec.Struct):
    """A file of an artifact."""

    path: str
    size_bytes: int
    sha256: str
    """Empty for a `url` that was not read."""
    url: str | None
    """Where the content lies, if it is not stored."""


class ArtifactDetail(msgspec.Struct, kw_only=True):
    """A version, and a part of its files in the order of their paths."""

    artifact: ArtifactView
    files: list[ArtifactFileView]


class ArtifactContentQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select the version that has a file."""

    version: Annotated[str, Meta(max_length=20, description="A version such as `v3`.")]
    project: Project = None
    file_name: Annotated[str, Meta(max_length=1_100, description="Name of the download.")] = ""
