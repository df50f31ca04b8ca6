"""Helpers of the tests of media."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

import tachograph
from tests.conftest import lines_of


def record(logs: Path, log: Callable[[Any], None], **settings: Any) -> list[dict[str, Any]]:
    """Record a run, and return its records of media, histograms and errors."""
    options = {"console": False, "csv": False, "system_interval_s": 0, **settings}
    with tachograph.init("media", log_dir=logs, **options) as run:
        log(run)
    return media_records(Path(run.path))


def media_records(folder: Path) -> list[dict[str, Any]]:
    kinds = {"media", "histograms", "telemetry_error"}
    return [line for line in lines_of(folder) if line["event"] in kinds]


def path_of(folder: Path, item: dict[str, Any]) -> Path:
    return folder / "media" / item["sha256"][:2] / f"{item['sha256']}.{item['ext']}"


def content_of(folder: Path, item: dict[str, Any]) -> bytes:
    """Return the content of an item's file, after a check of its name and size."""
    data = path_of(folder, item).read_bytes()
    assert hashlib.sha256(data).hexdigest() == item["sha256"]
    assert len(data) == item["bytes"]
    return data


def picture_of(folder: Path, item: dict[str, Any]) -> Image.Image:
    picture = Image.open(io.BytesIO(content_of(folder, item)))
    assert picture.size == (item["width"], item["height"])
    return picture


def stored_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "media").rglob("*") if path.is_file())
