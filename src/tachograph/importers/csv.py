"""CSV and TSV files with a header line; the separator is detected."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.importers._source import MAX_DAMAGE, Damage
from tachograph.importers.files import file_type, open_text, read_lines

__all__ = ["CsvImporter"]


class CsvImporter:
    """Reads `.csv` and `.tsv` files, also `.gz`."""

    def __init__(self) -> None:
        self.damage: list[Damage] = []

    def detects(self, path: Path) -> bool:
        """Return whether the file has the extension of a table."""
        return file_type(path) in {".csv", ".tsv"}

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield a row per line."""
        with open_text(path) as file:
            lines = read_lines(file, path)
            header = next(lines, "")
            separator = max(",;\t", key=header.count)
            rows = csv.reader(itertools.chain([header], lines), delimiter=separator)
            names = [name.strip() for name in next(rows, [])]
            for row in rows:
                if row and len(row) != len(names) and len(self.damage) < MAX_DAMAGE:
                    reason = f"{len(row)} columns where {len(names)} are expected"
                    self.damage.append(Damage(str(path), f"line {rows.line_num}", reason))
                yield dict(zip(names, row, strict=False))
