"""Artifacts: files that are stored by their content, in versions, with the runs that made and used them."""

from tachograph.journal.artifacts._names import (
    check_alias,
    check_artifact_name,
    check_artifact_path,
    is_version,
    parse_reference,
)
from tachograph.journal.artifacts._sources import PendingFile, collect_sources
from tachograph.journal.artifacts._store import (
    ArtifactStore,
    ClearedSpace,
    ReceivedVersion,
    digest_of,
    find_artifact,
    find_artifact_folders,
    list_artifacts,
)
from tachograph.journal.artifacts._version import ArtifactFile, ArtifactVersion, blob_path, is_sha256

__all__ = [
    "ArtifactFile",
    "ArtifactStore",
    "ArtifactVersion",
    "ClearedSpace",
    "PendingFile",
    "ReceivedVersion",
    "blob_path",
    "check_alias",
    "check_artifact_name",
    "check_artifact_path",
    "collect_sources",
    "digest_of",
    "find_artifact",
    "find_artifact_folders",
    "is_sha256",
    "is_version",
    "list_artifacts",
    "parse_reference",
]
