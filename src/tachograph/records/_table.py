"""Encode many step records with the same field names at once.

A table holds its values column by column, because most work on them is cheapest that way: checking that a column has
only finite numbers takes one `sum`, and the diagnostic rules read the columns of a few signals. The rows are encoded
in one call each for the journal and for its CSV mirror. A row of the journal is an object of a class that is created
for its field names: making and encoding it costs less than encoding a dict. A row of the CSV is a tuple, in which
`msgspec.Raw` stands for text that all rows share. Only numbers and bools can be in a table; for anything else
`StepTable.encode` returns None and the caller encodes record by record.

Nearly all rows are finite, so `nan_inf_detected` is normally a constant that costs nothing. A table with a NaN or an
infinity has a column for it instead: a diverged run logs NaN at every step, which must not cost more than a number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tachograph.records._values import is_array

__all__ = ["Encodable", "StepTable"]

Column = Sequence[Any]

_FLAG = "nan_inf_detected"
_MAX_ROW_TYPES = 256
_MAX_ROW_TYPE_NAMES = 256
_MIN_ROW_TYPE_ROWS = 8
"""A class costs about as much as encoding thirty rows, so it is made only for field names that may come again."""

_encode_lines = msgspec.json.Encoder().encode_lines
_row_types: dict[tuple[str, ...], Callable[..., Any]] = {}

_NUMBER_TYPES = frozenset({float, int, bool})
_MARKERS = ("NaN", "Infinity", "-Infinity")
_CSV_MARKERS = tuple(msgspec.Raw(marker.encode()) for marker in _MARKERS)


class StepTable:
    """Step records with the same field names: their values column by column, and their lines in the journal."""

    __slots__ = ("_unusual", "columns", "lines", "names", "num_rows")

    CONSTANTS: tuple[tuple[str, bytes], ...] = (("event", b"step"), (_FLAG, b"false"))
    """Fields that have the same value in every row, and no column, unless they are among the names."""

    def __init__(self, names: tuple[str, ...], columns: list[Column], unusual: Iterable[int] = ()) -> None:
        self.names = names
        self.columns = columns
        self.num_rows = len(columns[0])
        self.lines = b""
        """The rows as lines of the journal."""
        self._unusual = tuple(unusual)  # indices of columns with a value that is not finite

    @classmethod
    def encode(cls, names: tuple[str, ...], columns: Iterable[Column]) -> StepTable | None:
        """Encode columns of the same length; return None if a value is neither a number nor a bool.

        If a value is NaN or infinite, the table gets a column `nan_inf_detected`, unless the names contain it.
        """
        try:
            table = cls._from_columns(names, columns)
            table.lines = table._encode_lines()
        except Exception:  # noqa: BLE001 - a type that cannot be added or encoded
            return None
        return table

    @classmethod
    def _from_columns(cls, names: tuple[str, ...], columns: Iterable[Column]) -> StepTable:
        """Return a table without its lines.

        Raises:
            Exception: if a value is neither a number nor a bool.
        """
        numbers: list[Column] = []
        unusual: list[int] = []
        for column in columns:
            total: Any = sum(column) if type(column[0]) in _NUMBER_TYPES else None
            if type(total) is float:
                if total - total != 0:  # NaN or infinite, or the sum of large numbers is
                    unusual.append(len(numbers))
            elif type(total) is not int:
                column = [_number(value) for value in column]  # noqa: PLW2901
                unusual.append(len(numbers))
            numbers.append(column)
        unusual = [index for index in unusual if not all(_are_finite(numbers[index]))]
        if unusual and _FLAG not in names:
            finite_rows = zip(*(_are_finite(numbers[index]) for index in unusual), strict=True)
            return cls((*names, _FLAG), [*numbers, [False in row for row in finite_rows]], unusual)
        return cls(names, numbers, unusual)

    @classmethod
    def from_records(cls, records: Iterable[dict[str, Any]]) -> list[Encodable]:
        """Combine consecutive step records with the same field names into tables; return other records unchanged.

        The tables have no lines.
        """
        pieces: list[Encodable] = []
        for keys, group in itertools.groupby(records, key=tuple):
            rows = list(group)
            table = None
            is_table = len(keys) > 2 and keys[0] == "event" and keys[-1] == _FLAG
            if is_table and all(row["event"] == "step" for row in rows):
                table = cls._from_rows(rows, keys)
            pieces += rows if table is None else [table]
        return pieces

    @classmethod
    def _from_rows(cls, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> StepTable | None:
        columns = list(zip(*map(dict.values, rows), strict=True))[1:]
        try:
            table = cls._from_columns(keys[1:], columns)
        except Exception:  # noqa: BLE001 - a value that is not a number
            return None
        if not table._unusual and all(flag is False for flag in columns[-1]):
            return cls(keys[1:-1], table.columns[:-1])
        return table

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as records."""
        for row in zip(*self.columns, strict=True):
            record = {"event": "step", **dict(zip(self.names, row, strict=True))}
            record.setdefault(_FLAG, False)
            yield record

    def _encode_lines(self) -> bytes:
        return _encode_lines(list(map(_row_type(self.names, self.num_rows), *self._marked_columns(_MARKERS))))

    def csv_rows(self, cells: Iterable[int | msgspec.Raw]) -> bytes:
        """Return the rows of a CSV.

        Args:
            cells: the content of a row: indices of columns, and texts that are the same in all rows. They are joined
                with commas.
        """
        columns = self._marked_columns(_CSV_MARKERS)
        parts = (columns[cell] if isinstance(cell, int) else itertools.repeat(cell, self.num_rows) for cell in cells)
        lines = _encode_lines(list(zip(*parts, strict=True)))
        return lines.replace(b"[", b"").replace(b"]", b"")

    def _marked_columns(self, markers: Sequence[Any]) -> list[Column]:
        """Return the columns, with markers instead of NaN and infinities."""
        if not self._unusual:
            return self.columns
        nan, high, low = markers
        columns = list(self.columns)
        for index in self._unusual:
            columns[index] = [
                value if value - value == 0 else high if value > 0 else low if value < 0 else nan
                for value in columns[index]
            ]
        return columns


def _are_finite(column: Column) -> list[bool]:
    return [value - value == 0 for value in column]


def _number(value: Any) -> float:
    """Return a number or bool, or the value of a numpy scalar.

    Raises:
        TypeError: for anything else, also for an array: its owner could change it before it is encoded.
    """
    if hasattr(type(value), "setflags") and not is_array(value):
        value = value.item()
    if isinstance(value, (int, float)):
        return value
    raise TypeError(type(value).__name__)


def _row_type(names: tuple[str, ...], num_rows: int) -> Callable[..., Any]:
    """Return what makes a row that is encoded as a record, from the values of the names."""
    row_type = _row_types.get(names)
    if row_type is not None:
        return row_type
    if len(names) > _MAX_ROW_TYPE_NAMES or num_rows < _MIN_ROW_TYPE_ROWS:
        return _record_maker(names)
    attributes = [f"field_{index}" for index in range(len(names))]
    fields: list[Any] = [(attribute, Any) for attribute in attributes]
    renamed_fields = dict(zip(attributes, names, strict=True))
    if _FLAG not in names:
        fields.append((_FLAG, bool, False))
    try:
        row_type = msgspec.defstruct("Row", fields, rename=renamed_fields, tag_field="event", tag="step", gc=False)
    except ValueError:  # a name with a quote, a backslash or a control character
        row_type = _record_maker(names)
    if len(_row_types) >= _MAX_ROW_TYPES:
        _row_types.clear()
    _row_types[names] = row_type
    return row_type


def _record_maker(names: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    def make_record(*values: Any) -> dict[str, Any]:
        record = {"event": "step", **dict(zip(names, values, strict=True))}
        record.setdefault(_FLAG, False)
        return record

    return make_record


Encodable = StepTable | dict[str, Any]
"""One or more records, ready to be encoded."""
