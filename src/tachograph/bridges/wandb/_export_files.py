"""The files of a W&B run as they lie in its folder `files`, or as they were downloaded: history, summary and config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.bridges.wandb._values import flatten, parse_json, without_media
from tachograph.importers import MAX_DAMAGE, Damage, RowSource, RunSource
from tachograph.importers.files import open_text, read_lines
from tachograph.records import SUMMARY

__all__ = ["find_export", "open_export"]

_HISTORY_FILE, _SUMMARY_FILE, _CONFIG_FILE = "wandb-history.jsonl", "wandb-summary.json", "config.yaml"
_MAX_SMALL_BYTES = 8 << 20


def find_export(path: Path) -> Path | None:
    """Return the folder with the files of an exported run."""
    folders = (path, path / "files")
    names = (_HISTORY_FILE, _SUMMARY_FILE)
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), None)


def open_export(folder: Path) -> RunSource:
    """Return the run of a folder with a history, a summary and a config, as far as they are there."""
    damage: list[Damage] = []
    left_out: Counter[str] = Counter()

    def rows() -> Iterator[dict[str, Any]]:
        history = folder / _HISTORY_FILE
        if not history.is_file():
            return
        with open_text(history) as file:
            for number, line in enumerate(read_lines(file, history), 1):
                row = parse_json(line)
                if not isinstance(row, dict):
                    if len(damage) < MAX_DAMAGE:
                        damage.append(Damage(str(history), f"line {number}", "not a JSON object; skipped"))
                    continue
                at = {name: row[name] for name in ("_step", "_timestamp") if name in row}
                yield {**at, **flatten(row, left_out)[0]}

    def summary() -> list[dict[str, Any]]:
        values = _read_small_json(folder / _SUMMARY_FILE, damage)
        values = without_media({name: value for name, value in values.items() if not name.startswith("_")})
        return [{"event": "event", "name": SUMMARY, SUMMARY: values}] if values else []

    name = folder.resolve().parent.name if folder.name == "files" else folder.resolve().name
    start = {"config": config} if (config := _read_config(folder / _CONFIG_FILE, damage)) else {}
    return RowSource(folder, str(folder.resolve()), name, rows, damage, left_out=left_out, start=start, last=summary)


def _read_small_json(path: Path, damage: list[Damage]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with open_text(path) as file:
        values = parse_json(file.read(_MAX_SMALL_BYTES))
    if isinstance(values, dict):
        return values
    damage.append(Damage(str(path), "line 1", "not a JSON object; skipped"))
    return {}


def _read_config(path: Path, damage: list[Damage]) -> dict[str, Any]:
    """Return the config that W&B stores as YAML, each value in a field of its own."""
    if not path.is_file():
        return {}
    import yaml

    try:
        with open_text(path) as file:
            values = yaml.safe_load(file.read(_MAX_SMALL_BYTES))
    except (yaml.YAMLError, RecursionError) as error:
        damage.append(Damage(str(path), "line 1", f"not valid YAML; skipped: {error}"))
        return {}
    if not isinstance(values, dict):
        return {}
    return {
        str(name): item["value"]
        for name, item in values.items()
        if name != "_wandb" and isinstance(item, dict) and "value" in item
    }
