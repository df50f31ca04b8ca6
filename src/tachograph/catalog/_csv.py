"""The table of runs as CSV, in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tachograph._base.text import csv_text
from tachograph.catalog._row import FACTS, RunRow

__all__ = ["csv_blocks"]

_BLOCK_ROWS = 256


def csv_blocks(rows: Sequence[RunRow], columns: Sequence[str] = ()) -> Iterator[str]:
    """Yield a header and a line per run: its name, then the columns. Without columns, all facts that some run has.

    A missing value is an empty cell, and times are seconds since 1970, as everywhere in files and in the API.
    """
    listed_columns = columns or [name for name in FACTS if any(row.get(name) is not None for row in rows)]
    listed_columns = [column for column in dict.fromkeys(listed_columns) if column != "name"]
    yield ",".join(map(csv_text, ("name", *listed_columns))) + "\n"
    for first in range(0, len(rows), _BLOCK_ROWS):
        yield "".join(
            ",".join([csv_text(row.id), *(_cell(row.get(column)) for column in listed_columns)]) + "\n"
            for row in rows[first : first + _BLOCK_ROWS]
        )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return csv_text(text.encode("utf-8", "replace").decode())  # a config may have texts that are not valid Unicode
