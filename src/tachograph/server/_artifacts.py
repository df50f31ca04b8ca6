"""The artifacts of a log folder, or of the projects of a team's server, over the API.

Files are only sent as downloads, by the hash of their content, and only if a version has them. A file that a version
merely refers to is never read: on a server, its address was chosen by another machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from starlette.responses import Response

from tachograph._base.files import open_to_read
from tachograph.exceptions import ArtifactError
from tachograph.journal.artifacts import ArtifactStore, ArtifactVersion, blob_path, find_artifact_folders
from tachograph.records import mark_non_finite, suggest_run_name
from tachograph.server._artifact_models import (
    ArtifactContentQuery,
    ArtifactDetail,
    ArtifactFileView,
    ArtifactQuery,
    ArtifactsPage,
    ArtifactsQuery,
    ArtifactView,
)
from tachograph.server._errors import ApiError
from tachograph.server._identity import Identity
from tachograph.server._media import FILE_HEADERS, FileResponse

__all__ = ["build_artifact", "build_artifacts_page", "send_artifact_file"]

_MAX_VERSIONS = 2_000


def build_artifacts_page(log_dirs: Sequence[str], query: ArtifactsQuery, identity: Identity | None) -> ArtifactsPage:
    """Return the versions of artifacts, sorted by name, newest first."""
    versions: list[ArtifactView] = []
    is_whole = True
    for project, folder in _folders(log_dirs, identity, query.project).items():
        store = ArtifactStore(folder)
        names = [query.name] if query.name is not None else store.names()
        for name in names:
            try:
                entries = store.versions(name)
            except ArtifactError as error:
                raise ApiError(404, "no_such_artifact", str(error)) from None
            for version in reversed(entries):
                if query.run is not None and query.run not in {version.run_id, version.run_name}:
                    continue
                if len(versions) == _MAX_VERSIONS:
                    is_whole = False
                    break
                versions.append(_view(version, project))
    return ArtifactsPage(artifacts=versions, is_whole=is_whole)


def build_artifact(
    log_dirs: Sequence[str], name: str, query: ArtifactQuery, identity: Identity | None
) -> ArtifactDetail:
    """Return a version with a part of its files."""
    project, version = _find(log_dirs, f"{name}:{query.version}", query.project, identity)
    chosen = version.files[query.offset : query.offset + query.limit]
    files = [ArtifactFileView(file.path, file.size_bytes, file.sha256, file.url) for file in chosen]
    return ArtifactDetail(artifact=_view(version, project), files=files)


def send_artifact_file(
    log_dirs: Sequence[str], name: str, sha256: str, query: ArtifactContentQuery, identity: Identity | None
) -> Response:
    """Return a content of a version as a download."""
    for folder in _folders(log_dirs, identity, query.project).values():
        try:
            contents = ArtifactStore(folder).contents(name, query.version)
        except ArtifactError:
            continue
        if sha256 not in contents:
            break
        try:
            file = open_to_read(blob_path(folder, sha256), below=folder)
        except OSError as error:
            raise ApiError(404, "missing_file", f"the content {sha256[:12]}… is missing: {error.strerror}") from None
        # The file name goes into a header: keep only characters that need no quoting.
        file_name = re.sub(r"[^A-Za-z0-9._-]+", "_", query.file_name).strip("._")[:100] or sha256[:16]
        headers = {**FILE_HEADERS, "Content-Disposition": f'attachment; filename="{file_name}"'}
        return FileResponse(file, sha256, headers, "application/octet-stream")
    raise ApiError(404, "no_such_file", f"{name[:100]}:{query.version[:20]} has no file with this hash")


def _folders(log_dirs: Sequence[str], identity: Identity | None, project: str | None) -> dict[str, Path]:
    """Return the folders with artifacts by the names of their projects; the log folder itself has none.

    A key for one project has a dashboard of its own, whose log folder is the project; so it need not name it.
    """
    folders: dict[str, Path] = {}
    for log_dir in log_dirs:
        for folder in find_artifact_folders(log_dir):
            label = "" if folder == Path(log_dir) else folder.name
            while label in folders:  # of another log folder
                label = f"{Path(log_dir).name}/{label}".rstrip("/")
            folders[label] = folder
    if project is None or (identity is not None and identity.project is not None):
        return folders
    labels = {project, suggest_run_name(project)}  # the folder of a project has the name that its name suggests
    return {label: folder for label, folder in folders.items() if label in labels}


def _find(
    log_dirs: Sequence[str], reference: str, project: str | None, identity: Identity | None
) -> tuple[str, ArtifactVersion]:
    folders = _folders(log_dirs, identity, project)
    matches = []
    problem = f"no artifact {reference[:150]!r}"
    for label, folder in folders.items():
        try:
            matches.append((label, ArtifactStore(folder).find(reference)))
        except ArtifactError as error:
            if reference.partition(":")[0] in ArtifactStore(folder).names():
                problem = str(error)
    if len(matches) > 1:
        labels = ", ".join(repr(label) for label, _ in matches)
        raise ApiError(409, "several_artifacts", f"several projects have {reference[:150]!r}: name one of {labels}")
    if not matches:
        raise ApiError(404, "no_such_artifact", problem)
    return matches[0]


def _view(version: ArtifactVersion, project: str) -> ArtifactView:
    return ArtifactView(
        name=version.name,
        version=version.version,
        project=project,
        digest=version.digest,
        type=version.type,
        description=version.description,
        metadata=mark_non_finite(version.metadata),
        num_files=len(version.files),
        size_bytes=version.size_bytes,
        run_id=version.run_id,
        run_name=version.run_name,
        time=version.time,
        aliases=version.aliases,
    )
