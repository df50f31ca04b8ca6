"""Rows in the format RowBinary.

Numbers come as numpy arrays. Texts that are the same in all rows of a series become a field of constant
width of one numpy array, so that a million rows need no loop. Only rows with texts of their own, such as events, are
joined one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tachograph.server.columns._schema import TableColumns

__all__ = ["encode_rows"]

_DTYPES = {
    "Date": "<u2",
    "Float64": "<f8",
    "Int64": "<i8",
    "UInt64": "<u8",
    "UInt32": "<u4",
    "UInt16": "<u2",
    "UInt8": "<u1",
}


def encode_rows(table: TableColumns, num_rows: int, values: Mapping[str, Any]) -> bytes:
    """Return rows of a table.

    Args:
        table: the table.
        num_rows: how many rows there are.
        values: for each column an array or a list with one value per row, or one value for all rows.
    """
    fields: list[tuple[str, str]] = []
    columns: dict[str, Any] = {}
    varying: dict[str, list[bytes]] = {}
    for name, kind in table.columns.items():
        value = values[name]
        if kind in _DTYPES:
            fields.append((name, _DTYPES[kind]))
            columns[name] = value
        elif isinstance(value, (str, bytes)):
            text = _text(value)
            fields.append((name, f"V{len(text)}"))
            columns[name] = np.void(text)
        else:
            varying[name] = [_text(each) for each in value]
    rows = np.empty(num_rows, np.dtype(fields))
    for name, value in columns.items():
        rows[name] = value
    return _join(table, rows, varying) if varying else rows.tobytes()


def _join(table: TableColumns, rows: npt.NDArray[Any], varying: Mapping[str, Sequence[bytes]]) -> bytes:
    """Put texts of different lengths between the columns of constant width."""
    parts: list[Sequence[bytes]] = []
    for is_varying, names in itertools.groupby(table.columns, key=lambda name: name in varying):
        if is_varying:
            parts += [varying[name] for name in names]
        else:
            block = np.ascontiguousarray(_repack(rows[list(names)])).tobytes()
            size = len(block) // max(1, len(rows))
            parts.append([block[at : at + size] for at in range(0, len(block), size)] if size else [])
    return b"".join(itertools.chain.from_iterable(zip(*parts, strict=True)))


def _repack(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return selected fields without the bytes of the others between them."""
    result = np.empty(len(rows), np.dtype([(name, rows.dtype[name]) for name in rows.dtype.names or ()]))
    for name in result.dtype.names or ():
        result[name] = rows[name]
    return result


def _text(value: str | bytes) -> bytes:
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    size, head = len(data), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + data
