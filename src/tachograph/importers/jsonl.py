"""JSON lines: one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.importers._source import MAX_DAMAGE, Damage
from tachograph.importers.files import file_type, open_text, read_lines

__all__ = ["JsonLinesImporter"]


class JsonLinesImporter:
    """Reads `.jsonl` and `.ndjson` files, also `.gz`; a journal of ours under another name is one of them."""

    def __init__(self) -> None:
        self.damage: list[Damage] = []

    def detects(self, path: Path) -> bool:
        """Return whether the file has the extension of JSON lines."""
        return file_type(path) in {".jsonl", ".ndjson"}

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield a row per line; lines that are not objects, such as a torn last line, are skipped."""
        with open_text(path) as file:
            for number, line in enumerate(read_lines(file, path), 1):
                try:
                    row = json.loads(line)  # accepts NaN and Infinity, which many tools write; msgspec does not
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    yield row
                elif line.strip() and len(self.damage) < MAX_DAMAGE:
                    reason = "not a JSON object; skipped" if line.endswith("\n") else "the line is not complete"
                    self.damage.append(Damage(str(path), f"line {number}", reason))
