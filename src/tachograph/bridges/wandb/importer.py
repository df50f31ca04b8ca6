"""W&B: the `.wandb` files that it writes next to a run, online or offline, and exported run folders.

All files with the same run id are one run: W&B begins a new file when a run is resumed, which is a new attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.bridges.wandb._export_files import find_export, open_export
from tachograph.bridges.wandb._values import (
    flatten,
    nest,
    parse_run,
    parse_stats,
    read_items,
    read_step,
    to_nested,
    without_media,
)
from tachograph.bridges.wandb.facade.metric import DefinedMetric, step_metric_of
from tachograph.importers import Damage, Position, RunSource, SourceRecord, read_single_run
from tachograph.importers.chunked_file import read_chunked_records
from tachograph.importers.files import find_below, find_nearby
from tachograph.importers.protobuf import as_signed, as_text, read_fields
from tachograph.media import ImportedFile
from tachograph.records import CONFIG_CHANGED, METRIC_DEFINED, SUMMARY

__all__ = ["WandbImporter"]

_HEADER = b":W&B\xe1\xbe\x00"

_MESSAGES = {
    2: "history",
    3: "summary",
    5: "config",
    7: "stats",
    8: "artifact",
    10: "alert",
    12: "metric",
    13: "output",
    17: "run",
    18: "exit",
}
"""The kinds of messages that matter, by the number of their field."""


class WandbImporter:
    """Reads a `.wandb` file, the folder of a run, or a folder with several of them."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is a `.wandb` file, or a folder that has one or an exported run."""
        return bool(find_nearby(path, ".wandb")) or find_export(path) is not None

    def detects_below(self, path: Path) -> bool:
        """Return whether there is such a file anywhere in a folder."""
        return bool(find_below(path, ".wandb"))

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the history of a run."""
        folder_names = {file.parent.name for file in find_below(path, ".wandb")}
        return read_single_run(self.runs(path), path, "wandb", choices=folder_names)

    def runs(self, path: Path) -> list[RunSource]:
        """Return the runs at a path."""
        files = find_below(path, ".wandb")
        folder = find_export(path)
        if not files and folder is not None:
            return [open_export(folder)]
        groups: dict[str, list[tuple[float, Path, dict[str, Any]]]] = {}
        for file in files:
            run = _read_run(file)
            # Without a run the file is damaged at its beginning, which reading it will report.
            source_id = "/".join(filter(None, (run.get("project"), run.get("id")))) or str(file.resolve())
            groups.setdefault(source_id, []).append((run.get("time", 0.0), file, run))
        sources: list[RunSource] = []
        for source_id, group_with_copies in groups.items():
            # Of copies of a file, such as the one of `latest-run` where links were copied as folders, the largest.
            group_with_copies.sort(key=lambda item: (item[1].stat().st_size, item[1].parent.name))
            group = list({(time_s, file.name): (time_s, file, run) for time_s, file, run in group_with_copies}.values())
            group.sort(key=lambda item: item[:2])
            run = group[0][2]
            name = run.get("name") or run.get("id") or group[0][1].stem
            sources.append(WandbSource(group[0][1], source_id, name, [file for _, file, _ in group]))
        return sources


class WandbSource(RunSource):
    """The files of one run.

    The position has the offset in each of them, the summary that is not yet recorded, the definitions of metrics, and
    the x axes that are recorded.
    """

    def __init__(self, path: Path, source_id: str, name: str, files: list[Path]) -> None:
        super().__init__(path, source_id, name)
        self._files = files

    def read(self, position: Position) -> Iterator[SourceRecord]:
        """Yield `start`, `step`, `system` and `end` records, and events for other logged values."""
        offsets: dict[str, int] = position.get("offsets", {})
        now_s: float = position.get("time", 0.0)
        self._summary = dict(position.get("summary", {}))
        self._definitions: dict[str, str] = dict(position.get("definitions", {}))
        self._axes: dict[str, str] = dict(position.get("axes", {}))
        for file in self._files:
            key = f"{file.parent.name}/{file.name}"
            self._media_folder = str(file.parent / "files")
            self._has_start = key in offsets
            for data, end in read_chunked_records(file, offsets.get(key, 0), self.damage, header=_HEADER):
                try:
                    records = self._to_records(data)
                except ValueError as error:
                    self.damage.append(Damage(str(file), f"before byte {end}", f"a record is not valid: {error}"))
                    break
                for record in records:
                    now_s = max(record.get("time", now_s), now_s)
                    record.setdefault("time", now_s)
                    if record is not records[-1]:
                        yield record, None
                        continue
                    # Later messages change the summary. To read them again does no harm: each sets values.
                    offsets[key] = end
                    position.update(offsets=offsets, time=now_s, summary=self._summary)
                    position.update(definitions=dict(self._definitions), axes=dict(self._axes))
                    yield record, position
            if records := self._take_summary():
                yield {"time": now_s, **records[0]}, None

    def _to_records(self, data: bytes) -> list[dict[str, Any]]:
        """Return the records of a message; updates of the summary are collected."""
        for number, content in read_fields(data):
            kind = _MESSAGES.get(number)
            if kind is None or not isinstance(content, bytes) or not (self._has_start or kind == "run"):
                continue
            match kind:
                case "run":
                    return self._run_records(parse_run(content))
                case "history":
                    return self._history_records(content)
                case "summary":
                    self._update_summary(content)
                case "config":
                    config = to_nested(read_items(content, 1))
                    config.pop("_wandb", None)
                    return [{"event": "event", "name": CONFIG_CHANGED, "config": config}] if config else []
                case "stats":
                    return parse_stats(content)
                case "metric":
                    self._define_metric(content)
                case "alert":
                    texts = {1: "title", 2: "text", 3: "level"}
                    fields = {texts[key]: as_text(value) for key, value in read_fields(content) if key in texts}
                    return [{"event": "event", "name": "alert", **fields}]
                case "exit":
                    code = next((as_signed(value) for key, value in read_fields(content) if key == 1), 0)
                    failure = {"status": "failed", "reason": f"exit code {code}"}
                    return [*self._take_summary(), {"event": "end", **(failure if code else {"status": "finished"})}]
                case _:
                    self.left_out["artifact" if kind == "artifact" else "line of output"] += 1
        return []

    def _run_records(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        if not self._has_start:
            self._has_start = True
            return [{"event": "start", **{name: run[name] for name in run if name != "id"}}]
        fields = {"title": run.get("name"), "tags": run["tags"], "notes": run.get("notes")}
        change = {"event": "event", "name": "run_changed", **fields}
        config = [{"event": "event", "name": CONFIG_CHANGED, "config": run["config"]}] if run.get("config") else []
        return [change, *config]

    def _history_records(self, content: bytes) -> list[dict[str, Any]]:
        row = to_nested(read_items(content, 1))
        step = next((read_step(value) for key, value in read_fields(content) if key == 2), 0)
        record: dict[str, Any] = {"event": "step", "global_step": row.pop("_step", step)}
        if isinstance(row.get("_timestamp"), (int, float)):
            record["time"] = row["_timestamp"]
        values, histograms, media = flatten(row, self.left_out)
        at = {name: record[name] for name in ("time", "global_step") if name in record}
        events = [{"event": "event", "name": "histogram", **at, **histogram} for histogram in histograms]
        for entry in media:
            items = [_with_file(item, self._media_folder) for item in entry["items"]]
            events.append({"event": "media", **at, **entry, "items": items})
        return [*self._new_axes(values), *events, {**record, **values}] if values else events

    def _define_metric(self, content: bytes) -> None:
        """Remember the x axis of a metric, or of all metrics with a prefix: field 1 has the name, 2 the pattern."""
        texts = {key: as_text(value) for key, value in read_fields(content) if key in {1, 2, 4}}
        name = texts.get(1) or texts.get(2)
        if name:  # W&B escapes the dots of a name, because others stand for nested values
            self._definitions[name.replace("\\.", ".")] = texts.get(4, "").replace("\\.", ".")

    def _new_axes(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """Return an event for each metric of a row whose x axis is not recorded yet."""
        events = []
        if self._definitions:
            definitions = [DefinedMetric(name, axis or None) for name, axis in self._definitions.items()]
            for name in values:
                axis = step_metric_of(name, definitions) or ""
                if axis != self._axes.get(name, ""):
                    self._axes[name] = axis
                    fields = {"metric": name, **({"step_metric": axis} if axis else {})}
                    events.append({"event": "event", "name": METRIC_DEFINED, **fields})
        return events

    def _update_summary(self, content: bytes) -> None:
        for keys, value in read_items(content, 1):
            if not keys[0].startswith("_"):
                nest(self._summary, keys, value)

    def _take_summary(self) -> list[dict[str, Any]]:
        values, self._summary = without_media(self._summary), {}
        return [{"event": "event", "name": SUMMARY, SUMMARY: values}] if values else []


def _with_file(item: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return an item with its file in place of its path."""
    facts = {name: value for name, value in item.items() if name != "path"}
    return {**facts, "file": ImportedFile(root=folder, path=item["path"])}


def _read_run(file: Path) -> dict[str, Any]:
    """Return the first description of the run in a file; empty if there is none."""
    with contextlib.suppress(ValueError):
        for data, _ in read_chunked_records(file, 0, [], header=_HEADER):
            for number, content in read_fields(data):
                if _MESSAGES.get(number) == "run" and isinstance(content, bytes):
                    return parse_run(content)
    return {}
