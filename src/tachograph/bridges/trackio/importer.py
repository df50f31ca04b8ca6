"""trackio: the database of a project, or the folder with all of them, by default `~/.cache/huggingface/trackio`.

A database has a table of rows with metrics, one of samples of the system and one of alerts, each numbered in the order
of logging. They are merged by their times. trackio does not store how a run ended.
"""

from __future__ import annotations

import contextlib
import datetime
import heapq
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.importers import Damage, Position, RunSource, SourceRecord, field_name, read_single_run, source_changed
from tachograph.importers.sqlite import find_tables, open_database, rows_up_to_damage
from tachograph.media import ImportedFile
from tachograph.records import CONFIG_CHANGED, flatten

__all__ = ["TrackioImporter"]

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MEDIA_KINDS = {"trackio.image": "image", "trackio.video": "video", "trackio.audio": "audio"}
_COLUMNS = {
    "metrics": ("id", "timestamp", "step", "metrics"),
    "system_metrics": ("id", "timestamp", "metrics"),
    "alerts": ("id", "timestamp", "step", "title", "text", "level"),
}


class TrackioImporter:
    """Reads the database of a project, or those in a folder."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is such a database, or a folder that has one."""
        return bool(_find_databases(path))

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the rows of a run."""
        return read_single_run(self.runs(path), path, "trackio")

    def runs(self, path: Path) -> list[RunSource]:
        """Return the runs at a path."""
        sources: list[RunSource] = []
        for file, key in _find_databases(path).items():
            with open_database(file) as database:
                # The key is one of two names of a column.
                query = f"SELECT {key}, max(run_name) FROM metrics GROUP BY {key} ORDER BY min(id)"  # noqa: S608
                sources += [TrackioSource(file, key, run_id, name) for run_id, name in database.execute(query)]
        return sources


class TrackioSource(RunSource):
    """A run. The position has the number of the last row of each table, and a checksum of it."""

    def __init__(self, path: Path, key: str, run_id: str, name: str) -> None:
        super().__init__(path, f"{path.stem}/{run_id}", str(name))
        self._key = key
        self._run_id = run_id

    def read(self, position: Position) -> Iterator[SourceRecord]:
        """Yield the `start` record, the rows as records, and later changes of the config."""
        tables = find_tables(self.path)
        with open_database(self.path) as database:
            facts = self._read_config(database) if "configs" in tables else {}
            config = {name: value for name, value in facts.items() if not name.startswith("_")}
            journal_config = position.get("config", config)
            rows = heapq.merge(
                *(self._read_rows(database, table, position) for table in _COLUMNS if table in tables),
                key=lambda item: item[0],
            )
            has_start = bool(position)
            last_s = position.get("time", 0.0)
            for time_s, records, row_position in rows:
                if not has_start:
                    has_start = True
                    created_s = _parse_time(facts.get("_Created"))
                    start = {"time": created_s or time_s, "title": self.name, "project": self.path.stem}
                    group = {"group": facts["_Group"]} if facts.get("_Group") else {}
                    yield {"event": "start", **start, **group, "config": config}, None
                for record in records[:-1]:
                    yield record, None
                last_s = max(time_s, last_s)
                position.update(row_position, config=journal_config, time=last_s)
                yield records[-1], position
        new_values = {
            name: value for name, value in config.items() if name not in journal_config or journal_config[name] != value
        }
        if new_values:
            yield {"event": "event", "time": last_s, "name": CONFIG_CHANGED, "config": new_values}, None

    def _read_config(self, database: Any) -> dict[str, Any]:
        query = f"SELECT config FROM configs WHERE {self._key} = ? ORDER BY id DESC LIMIT 1"  # noqa: S608
        row = database.execute(query, (self._run_id,)).fetchone()
        config = _parse_json(row[0]) if row else {}
        return config if isinstance(config, dict) else {}

    def _read_rows(
        self, database: Any, table: str, position: Position
    ) -> Iterator[tuple[float, list[dict[str, Any]], dict[str, Any]]]:
        """Yield the time, the records and the new position for each row of a table."""
        number, last_checksum = position.get(table, 0), position.get(f"{table}_checksum")
        query = f"SELECT {', '.join(_COLUMNS[table])} FROM {table} WHERE {self._key} = ? AND id >= ? ORDER BY id"  # noqa: S608
        for row in rows_up_to_damage(database, self.path, self.damage, query, (self._run_id, number)):
            checksum = zlib.crc32(repr(row).encode("utf-8", "backslashreplace"))
            if last_checksum is not None:
                if (row[0], checksum) != (number, last_checksum):
                    raise source_changed(self.path)
                last_checksum = None
                continue
            fields = dict(zip(_COLUMNS[table], row, strict=True))
            time_s = _parse_time(fields["timestamp"]) or 0.0
            row_position = {table: row[0], f"{table}_checksum": checksum}
            records = list(self._to_records(table, time_s, fields))
            if records:
                yield time_s, records, row_position
        if last_checksum is not None:
            raise source_changed(self.path)

    def _to_records(self, table: str, time_s: float, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        at = {"time": time_s, **({"global_step": fields["step"]} if isinstance(fields.get("step"), int) else {})}
        if table == "alerts":
            texts = {name: fields[name] for name in ("title", "text", "level") if fields[name]}
            yield {"event": "event", **at, "name": "alert", **texts}
            return
        metrics = _parse_json(fields["metrics"])
        if not isinstance(metrics, dict):
            self.damage.append(Damage(str(self.path), f"row {fields['id']} of {table}", "is not a JSON object"))
            return
        values: dict[str, Any] = {}
        for name, value in metrics.items():
            if isinstance(value, dict) and "_type" in value:
                if value["_type"] == "trackio.histogram" and value.get("values"):
                    counts = {"counts": value["values"], "edges": value.get("bins")}
                    yield {"event": "event", **at, "name": "histogram", "tag": name, **counts}
                elif value["_type"] in _MEDIA_KINDS and isinstance(value.get("file_path"), str):
                    caption = value.get("caption")
                    item = {"caption": caption} if isinstance(caption, str) and caption else {}
                    file = ImportedFile(root=str(self.path.parent / "media"), path=value["file_path"])
                    media = {"name": field_name(name), "kind": _MEDIA_KINDS[value["_type"]]}
                    yield {"event": "media", **at, **media, "items": [{**item, "file": file}]}
                else:
                    self.left_out[str(value["_type"]).removeprefix("trackio.")] += 1
            else:
                values[name] = value
        numbers = {field_name(name): number for name, number in self._numbers(flatten(values))}
        if numbers:
            yield {"event": "step" if table == "metrics" else "system", **at, **numbers}

    def _numbers(self, values: dict[str, Any]) -> Iterator[tuple[str, float]]:
        for name, value in values.items():
            if isinstance(value, str) and value in _NON_FINITE:
                yield name, _NON_FINITE[value]
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                yield name, value
            elif value is not None:
                self.left_out["value that is not a number"] += 1


def _find_databases(path: Path) -> dict[Path, str]:
    """Return the databases at a path, each with the column that identifies a run."""
    databases: dict[Path, str] = {}
    for file in [path] if path.is_file() else sorted(path.glob("*.db")):
        tables = find_tables(file)
        columns = tables.get("metrics", set())
        if {"run_name", "timestamp", "step", "metrics"} <= columns:
            databases[file] = (
                "run_id" if "run_id" in columns and "run_id" in tables.get("configs", {"run_id"}) else "run_name"
            )
    return databases


def _parse_json(data: Any) -> Any:
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        return json.loads(data)
    return None


def _parse_time(text: Any) -> float | None:
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return datetime.datetime.fromisoformat(text).timestamp()
    return None
