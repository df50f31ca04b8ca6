"""Names of artifacts, of their aliases and of the files in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tachograph.exceptions import ArtifactError, RunNameError
from tachograph.records import check_run_name

__all__ = [
    "Reference",
    "check_alias",
    "check_artifact_name",
    "check_artifact_path",
    "check_artifact_paths",
    "is_version",
    "parse_reference",
]

_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})", re.ASCII)
_MAX_PATH_BYTES = 1_024


class Reference(NamedTuple):
    """An artifact as users name it: ``model:best``."""

    name: str
    alias: str
    """A version such as `v3`, or an alias."""


def check_artifact_name(name: object) -> str:
    """Return a valid name unchanged. It is the name of a folder, so the rules of run names apply.

    Raises:
        ArtifactError: if it is invalid.
    """
    try:
        return check_run_name(name)
    except RunNameError as error:
        problem, _, hint = str(error).partition("; try ")
        problem = problem.replace("run name", "artifact name", 1).partition("; a run is")[0]
        raise ArtifactError(f"{problem}; try {hint}" if hint else problem) from None


def check_alias(alias: object) -> str:
    """Return a valid alias unchanged.

    Raises:
        ArtifactError: if it is invalid, or has the form of a version.
    """
    if not isinstance(alias, str) or not alias.strip() or len(alias) > 128 or re.search(r"[/:\\\x00-\x1f\x7f]", alias):
        raise ArtifactError(f"alias {alias!r}: expected a text of 1 to 128 characters without '/', ':' and '\\'")
    if is_version(alias):
        raise ArtifactError(f"alias {alias!r} has the form of a version; choose another one, such as 'best'")
    return alias


def is_version(text: str) -> bool:
    """Return whether a text is a version, such as `v0`."""
    return _VERSION.fullmatch(text) is not None


def check_artifact_path(path: object) -> str:
    """Return the path of a file in an artifact, with slashes.

    Raises:
        ArtifactError: if it is absolute, empty or leads out of the artifact.
    """
    text = str(path)
    parts = text.split("/")
    is_inside = all(part not in {"", ".", ".."} for part in parts)
    if not is_inside or "\\" in text or "\0" in text or re.match(r"[A-Za-z]:", text):
        raise ArtifactError(f"path {text!r} in an artifact must be relative, with '/' and without '..'")
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise ArtifactError(f"path {text!r} in an artifact is not valid Unicode; rename the file") from None
    if num_bytes > _MAX_PATH_BYTES or max(len(part.encode()) for part in parts) > 255:
        raise ArtifactError(f"path {text[:80]!r}… in an artifact is too long")
    return text


def check_artifact_paths(paths: Iterable[str]) -> None:
    """Check that the files of an artifact can be in one folder.

    Raises:
        ArtifactError: if one is the folder of another one.
    """
    known_paths = set(paths)
    for path in known_paths:
        for length in range(path.count("/")):
            folder = path.rsplit("/", length + 1)[0]
            if folder in known_paths:
                raise ArtifactError(f"{folder!r} would be a file and, because of {path!r}, a folder in the artifact")


def parse_reference(reference: str) -> Reference:
    """Return name and alias of ``model``, ``model:v2`` or ``model:best``; without an alias, `latest`.

    Raises:
        ArtifactError: if the text names no artifact.
    """
    name, separator, alias = str(reference).partition(":")
    if separator and not alias:
        raise ArtifactError(f"artifact {reference!r}: there is nothing after the colon; write {name}:latest")
    alias = alias or "latest"
    return Reference(check_artifact_name(name), alias if is_version(alias) else check_alias(alias))
