"""MLflow: a tracking database (SQLite), or a folder `mlruns`. Neither needs the package.

Pictures, tables and texts among the artifacts of a run become media if they lie below the folder of the log.

Both store single points. Points that follow each other and have the same step become one record. In a database they are
in the order in which they were logged. A folder has a file per metric, so the files are merged by the time of the
points; every file is read in small pieces, because there may be thousands.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import sqlite3
import sys
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from tachograph._base.files import read_small
from tachograph.bridges.mlflow.logged_artifacts import artifact_records, find_artifacts
from tachograph.importers import (
    MAX_DAMAGE,
    Damage,
    Position,
    RunSource,
    SourceRecord,
    field_name,
    read_single_run,
    source_changed,
)
from tachograph.importers.sqlite import find_tables, open_database, rows_up_to_damage
from tachograph.records import CONFIG_CHANGED, parse_literal

__all__ = ["MlflowImporter"]

_PIECE_BYTES = 16 << 10
_MAX_META_BYTES = 1 << 20
_STATES = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""States of a run by their number in a folder; a database has the names."""
_ENDS = {"FINISHED": ("finished", None), "FAILED": ("failed", None), "KILLED": ("failed", "killed")}
_SYSTEM = "system/"
_NOT_OF_USERS = ("mlflow.", "tachograph.")


class _MlflowPoint(NamedTuple):
    """A value, and the changes of the position after it."""

    time_ms: float
    step: int
    name: str
    value: float
    position: dict[str, Any]


class _MlflowFacts(msgspec.Struct):
    """The facts about a run that MLflow stores besides its points."""

    id: str
    name: str | None
    state: str | None
    start_ms: int | None
    end_ms: int | None
    experiment: str | None
    artifact_uri: str | None = None
    experiment_id: str | None = None
    params: dict[str, str] = {}
    tags: dict[str, str] = {}


class MlflowImporter:
    """Reads the runs of a database, or of the folder of a store, an experiment or a run."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is such a database or folder, or a folder that has one under its usual name."""
        return _find_database(path) is not None or any(_find_folders(path))

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the points of a run."""
        return read_single_run(self.runs(path), path, "mlflow")

    def runs(self, path: Path) -> list[RunSource]:
        """Return the runs that were not deleted."""
        database = _find_database(path)
        if database is not None:
            return [_DatabaseSource(database, facts) for facts in _read_database(database)]
        return [_FolderSource(folder, facts) for folder in _find_folders(path) if (facts := _read_folder(folder))]


class _MlflowSource(RunSource):
    """A run. The position says how far its points were read, and has the parameters that the journal has.

    The artifacts come after all points and are read anew every time: there is no order in which they were logged.
    """

    def __init__(self, path: Path, facts: _MlflowFacts) -> None:
        super().__init__(path, facts.id, facts.name or facts.tags.get("mlflow.runName") or facts.id)
        self._facts = facts

    def read(self, position: Position) -> Iterator[SourceRecord]:
        """Yield the `start` record, the points as records, media, later parameters, and the end."""
        facts, config = self._facts, {name: parse_literal(text) for name, text in self._facts.params.items()}
        journal_config = position.get("config", config)
        if not position:
            yield {"event": "start", **_start_fields(facts, config)}, None
        last_s: float = position.get("time", (facts.start_ms or 0) / 1_000)
        for record, record_position in _group(self._points(position)):
            last_s = max(record["time"], last_s)
            if record_position is not None:
                position.update(record_position, config=journal_config, time=last_s)
            yield record, None if record_position is None else position
        end_s = last_s if facts.end_ms is None else facts.end_ms / 1_000
        for record in self._media(None if facts.end_ms is None else end_s):
            yield record, None
        # Parameters cannot change in MLflow, but they may be added at any time.
        if new := {name: value for name, value in config.items() if name not in journal_config}:
            yield {"event": "event", "time": end_s, "name": CONFIG_CHANGED, "config": new}, None
        if facts.state in _ENDS:
            status, reason = _ENDS[facts.state]
            end = {"event": "end", "time": end_s, "status": status}
            yield {**end, **({"reason": reason} if reason else {})}, None

    def _media(self, end_s: float | None) -> Iterator[dict[str, Any]]:
        """Yield the artifacts as media, oldest first."""
        facts = self._facts
        artifacts = find_artifacts(
            self._root(), facts.artifact_uri, [facts.experiment_id or "", facts.id], facts.tags, self.left_out
        )
        if artifacts is not None:
            yield from artifact_records(artifacts, facts.tags, end_s, self.left_out)

    @abstractmethod
    def _root(self) -> Path:
        """Return the folder of the log, below which artifacts are read."""

    @abstractmethod
    def _points(self, position: Position) -> Iterator[_MlflowPoint]:
        """Yield the points after a position, in the order in which they were logged."""


def _start_fields(facts: _MlflowFacts, config: dict[str, Any]) -> dict[str, Any]:
    tags = facts.tags
    fields = {
        "time": None if facts.start_ms is None else facts.start_ms / 1_000,
        "title": facts.name,
        "project": facts.experiment,
        "notes": tags.get("mlflow.note.content"),
        "user": tags.get("mlflow.user"),
        "command": tags.get("mlflow.source.name"),
        "git": {"commit": tags["mlflow.source.git.commit"]} if "mlflow.source.git.commit" in tags else None,
        "tags": _read_tags(tags),
        "config": config,
    }
    return {name: value for name, value in fields.items() if value}


def _read_tags(tags: dict[str, str]) -> list[str]:
    """Return the tags of the user, without the tags of MLflow and of our sink, which stores a list in one of them."""
    user_tags = [
        f"{name}={text}" if text else name for name, text in tags.items() if not name.startswith(_NOT_OF_USERS)
    ]
    return [*filter(None, tags.get("tachograph.tags", "").split(", ")), *user_tags]


def _group(points: Iterator[_MlflowPoint]) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield records, each with the position after it; None at the end, where a record may get more values."""
    record: dict[str, Any] = {}
    position: dict[str, Any] = {}
    for point in points:
        is_system = point.name.startswith(_SYSTEM)
        # MLflow's own system metrics have steps that count samples, not steps of the training.
        head = {"event": "system"} if is_system else {"event": "step", "global_step": point.step}
        name = field_name(point.name.removeprefix(_SYSTEM) if is_system else point.name)
        is_same = all(record.get(key) == value for key, value in head.items()) and name not in record
        if is_system and record:
            is_same = is_same and record["time"] == point.time_ms / 1_000
        if record and not is_same:
            yield record, dict(position)
            record = {}
        if not record:
            record = {**head, "time": point.time_ms / 1_000}
        record["time"] = max(record["time"], point.time_ms / 1_000)
        record[name] = point.value
        position |= point.position
    if record:
        yield record, None


# A database ----------------------------------------------------------------------------------------------------------


class _DatabaseSource(_MlflowSource):
    """A run in a database. Its rows keep their order, but not necessarily their numbers, so they are counted."""

    def _root(self) -> Path:
        return self.path.parent

    def _points(self, position: Position) -> Iterator[_MlflowPoint]:
        num_rows = position.get("rows", 0)
        query = (
            "SELECT key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? "
            "ORDER BY rowid LIMIT -1 OFFSET ?"
        )
        with open_database(self.path) as database:
            begin = max(num_rows - 1, 0)
            rows = rows_up_to_damage(database, self.path, self.damage, query, (self.id, begin))
            if num_rows and zlib.crc32(repr(next(rows, None)).encode()) != position.get("checksum"):
                raise source_changed(self.path)
            for row_number, row in enumerate(rows, num_rows + 1):
                key, value, time_ms, step, is_nan = row
                number_value = math.nan if is_nan else _with_infinity(value)
                row_position = {"rows": row_number, "checksum": zlib.crc32(repr(row).encode())}
                yield _MlflowPoint(time_ms, step, key, number_value, row_position)


def _with_infinity(value: float) -> float:
    """Return the value that was logged: MLflow stores infinity as the largest float."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else float(value)


def _find_database(path: Path) -> Path | None:
    for file in (path, path / "mlflow.db"):
        if {"runs", "metrics", "params", "tags", "experiments"} <= find_tables(file).keys():
            return file
    return None


def _read_database(path: Path) -> list[_MlflowFacts]:
    query = (
        "SELECT run_uuid, runs.name, status, start_time, end_time, experiments.name, artifact_uri, "
        "CAST(experiment_id AS TEXT) FROM runs "
        "LEFT JOIN experiments USING (experiment_id) WHERE runs.lifecycle_stage = 'active' "
        "ORDER BY start_time, run_uuid"
    )
    with open_database(path) as database:
        runs = [_MlflowFacts(*row) for row in database.execute(query)]
        for facts in runs:
            facts.params = _read_pairs(database, "SELECT key, value FROM params WHERE run_uuid = ?", facts.id)
            facts.tags = _read_pairs(database, "SELECT key, value FROM tags WHERE run_uuid = ?", facts.id)
    return runs


def _read_pairs(database: sqlite3.Connection, query: str, run_id: str) -> dict[str, str]:
    return {name: text or "" for name, text in sorted(database.execute(query, (run_id,)))}


# A folder ------------------------------------------------------------------------------------------------------------


class _FolderSource(_MlflowSource):
    """A run in a folder, with a file per metric."""

    def _root(self) -> Path:
        return self.path

    def _points(self, position: Position) -> Iterator[_MlflowPoint]:
        folder = self.path / "metrics"
        offsets = {key[1:]: value for key, value in position.items() if key.startswith("@")}
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        names = [str(file.relative_to(folder)) for file in files]
        streams = [self._file_points(file, name, offsets.get(name, 0)) for file, name in zip(files, names, strict=True)]
        return heapq.merge(*streams, key=lambda point: (point.time_ms, point.step))

    def _file_points(self, file: Path, name: str, offset: int) -> Iterator[_MlflowPoint]:
        """Yield the points of a metric: lines of time, value and step. The last line may be incomplete."""
        if offset > file.stat().st_size:
            raise source_changed(file)
        rest = b""
        while True:
            with open(file, "rb") as stream:  # not open all the time: there may be more files than descriptors
                stream.seek(offset + len(rest))
                piece = stream.read(_PIECE_BYTES)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                begin, offset = offset, offset + len(line) + 1
                parts = line.split()
                try:
                    step = int(parts[2]) if len(parts) > 2 else 0  # the oldest versions of MLflow had no steps
                    yield _MlflowPoint(int(parts[0]), step, name, float(parts[1]), {f"@{name}": offset})
                except (ValueError, IndexError):
                    self._add_damage(file, begin)
            if len(rest) > _PIECE_BYTES:
                self._add_damage(file, offset)
                return
            if not piece:
                return

    def _add_damage(self, file: Path, offset: int) -> None:
        if len(self.damage) < MAX_DAMAGE:
            self.damage.append(Damage(str(file), f"byte {offset}", "is not a time, a value and a step"))


def _find_folders(path: Path) -> Iterator[Path]:
    """Yield the folders of the runs at a path: of a run itself, an experiment or a store.

    A run has its own `meta.yaml`. Its other folders may be missing: git and archives keep no empty ones.
    """
    for root in (path, path / "mlruns"):
        for pattern in ("meta.yaml", "*/meta.yaml", "*/*/meta.yaml"):
            for file in sorted(root.glob(pattern)):
                if file.is_file() and _run_id(_read_meta(file.parent)):
                    yield file.parent


def _read_folder(folder: Path) -> _MlflowFacts | None:
    """Return the facts about a run; None if it was deleted, or is not a run but a model."""
    meta = _read_meta(folder)
    run_id = _run_id(meta)
    if not run_id or meta.get("lifecycle_stage") == "deleted":
        return None
    state, experiment = meta.get("status"), _read_meta(folder.parent).get("name")
    start_ms, end_ms = meta.get("start_time"), meta.get("end_time")
    return _MlflowFacts(
        str(run_id),
        str(meta["run_name"]) if meta.get("run_name") else None,
        _STATES.get(state) if isinstance(state, int) else str(state),
        start_ms if isinstance(start_ms, int) else None,
        end_ms if isinstance(end_ms, int) else None,
        str(experiment) if experiment else None,
        "artifacts",
        None,
        _read_texts(folder / "params"),
        _read_texts(folder / "tags"),
    )


def _run_id(meta: dict[str, Any]) -> Any:
    """Return the id of a run, given the facts of an MLflow folder; None if the folder is something else."""
    return (meta.get("run_id") or meta.get("run_uuid")) if "artifact_uri" in meta else None


def _read_meta(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, yaml.YAMLError, UnicodeDecodeError):
        meta = yaml.safe_load(read_small(folder / "meta.yaml", _MAX_META_BYTES))
        return meta if isinstance(meta, dict) else {}
    return {}


def _read_texts(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): read_small(file, _MAX_META_BYTES).decode("utf-8", "replace")
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
