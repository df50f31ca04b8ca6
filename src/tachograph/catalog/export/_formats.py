"""The formats of an exported table: each class turns batches of rows into bytes.

In the *wide* form a row is a record and each metric is a column. In the *long* form a row is a value, with its metric
in the column `metric`. The columns in front are the same in both.

A Parquet file consists of row groups, which are written one after the other. A group is collected in two arrays, the
values and which of them are missing, that are as wide as the table: a wider table has groups of fewer rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import msgspec

from tachograph._base.text import csv_text
from tachograph.catalog.export._rows import RowBatch
from tachograph.exceptions import ConfigError
from tachograph.records import escape_line_separators, mark_non_finite

__all__ = ["FORMATS", "SUFFIXES", "TableWriter", "column_names", "load_format"]

_ROW_COLUMNS = ("run", "attempt", "kind", "step", "time")
_LONG_COLUMNS = (*_ROW_COLUMNS, "metric", "value")
_GROUP_ROWS = 1 << 16
_GROUP_CELLS = 4 << 20

_encode = msgspec.json.Encoder().encode

SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""The format for each suffix of a file name."""


class TableWriter(Protocol):
    """Writes one table."""

    def add(self, run: str, batch: RowBatch) -> int:
        """Add the rows of a batch; return their number."""
        ...

    def close(self) -> None:
        """Write the end of the table."""
        ...


def column_names(metrics: Sequence[str]) -> dict[str, str]:
    """Return the column of each metric in the wide form: its name, with underscores if the table has such a column."""
    used_names = {*_ROW_COLUMNS, *(name for name in metrics if name not in _ROW_COLUMNS)}
    columns: dict[str, str] = {}
    for name in metrics:
        column = name
        while name in _ROW_COLUMNS and column in used_names:
            column += "_"
        used_names.add(column)
        columns[name] = column
    return columns


class _CsvWriter:
    def __init__(self, file: BinaryIO, metrics: Sequence[str], *, is_long: bool) -> None:
        self._file = file
        self._metrics = metrics
        self._is_long = is_long
        self._name_cells = {name: _text_cell(name) for name in metrics}
        names = _LONG_COLUMNS if is_long else (*_ROW_COLUMNS, *column_names(metrics).values())
        file.write(b",".join(map(_text_cell, names)) + b"\n")

    def add(self, run: str, batch: RowBatch) -> int:
        row_start = b"%b,%d,%b" % (_text_cell(run), batch.attempt, _text_cell(batch.kind))
        places = [b"%b,%b,%b" % (row_start, _cell(step), _cell(time)) for step, time in zip(*batch[2:4], strict=True)]
        if self._is_long:
            rows = [
                b"%b,%b,%b\n" % (row_start_cells, self._name_cells[name], _cell(value))
                for row_start_cells, name, value in _long_rows(places, batch)
            ]
        else:
            cells = [
                map(_cell, batch.values[name]) if name in batch.values else itertools.repeat(b"")
                for name in self._metrics
            ]
            rows = [b",".join(row) + b"\n" for row in zip(places, *cells, strict=False)]
        self._file.write(b"".join(rows))
        return len(rows)

    def close(self) -> None:
        pass


class _JsonLinesWriter:
    def __init__(self, file: BinaryIO, metrics: Sequence[str], *, is_long: bool) -> None:
        self._file = file
        self._columns = None if is_long else column_names(metrics)

    def add(self, run: str, batch: RowBatch) -> int:
        places = [
            {"run": run, "attempt": batch.attempt, "kind": batch.kind}
            | ({} if step is None else {"step": step})
            | ({} if time is None else {"time": time})
            for step, time in zip(*batch[2:4], strict=True)
        ]
        if self._columns is None:
            rows = [
                {**row_cells, "metric": name, "value": value} for row_cells, name, value in _long_rows(places, batch)
            ]
        else:
            rows = places
            for name, values in batch.values.items():
                column = self._columns[name]
                for row, value in zip(rows, values, strict=True):
                    if value is not None:
                        row[column] = value
        self._file.write(b"".join([_json_line(row) for row in rows]))
        return len(rows)

    def close(self) -> None:
        pass


class _ParquetWriter:
    def __init__(self, file: BinaryIO, metrics: Sequence[str], *, is_long: bool) -> None:
        import numpy as np
        import pyarrow as pa
        from pyarrow import parquet

        self._is_long = is_long
        numbers = ["value"] if is_long else list(column_names(metrics).values())
        texts = [("run", pa.string()), ("attempt", pa.int64()), ("kind", pa.string())]
        texts += [("step", pa.int64()), ("time", pa.float64())] + ([("metric", pa.string())] if is_long else [])
        self._schema = pa.schema([*texts, *((name, pa.float64()) for name in numbers)])
        self._writer = parquet.ParquetWriter(file, self._schema)
        self._index_of = {name: index for index, name in enumerate(["value"] if is_long else metrics)}
        self._max_rows = max(1, min(_GROUP_ROWS, _GROUP_CELLS // len(numbers)))
        self._values = np.empty((len(numbers), self._max_rows), dtype=np.float64)
        self._is_missing = np.ones(self._values.shape, dtype=bool)
        self._places: list[list[Any]] = [[] for _ in texts]

    def add(self, run: str, batch: RowBatch) -> int:
        places: list[Sequence[Any]]
        values: dict[str, list[float | None]]
        if self._is_long:
            rows = list(_long_rows(list(zip(batch.steps, batch.times, strict=True)), batch))
            places = [[step for (step, _), _, _ in rows], [time for (_, time), _, _ in rows], [row[1] for row in rows]]
            values = {"value": [row[2] for row in rows]}
        else:
            places, values = [batch.steps, batch.times], batch.values
        num_rows = len(places[0])
        columns: list[Sequence[Any]] = [[run] * num_rows, [batch.attempt] * num_rows, [batch.kind] * num_rows, *places]
        start = 0
        while start < num_rows:
            start += self._fill(columns, values, start)
            if len(self._places[0]) == self._max_rows:
                self._write_group()
        return num_rows

    def close(self) -> None:
        self._write_group()
        self._writer.close()

    def _fill(self, columns: list[Sequence[Any]], values: dict[str, list[float | None]], start: int) -> int:
        """Add as many rows, from `start` on, as the group has room for; return their number."""
        import numpy as np

        first = len(self._places[0])
        end = start + min(self._max_rows - first, len(columns[0]) - start)
        for fixed_column, column in zip(self._places, columns, strict=True):
            fixed_column.extend(column[start:end])
        row_range = slice(first, first + end - start)
        for name, numbers in values.items():
            index, part = self._index_of[name], numbers[start:end]
            self._values[index, row_range] = np.array(part, dtype=np.float64)
            self._is_missing[index, row_range] = [number is None for number in part]
        return end - start

    def _write_group(self) -> None:
        import pyarrow as pa

        num_rows = len(self._places[0])
        if not num_rows:
            return
        arrays = [pa.array(column, type=field.type) for column, field in zip(self._places, self._schema, strict=False)]
        arrays += [
            pa.array(values[:num_rows], mask=is_missing[:num_rows])
            for values, is_missing in zip(self._values, self._is_missing, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=num_rows)
        self._is_missing[:] = True
        for column in self._places:
            column.clear()


def _cell(value: float | None) -> bytes:
    """Return a number with the digits that it has in the journal."""
    if value is None:
        return b""
    text = _encode(value)
    return text if text != b"null" else mark_non_finite(value).encode()


def _json_line(row: dict[str, Any]) -> bytes:
    """Return a row as one line. Texts are not escaped as in the journal: the column decides which are numbers."""
    line = _encode(row)
    if b"null" in line:  # how msgspec writes numbers that are not finite
        json_row = {name: mark_non_finite(value) if type(value) is float else value for name, value in row.items()}
        line = _encode(json_row)
    return (line if line.isascii() else escape_line_separators(line)) + b"\n"


def _text_cell(text: str) -> bytes:
    return csv_text(text).encode()


def _long_rows(places: list[Any], batch: RowBatch) -> Iterator[tuple[Any, str, float]]:
    """Yield a place, a metric and a value for each value of a batch, row by row."""
    names = list(batch.values)
    for row_cells, row in zip(places, zip(*batch.values.values(), strict=True), strict=True):
        for name, value in zip(names, row, strict=True):
            if value is not None:
                yield row_cells, name, value


FORMATS: dict[str, Callable[..., TableWriter]] = {
    "parquet": _ParquetWriter,
    "csv": _CsvWriter,
    "jsonl": _JsonLinesWriter,
}
"""The formats by name."""


def load_format(name: str) -> Callable[..., TableWriter]:
    """Return the class of a format.

    Raises:
        ConfigError: if the format needs a package that is not installed.
    """
    if name == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ConfigError("Parquet needs the package pyarrow: pip install 'tachograph[parquet]'") from error
    return FORMATS[name]
