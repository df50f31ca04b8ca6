"""SwanLab: the `.swanlab` files that it writes next to a run, online or offline.

All files with the same id are one run: SwanLab begins a new folder when a run is resumed, which is a new attempt. Each
value is a message of its own. The values of one call of `log` have the same step and time and follow each other, so
they become one record. Config, texts and tables are files next to the `.swanlab` file. The config changes while the run
grows, so it is read when the file ends.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tachograph._base.config import parse_yaml
from tachograph._base.files import read_small
from tachograph._base.typed import decode_json
from tachograph.importers import Damage, Position, RunSource, SourceRecord, read_single_run
from tachograph.importers.chunked_file import read_chunked_records
from tachograph.importers.files import find_below, find_nearby
from tachograph.importers.protobuf import as_double, as_signed, as_text, read_fields
from tachograph.records import CONFIG_CHANGED, RESERVED_FIELDS

__all__ = ["SwanLabImporter"]

_HEADER = b":SWL\xd6\xe1\x02"
_SYSTEM_PREFIX = "__swanlab__."
_STEP_OF_RUN = "\0global_step"
"""The metric `global_step`, in a row that is not complete."""
_MAX_FILE_BYTES = 16 << 20
_MAX_REASON_CHARS = 500

_START, _FINISH, _SCALAR, _MEDIA, _LOG, _SAVE = 10, 11, 13, 14, 16, 20
"""The numbers of the fields of a message."""
_TEXTS = {1: "project", 2: "workspace", 4: "name", 5: "notes", 7: "group", 8: "job_type", 10: "id"}
"""The texts of a start message, by the number of their field."""
_STATES = {1: "finished", 2: "crashed", 3: "aborted"}
_TEXT, _CHART = 4, 6
_MEDIA_KINDS = {
    2: "image",
    3: "audio",
    _TEXT: "text",
    5: "video",
    _CHART: "chart",
    7: "3D object",
    8: "molecule",
    9: "HTML page",
}
_FOLDERS = {_TEXT: "text", _CHART: "echarts"}
_CUSTOM_FILE = 0


class SwanLabImporter:
    """Reads a `.swanlab` file, the folder of a run, or a folder with several of them."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is a `.swanlab` file, or a folder that has one."""
        return bool(find_nearby(path, ".swanlab"))

    def detects_below(self, path: Path) -> bool:
        """Return whether there is such a file anywhere in a folder."""
        return bool(find_below(path, ".swanlab"))

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the metrics of a run."""
        folder_names = {file.parent.name for file in find_below(path, ".swanlab")}
        return read_single_run(self.runs(path), path, "swanlab", choices=folder_names)

    def runs(self, path: Path) -> list[RunSource]:
        """Return the runs at a path."""
        groups: dict[str, list[tuple[float, Path, dict[str, Any]]]] = {}
        for file in find_below(path, ".swanlab"):
            start = _read_start(file)
            # Without a start the file is damaged at its beginning, which reading it will report.
            id_parts = (start.get("workspace"), start.get("project"), start.get("id"))
            source_id = "/".join(filter(None, id_parts)) or str(file.resolve())
            groups.setdefault(source_id, []).append((start.get("time", 0.0), file, start))
        sources: list[RunSource] = []
        for source_id, group_with_copies in groups.items():
            group_with_copies.sort(key=lambda item: item[1].stat().st_size)
            group = list(
                {(item[0], item[1].name): item for item in group_with_copies}.values()
            )  # of copies, the largest
            group.sort(key=lambda item: item[:2])
            start = group[0][2]
            name = start.get("name") or start.get("id") or group[0][1].stem
            sources.append(SwanLabSource(group[0][1], source_id, name, [(file, time_s) for time_s, file, _ in group]))
        return sources


class SwanLabSource(RunSource):
    """The files of one run. The position has the offset in each of them."""

    def __init__(self, path: Path, source_id: str, name: str, files: list[tuple[Path, float]]) -> None:
        super().__init__(path, source_id, name)
        self._files = files

    def read(self, position: Position) -> Iterator[SourceRecord]:
        """Yield `start`, `step`, `system`, `completions` and `end` records, and events for config and texts."""
        self._offsets: dict[str, int] = dict(position.get("offsets", {}))
        self._now_s: float = position.get("time", 0.0)
        self._final_keys: list[str] = list(position.get("done", []))  # of files whose config is final
        for file, started_s in self._files:
            key = f"{file.name}@{started_s!r}"  # attempts have the same id, and maybe folders of the same name
            row = yield from self._read_messages(file, key, position)
            # The end of the last file may still change: the row may get more values, and the config other ones.
            is_last = file is self._files[-1][0]
            if row is not None and not is_last:
                yield self._store(position, key, row[1], _finish_row(row[0]))
            elif row is not None:
                self._now_s = max(row[0]["time"], self._now_s)
                yield _finish_row(row[0]), None
            if key in self._offsets and key not in self._final_keys:
                if not is_last:
                    self._final_keys.append(key)
                if config := self._config(file):
                    yield {"event": "event", "time": self._now_s, "name": CONFIG_CHANGED, "config": config}, None

    def _read_messages(
        self, file: Path, key: str, position: Position
    ) -> Generator[SourceRecord, None, tuple[dict[str, Any], int] | None]:
        """Yield the records of a file; return the last row, if nothing follows it, and the offset after it."""
        row: dict[str, Any] | None = None
        row_end = 0
        for data, end in read_chunked_records(file, self._offsets.get(key, 0), self.damage, header=_HEADER):
            try:
                values, records = self._to_records(file, key, data)
            except ValueError as error:
                self.damage.append(Damage(str(file), f"before byte {end}", f"a record is not valid: {error}"))
                break
            if values is not None and row is not None and _is_same_row(row, values):
                row.update(values)
                row_end = end
                continue
            if (values is not None or records) and row is not None:
                yield self._store(position, key, row_end, _finish_row(row))
                row = None
            if values is not None:
                row, row_end = values, end
            for record in records:
                if record is not records[-1]:
                    yield {"time": self._now_s, **record}, None
                else:
                    yield self._store(position, key, end, record)
        return None if row is None else (row, row_end)

    def _store(self, position: Position, key: str, end: int, record: dict[str, Any]) -> SourceRecord:
        """Return a record with the position after it."""
        self._now_s = max(record.get("time", self._now_s), self._now_s)
        record.setdefault("time", self._now_s)
        self._offsets[key] = end
        position.update(offsets=dict(self._offsets), time=self._now_s, done=list(self._final_keys))
        return record, position

    def _to_records(self, file: Path, key: str, data: bytes) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """Return the value of a message as a part of a row, or the records of a message."""
        for number, content in read_fields(data):
            if not isinstance(content, bytes):
                continue
            if number == _SCALAR:
                return _parse_scalar(content), []
            if number == _START:
                start = _parse_start(content)
                return None, [{"event": "start", **{name: start[name] for name in start if name != "id"}}]
            if number == _MEDIA:
                return None, self._media_records(file, content)
            if number == _FINISH:
                return None, self._finish_records(file, key, content)
            if number == _LOG:
                self.left_out["line of output"] += 1
            elif number == _SAVE:
                kind = next((value for field, value in read_fields(content) if field == 5), _CUSTOM_FILE)
                if kind == _CUSTOM_FILE:
                    self.left_out["file"] += 1
        return None, []

    def _finish_records(self, file: Path, key: str, content: bytes) -> list[dict[str, Any]]:
        self._final_keys.append(key)
        end, config = _parse_finish(content), self._config(file)
        config_change = {"event": "event", "time": end["time"], "name": CONFIG_CHANGED, "config": config}
        return [config_change, end] if config else [end]

    def _media_records(self, file: Path, content: bytes) -> list[dict[str, Any]]:
        point, items = _parse_point(content)
        kind = point.pop("kind")
        name = point.pop("key")
        records: list[dict[str, Any]] = []
        for item in items:
            text = self._read_item(file, kind, item) if kind in _FOLDERS else None
            rows = _table_rows(text) if text is not None and kind == _CHART else None
            if rows is not None:
                records.append({"event": "completions", **point, "table": name, "rows": rows})
            elif text is not None and kind == _TEXT:
                records.append({"event": "event", "name": "text", **point, "tag": name, "text": text})
            else:
                self.left_out[_MEDIA_KINDS.get(kind, "media")] += 1
        return records

    def _read_item(self, file: Path, kind: int, item: bytes) -> str | None:
        """Return the content of a file of media, which is next to the log or in it; None if it is missing."""
        fields = dict(read_fields(item))
        if 5 in fields:
            return as_text(fields[5])
        name = as_text(fields.get(1, b""))
        folder = file.parent / "media" / _FOLDERS[kind]
        if not name or Path(name).name != name:  # a name from a log must not lead elsewhere
            return None
        with contextlib.suppress(OSError):
            return read_small(folder / name, _MAX_FILE_BYTES).decode("utf-8", "replace")
        return None

    def _config(self, file: Path) -> dict[str, Any]:
        """Return the config next to a file."""
        path = file.parent / "files" / "config.yaml"
        try:
            content = parse_yaml(read_small(path, _MAX_FILE_BYTES).decode("utf-8", "replace"))
        except FileNotFoundError:
            return {}
        except (OSError, yaml.YAMLError) as error:
            reason = "the config is not valid YAML" if isinstance(error, yaml.YAMLError) else str(error)
            self.damage.append(Damage(str(path), "the whole file", reason))
            return {}
        if not isinstance(content, dict):
            return {}
        return {str(key): item["value"] for key, item in content.items() if isinstance(item, dict) and "value" in item}


def _parse_start(content: bytes) -> dict[str, Any]:
    start: dict[str, Any] = {"tags": []}
    for number, value in read_fields(content):
        if number in _TEXTS and value:
            start[_TEXTS[number]] = as_text(value)
        elif number == 6:
            start["tags"].append(as_text(value))
        elif number == 12:
            start["time"] = _parse_time(value)
    return start


def _parse_finish(content: bytes) -> dict[str, Any]:
    fields = dict(read_fields(content))
    state = _STATES.get(as_signed(fields.get(1, 0)), "crashed")
    end: dict[str, Any] = {"event": "end", "status": "finished" if state == "finished" else "failed"}
    end["time"] = _parse_time(fields.get(3, b""))
    if state != "finished":
        lines = as_text(fields.get(2, b"")).strip().splitlines() or [""]
        end["reason"] = f"{state}: {lines[-1]}"[:_MAX_REASON_CHARS] if lines[-1] else state
    return end


def _parse_point(content: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return key, step, kind and time of a value, and the parts of the value."""
    fields = dict(read_fields(content))
    point = {
        "key": as_text(fields.get(1, b"")),
        "global_step": as_signed(fields.get(2, 0)),
        "kind": as_signed(fields.get(3, 0)),
        "time": _parse_time(fields.get(4, b"")),
    }
    value = fields.get(5, b"")
    return point, [
        part for _, part in read_fields(value if isinstance(value, bytes) else b"") if isinstance(part, bytes)
    ]


def _parse_scalar(content: bytes) -> dict[str, Any]:
    """Return a value as a row."""
    point, parts = _parse_point(content)
    number = as_double(parts[0]) if parts else 0.0  # zero is not written
    name = point["key"]
    if name.startswith(_SYSTEM_PREFIX):
        return {"event": "system", "time": point["time"], name.removeprefix(_SYSTEM_PREFIX): number}
    row = {"event": "step", "time": point["time"], "global_step": point["global_step"]}
    return {**row, _STEP_OF_RUN if name == "global_step" else f"{name}_" if name in RESERVED_FIELDS else name: number}


def _is_same_row(row: dict[str, Any], values: dict[str, Any]) -> bool:
    """Return whether a value belongs to a row, whose names it may not repeat."""
    row_fields = ("event", "time", "global_step")
    return all(row.get(name) == values.get(name) for name in row_fields) and not (row.keys() & values.keys()) - {
        *row_fields
    }


def _finish_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a record. The metric `global_step` is the step of the run, where SwanLab has another one."""
    step = row.pop(_STEP_OF_RUN, None)
    if step is not None and math.isfinite(step) and step >= 0 and step == int(step):
        row["global_step"] = int(step)
    return row


def _table_rows(text: str) -> list[dict[str, Any]] | None:
    """Return the rows of a table; None if a chart is not a table."""
    with contextlib.suppress(msgspec.MsgspecError):
        content = decode_json(text, dict[str, Any])
        rows = content.get("rowData")
        if content.get("_swanLab") == "table" and isinstance(rows, list):
            return [row for row in rows if isinstance(row, dict)]
    return None


def _parse_time(value: int | bytes) -> float:
    fields = dict(read_fields(value)) if isinstance(value, bytes) else {}
    return as_signed(fields.get(1, 0)) + as_signed(fields.get(2, 0)) / 1e9


def _read_start(file: Path) -> dict[str, Any]:
    """Return the start of a file; empty if there is none."""
    with contextlib.suppress(ValueError):
        for data, _ in read_chunked_records(file, 0, [], header=_HEADER):
            for number, content in read_fields(data):
                if number == _START and isinstance(content, bytes):
                    return _parse_start(content)
    return {}
