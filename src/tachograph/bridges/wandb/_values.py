"""W&B's messages and values: the content of a `.wandb` file. Numbers identify the fields of a message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tachograph.importers import field_name
from tachograph.importers.protobuf import as_double, as_signed, as_text, read_fields

__all__ = [
    "flatten",
    "nest",
    "parse_json",
    "parse_run",
    "parse_stats",
    "read_items",
    "read_step",
    "to_nested",
    "without_media",
]

_MEDIA_KINDS = {
    "image-file": "image",
    "images/separated": "image",
    "video-file": "video",
    "videos": "video",
    "audio-file": "audio",
    "audio": "audio",
    "object3D-file": "points",
    "object3D": "points",
    "html-file": "html",
    "html": "html",
}
"""The kinds of media, by the types of W&B; the ones without ``-file`` are lists."""
_RUN_TEXTS = {1: "id", 2: "entity", 3: "project", 6: "group", 7: "job_type", 8: "name", 9: "notes", 13: "host"}


def parse_run(content: bytes) -> dict[str, Any]:
    run: dict[str, Any] = {}
    tags: list[str] = []
    for number, value in read_fields(content):
        if number in _RUN_TEXTS:
            run[_RUN_TEXTS[number]] = as_text(value)
        elif number == 10:
            tags.append(as_text(value))
        elif number == 4 and isinstance(value, bytes):
            config = to_nested(read_items(value, 1))
            config.pop("_wandb", None)
            run["config"] = config
        elif number == 17:
            run["time"] = _parse_time(value)
    return {**run, "tags": tags}


def parse_stats(content: bytes) -> list[dict[str, Any]]:
    record: dict[str, Any] = {"event": "system"}
    for number, value in read_fields(content):
        if number == 2:
            record["time"] = _parse_time(value)
    numbers = {f"system.{'.'.join(keys)}": value for keys, value in read_items(content, 3)}
    numbers = {name: value for name, value in numbers.items() if isinstance(value, (int, float))}
    return [{**record, **numbers}] if numbers else []


def read_step(content: int | bytes) -> int:
    return next((as_signed(value) for key, value in read_fields(content) if key == 1), 0)  # type: ignore[arg-type]


def _parse_time(content: int | bytes) -> float:
    parts = dict(read_fields(content if isinstance(content, bytes) else b""))
    return as_signed(parts.get(1, 0)) + as_signed(parts.get(2, 0)) / 1e9


def read_items(content: bytes, number: int) -> Iterator[tuple[list[str], Any]]:
    """Yield the path and the value of each item in a field of a message."""
    for field, item in read_fields(content):
        if field != number or not isinstance(item, bytes):
            continue
        keys: list[str] = []
        value: Any = None
        for inner, part in read_fields(item):
            match inner:
                case 1 | 2:
                    keys.append(as_text(part))
                case 4:
                    value = bool(part)
                case 5:
                    value = as_signed(part) >> 1 ^ -(as_signed(part) & 1)
                case 6:
                    value = as_double(part)
                case 7:
                    value = as_text(part)
                case 8 | 16:
                    value = parse_json(as_text(part))
        if keys:
            yield keys, value


def parse_json(text: str) -> Any:
    try:
        return json.loads(text)  # accepts NaN and Infinity, which W&B writes; msgspec does not
    except (ValueError, RecursionError):
        return None


def nest(target: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a value in nested dicts."""
    for key in keys[:-1]:
        inner = target.get(key)
        if not isinstance(inner, dict):
            inner = target[key] = {}
        target = inner
    target[keys[-1]] = value


def to_nested(items: Iterator[tuple[list[str], Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for keys, value in items:
        nest(result, keys, value)
    return result


class FlatRow(NamedTuple):
    """The content of a row: values by names with dots, as W&B shows them, histograms, and media."""

    values: dict[str, Any]
    histograms: list[dict[str, Any]]
    media: list[dict[str, Any]]
    """The name, the kind and the items of each; a file is named by its path in the folder of files."""


def flatten(row: Mapping[str, Any], left_out: Counter[str]) -> FlatRow:
    """Return the content of a row; count media of a kind that is not imported."""
    values: dict[str, Any] = {}
    histograms: list[dict[str, Any]] = []
    media: list[dict[str, Any]] = []

    def add(name: str, value: Any) -> None:
        if not isinstance(value, dict):
            if value is not None:
                values[field_name(name)] = value
        elif "_type" not in value:
            for key, item in value.items():
                add(f"{name}.{key}", item)
        elif value["_type"] == "histogram" and (edges := _edges(value)):
            histograms.append({"tag": name, "counts": value.get("values"), "edges": edges})
        elif items := _media_items(value):
            media.append({"name": field_name(name), "kind": _MEDIA_KINDS[value["_type"]], "items": items})
        else:
            left_out[str(value["_type"])] += 1

    for name, value in row.items():
        if name not in {"_step", "_timestamp", "_runtime", "_wandb"}:
            add(name, value)
    return FlatRow(values, histograms, media)


def _media_items(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the paths and captions of media; empty if there are none, or of a kind that is not imported."""
    if value["_type"] not in _MEDIA_KINDS:
        return []
    if isinstance(value.get("objects"), list):  # of `Object3D`, whose file names are relative to another folder
        objects = [each for each in value["objects"] if isinstance(each, dict) and each.get("_type") == "object3D-file"]
        return [item for each in objects for item in _media_items(each)]
    paths = value["filenames"] if isinstance(value.get("filenames"), list) else [value.get("path")]
    captions = value.get("captions") if "filenames" in value else [value.get("caption")]
    if not isinstance(captions, list):
        captions = []
    items = []
    for number, path in enumerate(paths):
        if not isinstance(path, str):
            return []
        caption = captions[number] if number < len(captions) else None
        items.append({"path": path, **({"caption": caption} if isinstance(caption, str) and caption else {})})
    return items


def _edges(histogram: Mapping[str, Any]) -> list[float]:
    """Return the edges of a histogram, which W&B stores as a list or, if they are evenly spaced, as three numbers."""
    if isinstance(histogram.get("bins"), list):
        return list(histogram["bins"])
    bins = histogram.get("packedBins")
    if not isinstance(bins, dict) or not all(isinstance(bins.get(key), (int, float)) for key in ("min", "size")):
        return []
    count = bins.get("count")
    return [bins["min"] + bins["size"] * index for index in range(int(count) + 1 if isinstance(count, int) else 0)]


def without_media(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in values.items():
        if isinstance(value, dict) and "_type" in value:
            continue
        plain[name] = without_media(value) if isinstance(value, dict) else value
    return plain
