"""Tables: rows inside the record if they are few, otherwise a file of gzipped JSON lines."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

from tachograph.media._snapshots import MAX_ROWS, ArrayCopy, SnapshotError
from tachograph.media._store import StoredFile
from tachograph.media._values import Table
from tachograph.records import OMIT, encode, mask_mapping, to_plain

__all__ = ["table_fields"]

MAX_INLINE_ROWS = 1_000
_MAX_COLUMNS = 500
_GZIP_LEVEL = 1


def table_fields(
    table: Table, cell_of: Callable[[Any], Any], add_file: Callable[[bytes, str], StoredFile], max_inline_bytes: int
) -> dict[str, Any]:
    """Return the fields of the item of a table.

    Args:
        table: the snapshot of the table.
        cell_of: returns a cell as JSON, or something that can be converted to it.
        add_file: stores the rows if they are too many.
        max_inline_bytes: the size up to which rows are part of the record.

    Raises:
        SnapshotError: if it is no table.
    """
    rows = _rows_of(table)
    columns = list(dict.fromkeys(table.columns or [name for row in rows for name in row]))
    if len(columns) > _MAX_COLUMNS:
        raise SnapshotError(f"a table of {len(columns)} columns; at most {_MAX_COLUMNS} are stored")
    num_rows = len(rows)
    problem = f"rows after the first {MAX_ROWS} were not stored" if num_rows > MAX_ROWS else ""
    plain_rows = [{name: _plain(cell_of(cell), name) for name, cell in row.items()} for row in rows[:MAX_ROWS]]
    lines = [encode(mask_mapping(row)) for row in plain_rows]
    fields: dict[str, Any] = {"columns": columns, "num_rows": num_rows}
    if len(lines) <= MAX_INLINE_ROWS and sum(map(len, lines)) <= max_inline_bytes:
        fields["rows"] = plain_rows
    else:
        data = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
        fields |= add_file(gzip.compress(data, _GZIP_LEVEL, mtime=0), "jsonl.gz").fields
    return {**fields, "problem": problem} if problem else fields


def _rows_of(table: Table) -> list[dict[str, Any]]:
    columns = table.columns or []
    if isinstance(table.row_lists, ArrayCopy):
        array = table.row_lists.read()
        if array.shape[1] != len(columns):
            raise SnapshotError(f"an array of shape {array.shape} does not have {len(columns)} columns, as were named")
        return [dict(zip(columns, cells, strict=True)) for cells in array.tolist()]
    if table.dataframe is None:
        return list(table.rows or ())
    frame = table.dataframe
    try:
        frame = frame.head(MAX_ROWS + 1) if hasattr(frame, "head") else frame
        rows = frame.to_dict(orient="records")
    except TypeError:  # polars
        rows = frame.to_dicts() if hasattr(frame, "to_dicts") else []
    if table.columns is None:
        return [{str(name): cell for name, cell in row.items()} for row in rows]
    if any(len(row) != len(columns) for row in rows):
        raise SnapshotError(f"a dataframe does not have {len(columns)} columns, as were named")
    return [dict(zip(columns, row.values(), strict=True)) for row in rows]


def _plain(cell: Any, name: str) -> Any:
    """Return a cell as JSON types; numbers of numpy, dates and the like become what JSON has."""
    if type(cell) in (str, int, float, bool, type(None)):
        return cell
    plain = to_plain(cell, name, [])
    return str(cell)[:1000] if plain is OMIT else plain
