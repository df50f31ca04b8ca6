"""Artifacts: files that are stored by their content, in versions, with the runs that made and used them."""

from tachograph.artifacts._names import check_alias, check_artifact_name, check_artifact_path, parse_reference
from tachograph.artifacts._sources import PendingFile, collect_sources
from tachograph.artifacts._store import ArtifactStore, ClearedSpace, digest_of, find_artifact, list_artifacts
from tachograph.artifacts._version import ArtifactFile, ArtifactVersion

__all__ = [
    "ArtifactFile",
    "ArtifactStore",
    "ArtifactVersion",
    "ClearedSpace",
    "PendingFile",
    "check_alias",
    "check_artifact_name",
    "check_artifact_path",
    "collect_sources",
    "digest_of",
    "find_artifact",
    "list_artifacts",
    "parse_reference",
]
