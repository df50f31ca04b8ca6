"""The lines of the table that were sent last, encoded, so that only changed runs get new ones.

A dashboard asks for its page of the table again whenever some run changes, and each line has a value per column. The
row of a run is the same object as long as nothing about the run changes; so is its line.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tachograph.catalog import RunRow, reader_of
from tachograph.server._models import encode_number
from tachograph.server._table_models import TableLine

__all__ = ["LineCache", "encode_cell"]

_MAX_COLUMN_SETS = 8
"""Pages with different columns, such as the pages of several people."""
_MAX_BYTES = 16 << 20
"""When to forget the lines with the same columns."""


class _CachedLine(NamedTuple):
    row: RunRow
    place: int
    encoded: msgspec.Raw


class _Lines:
    """The lines with the same columns, by run."""

    def __init__(self) -> None:
        self.by_run: dict[str, _CachedLine] = {}
        self.num_bytes = 0
        """With replaced lines."""


class LineCache:
    """Encoded lines of the table by columns and run. Thread-safe."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, ...], _Lines] = OrderedDict()
        self._lock = threading.Lock()

    def encode(self, rows: Sequence[RunRow], columns: Sequence[str], places: Mapping[str, int]) -> list[msgspec.Raw]:
        """Return the lines of some rows.

        Args:
            rows: the rows.
            columns: the fields in each line.
            places: by run, its place in the order of all runs.
        """
        readers = [reader_of(column) for column in columns]
        encoder = msgspec.json.Encoder()
        encoded_lines = []
        with self._lock:
            lines = self._lines_of(tuple(columns))
            for row in rows:
                place = places.get(row.id, len(places))
                line = lines.by_run.get(row.id)
                if line is None or line.row is not row or line.place != place:
                    values = [encode_cell(read_cell(row)) for read_cell in readers]
                    encoded = encoder.encode(TableLine(row.id, row.summary.overview.state, values, place))
                    lines.num_bytes += len(encoded)
                    line = lines.by_run[row.id] = _CachedLine(row, place, msgspec.Raw(encoded))
                encoded_lines.append(line.encoded)
            if lines.num_bytes > _MAX_BYTES:
                lines.by_run, lines.num_bytes = {}, 0
        return encoded_lines

    def _lines_of(self, columns: tuple[str, ...]) -> _Lines:
        lines = self._lines.setdefault(columns, _Lines())
        self._lines.move_to_end(columns)
        while len(self._lines) > _MAX_COLUMN_SETS:
            self._lines.popitem(last=False)
        return lines


def encode_cell(value: Any) -> Any:
    """Return the value of a field in the form the API sends it."""
    return encode_number(value) if isinstance(value, float) else value
