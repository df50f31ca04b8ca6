"""The artifacts of an MLflow run as `media` records: pictures, tables, texts, pages, sounds and videos.

Where artifacts are is written in the log, which may come from anywhere. So a folder counts only if it lies below the
folder of the log, and files are read by `ImportedFile`, which follows no link out of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from tachograph._base.guard import faults
from tachograph.bridges.mlflow.media_files import PICTURES_TAG, TABLES_TAG
from tachograph.importers import field_name
from tachograph.media import ImportedFile

__all__ = ["ArtifactFolder", "artifact_records", "find_artifacts"]

_KINDS = {
    **dict.fromkeys(["png", "jpg", "jpeg", "gif", "webp"], "image"),
    **dict.fromkeys(["wav", "mp3", "flac", "ogg"], "audio"),
    **dict.fromkeys(["mp4", "webm"], "video"),
    **dict.fromkeys(["html", "htm"], "html"),
    **dict.fromkeys(["md", "markdown"], "markdown"),
    "txt": "text",
}
_LOGGED_PICTURE = re.compile(
    r"images/(?P<key>[^/]+?)(?P<mark>[+%])step(?P=mark)(?P<step>-?\d{1,18})(?P=mark)timestamp(?P=mark)"
    r"(?P<time_ms>\d{1,15})(?P=mark)(?P<id>[0-9a-f-]{36})(?P<small>(?P=mark)compressed)?\.(?:png|webp)"
)
"""A picture of `mlflow.log_image`. Older versions separate the parts by percent signs."""
_STEP_FILE = re.compile(r"media/(?P<name>.+)/(?P<step>-?\d{1,18})(?:-(?P<index>\d{1,4}))?\.\w+")
"""A file of our sink."""
_DEFAULT_FOLDERS = ("mlruns", "mlartifacts")
_MAX_FILES = 100_000
_MAX_COLUMNS = 500
_MAX_TABLE_BYTES = 32 << 20


class ArtifactFolder(NamedTuple):
    """The artifacts of a run."""

    root: str
    """The folder of the log."""
    path: str
    """Relative to `root`."""


class _LoggedFile(NamedTuple):
    """A file, and the place that its name gives it."""

    path: str
    """Relative to the folder of artifacts."""
    kind: str
    name: str
    step: int | None
    time_s: float
    order: tuple[Any, ...]
    """Sorts the files of a name and step."""


def find_artifacts(
    root: Path, uri: str | None, ids: list[str], tags: Mapping[str, str], left_out: Counter[str]
) -> ArtifactFolder | None:
    """Return the folder of artifacts below the folder of the log; None if there is none.

    Args:
        root: the folder of the log.
        uri: where MLflow says that the artifacts are.
        ids: the ids of the experiment and of the run, which name their folders by default.
        tags: the tags of the run.
        left_out: gets an item if the run has artifacts, but in another place.
    """
    real_root = os.path.realpath(root)
    for path in (_local_path(uri), *(os.path.join(folder, *ids, "artifacts") for folder in _DEFAULT_FOLDERS)):
        with contextlib.suppress(ValueError):  # a null byte
            real_path = os.path.realpath(os.path.join(real_root, path or ""))
            is_inside = real_path.startswith(real_root + os.sep) and os.path.basename(real_path) == "artifacts"
            if path and is_inside and os.path.isdir(real_path):
                return ArtifactFolder(real_root, os.path.relpath(real_path, real_root))
    if tags.keys() & {TABLES_TAG, PICTURES_TAG}:
        left_out["artifacts outside the folder of the log"] += 1
    return None


def _local_path(uri: str | None) -> str | None:
    if uri is None or ("://" not in uri and not uri.startswith("file:")):
        return uri
    with contextlib.suppress(ValueError):
        parts = urlsplit(uri)
        if parts.scheme == "file":
            return unquote(parts.path)
    return None


def artifact_records(
    folder: ArtifactFolder, tags: Mapping[str, str], end_s: float | None, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield the artifacts as `media` records, oldest first. Others are counted."""
    tables = _table_paths(tags)
    groups: defaultdict[tuple[Any, ...], list[_LoggedFile]] = defaultdict(list)
    for entry in _entries(folder, tables, end_s, left_out):
        groups[entry.kind, entry.name, entry.step].append(entry)
    for entries in groups.values():
        entries.sort(key=lambda entry: entry.order)
    for (kind, name, step), entries in sorted(groups.items(), key=lambda item: (item[1][-1].time_s, item[1][-1].path)):
        items = list(_items(folder, kind, entries, left_out))
        if items:
            head = {"event": "media", "time": entries[-1].time_s, **({} if step is None else {"global_step": step})}
            yield {**head, "name": field_name(name), "kind": kind, "items": items}


def _items(
    folder: ArtifactFolder, kind: str, entries: list[_LoggedFile], left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    for entry in entries:
        file = _file_of(folder, entry.path)
        if kind != "table":
            yield {"file": file}
        elif (table := _read_table(folder, file)) is not None:
            yield table
        else:
            left_out["table that cannot be read"] += 1


def _file_of(folder: ArtifactFolder, path: str) -> ImportedFile:
    return ImportedFile(root=folder.root, path=os.path.join(folder.path, path))


def _entries(
    folder: ArtifactFolder, tables: set[str], end_s: float | None, left_out: Counter[str]
) -> Iterator[_LoggedFile]:
    paths = list(_paths(folder, left_out))
    complete = {
        _picture_id(match) for path in paths if (match := _LOGGED_PICTURE.fullmatch(path)) and not match["small"]
    }
    for path in paths:
        match = _LOGGED_PICTURE.fullmatch(path)
        stem, _, ext = path.rpartition(".")
        kind = "table" if path in tables else _KINDS.get(ext.lower()) if stem else None
        if match:
            if match["small"] and _picture_id(match) in complete:
                continue
            name = re.sub(r"[~#]", "/", match["key"])  # a key has neither of them
            order = (int(match["time_ms"]), path)
            yield _LoggedFile(path, "image", name, int(match["step"]), int(match["time_ms"]) / 1_000, order)
        elif kind is None or (kind == "table" and ext != "json"):
            left_out["table" if kind else "artifact"] += 1
        else:
            time_s = _modified_at(folder, path)
            time_s = time_s if end_s is None else min(time_s, end_s)
            step_file = _STEP_FILE.fullmatch(path)
            if step_file:
                yield _LoggedFile(
                    path, kind, step_file["name"], int(step_file["step"]), time_s, (int(step_file["index"] or 0), path)
                )
            else:
                yield _LoggedFile(path, kind, stem, None, time_s, (path,))


def _picture_id(match: re.Match[str]) -> tuple[str, ...]:
    return match["key"], match["step"], match["time_ms"], match["id"]


def _paths(folder: ArtifactFolder, left_out: Counter[str]) -> Iterator[str]:
    """Yield the paths of files, without models and the pictures in cells of tables."""
    top = os.path.join(folder.root, folder.path)
    num_files = 0
    for parent, folders, names in os.walk(top):
        relative = os.path.relpath(parent, top)
        if "MLmodel" in names:
            left_out["model"] += 1
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if relative != "." or name != "table_images")
        for name in sorted(names):
            num_files += 1
            if num_files > _MAX_FILES:
                left_out["artifact"] += 1
            else:
                yield posixpath.normpath(posixpath.join(relative, name))


def _modified_at(folder: ArtifactFolder, path: str) -> float:
    try:
        return os.stat(os.path.join(folder.root, folder.path, path), follow_symlinks=False).st_mtime
    except faults(OSError):
        return 0.0


def _table_paths(tags: Mapping[str, str]) -> set[str]:
    """Return the paths of the files that MLflow shows as tables."""
    with contextlib.suppress(ValueError, RecursionError):
        entries = json.loads(tags.get(TABLES_TAG, "[]"))
        if isinstance(entries, list):
            tables = [each for each in entries if isinstance(each, dict) and each.get("type") == "table"]
            return {each["path"] for each in tables if isinstance(each.get("path"), str)}
    return set()


def _read_table(folder: ArtifactFolder, file: ImportedFile) -> dict[str, Any] | None:
    """Return the columns and rows of a table; None if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        text = file.read() or b""
        content = json.loads(text) if len(text) <= _MAX_TABLE_BYTES else None
        columns, data = (content.get("columns"), content.get("data")) if isinstance(content, dict) else (None, None)
        if isinstance(columns, list) and isinstance(data, list) and len(columns) <= _MAX_COLUMNS:
            names = [str(column) for column in columns]
            rows = [
                {name: _cell(folder, cell) for name, cell in zip(names, row, strict=False)}
                for row in data
                if isinstance(row, list)
            ]
            return {"columns": list(dict.fromkeys(names)), "rows": rows}
    return None


def _cell(folder: ArtifactFolder, cell: Any) -> Any:
    if isinstance(cell, dict) and cell.get("type") == "image" and isinstance(cell.get("filepath"), str):
        return _file_of(folder, cell["filepath"])
    return cell
