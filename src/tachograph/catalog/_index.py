"""The index of a log folder: the summaries of its ended runs in one file, with configs and metrics by column.

10,000 runs with 500 config keys have five million values, of which a table shows a few. So runs with the same keys
share a *value table*: of each key it has the values of all these runs as one encoded list, which is decoded when one of
them is asked for first. Loading the index decodes only overviews and annotations. The config of a loaded run is an
`IndexedValues`, which looks like a dict. Runs whose keys few others have are stored with dicts of their own.

The file starts with a checksum, because most of it is decoded later, when damage could no longer be ignored.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tachograph._base.files import make_folder, read_small, replace_file
from tachograph._base.typed import decode_msgpack
from tachograph.catalog._annotations import Annotations
from tachograph.catalog._summary import CatalogSummary
from tachograph.store import MetricAggregates

__all__ = ["IndexEntry", "IndexedValues", "columns_of", "index_path", "keys_of", "load_index", "save_index"]

_VERSION = 5
"""Raised with each change of the format or of the values in it: an index of another version is made again."""
_MAX_BYTES = 1 << 30
_CHECKSUM_BYTES = 4
_MIN_SHARED = 8
"""Fewer runs with the same keys than this are not worth a table."""
_NO_METRIC = MetricAggregates(0, 0, math.nan, math.nan)

V = TypeVar("V")


class IndexEntry(msgspec.Struct):
    """A run of the index."""

    name: str
    summary: CatalogSummary
    annotated_ns: int
    annotations: Annotations


class _StoredEntry(msgspec.Struct, array_like=True):
    name: str
    summary: CatalogSummary
    annotated_ns: int
    annotations: Annotations
    config_at: tuple[int, int] | None = None
    """The table and the row of the config; None if the summary has it."""
    metrics_at: tuple[int, int] | None = None


class _StoredTable(msgspec.Struct, array_like=True):
    num_rows: int
    columns: dict[str, msgspec.Raw]


class _StoredIndex(msgspec.Struct, array_like=True):
    version: int
    configs: list[_StoredTable]
    metrics: list[_StoredTable]
    entries: list[_StoredEntry]


class _ValueTable(Generic[V]):
    """The values of runs with the same keys, decoded by column."""

    __slots__ = ("_columns", "_decode", "_encoded_columns", "keys", "num_rows")

    def __init__(self, table: _StoredTable, decode: Callable[[bytes, int], list[V]]) -> None:
        self.num_rows = table.num_rows
        self.keys = tuple(table.columns)
        self._encoded_columns = table.columns
        self._decode = decode
        self._columns: dict[str, list[V]] = {}

    def column(self, key: str) -> list[V] | None:
        values = self._columns.get(key)
        if values is None and key in self._encoded_columns:
            values = self._columns[key] = self._decode(bytes(self._encoded_columns[key]), self.num_rows)
        return values


class IndexedValues(Mapping[str, V]):
    """The row of a run in a value table: its values by their keys."""

    __slots__ = ("position", "table")

    def __init__(self, table: _ValueTable[V], position: int) -> None:
        self.table = table
        self.position = position

    def __getitem__(self, key: str) -> V:
        column = self.table.column(key)
        if column is None:
            raise KeyError(key)
        return column[self.position]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or a default."""
        column = self.table.column(key)
        return default if column is None else column[self.position]

    def __contains__(self, key: object) -> bool:
        return key in self.table._encoded_columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.keys)

    def __len__(self) -> int:
        return len(self.table.keys)


# Many rows at once ---------------------------------------------------------------------------------------------------


def columns_of(rows: Iterable[Mapping[str, V]]) -> Iterator[tuple[str, Sequence[V]]]:
    """Yield each key of some rows with its values; a key comes once for each set of keys that rows have."""
    for keys, members in _by_keys(rows):
        positions = [row.position for row in members if isinstance(row, IndexedValues)]
        tables = {row.table for row in members if isinstance(row, IndexedValues)}
        if len(tables) == 1 and len(positions) == len(members):
            table = tables.pop()
            is_whole = positions == list(range(table.num_rows))
            for key in keys:
                column = table.column(key) or []
                yield key, column if is_whole else [column[position] for position in positions]
        else:
            yield from zip(keys, zip(*(row.values() for row in members), strict=True), strict=True)


def keys_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys of all rows, in order of appearance."""
    keys: dict[str, None] = {}
    tables: set[_ValueTable[Any]] = set()
    for row in rows:
        if isinstance(row, IndexedValues):
            if row.table in tables:
                continue
            tables.add(row.table)
        keys.update(zip(row, repeat(None)))
    return list(keys)


def _by_keys(rows: Iterable[Mapping[str, V]]) -> Iterable[tuple[tuple[str, ...], list[Mapping[str, V]]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, V]]] = {}
    for row in rows:
        groups.setdefault(row.table.keys if isinstance(row, IndexedValues) else tuple(row), []).append(row)
    return groups.items()


# On disk -------------------------------------------------------------------------------------------------------------


def index_path(folder: Path) -> Path:
    """Return the file with the index, given the folder for what belongs to all runs."""
    return folder / "index" / f"v{_VERSION}.msgpack"


def load_index(path: Path, *, below: Path) -> list[IndexEntry]:
    """Return the runs of an index; none if it does not exist, is damaged or of another version."""
    try:
        data = read_small(path, _MAX_BYTES, below=below)
        content = memoryview(data)[_CHECKSUM_BYTES:]
        if _checksum(content) != data[:_CHECKSUM_BYTES]:
            return []
        index = decode_msgpack(content, _StoredIndex)
        if index.version != _VERSION:
            return []
        configs = [_ValueTable(table, _decode_values) for table in index.configs]
        metrics = [_ValueTable(table, _decode_metrics) for table in index.metrics]
        return [_load_entry(entry, configs, metrics) for entry in index.entries]
    except (OSError, msgspec.MsgspecError, RecursionError, IndexError):
        return []


def _load_entry(
    entry: _StoredEntry, configs: list[_ValueTable[Any]], metrics: list[_ValueTable[MetricAggregates]]
) -> IndexEntry:
    summary = entry.summary
    if entry.config_at is not None:
        summary.config = _row_at(configs, entry.config_at)
    if entry.metrics_at is not None:
        summary.metrics = _row_at(metrics, entry.metrics_at)
    return IndexEntry(entry.name, summary, entry.annotated_ns, entry.annotations)


def _row_at(tables: list[_ValueTable[V]], at: tuple[int, int]) -> IndexedValues[V]:
    table = tables[at[0]]
    if not 0 <= at[1] < table.num_rows:
        raise IndexError(at)
    return IndexedValues(table, at[1])


def _decode_values(data: bytes, num_rows: int) -> list[Any]:
    return _decode_column(data, list[Any], num_rows, None)


def _decode_metrics(data: bytes, num_rows: int) -> list[MetricAggregates]:
    return _decode_column(data, list[MetricAggregates], num_rows, _NO_METRIC)


def _decode_column(data: bytes, kind: type[list[V]], num_rows: int, missing: V) -> list[V]:
    # The checksum is right, so only a file that was not written by this code gets here with anything else.
    try:
        values = decode_msgpack(data, kind)
    except (msgspec.MsgspecError, RecursionError):
        values = []
    return values if len(values) == num_rows else [missing] * num_rows


def save_index(path: Path, entries: Sequence[IndexEntry], *, below: Path) -> None:
    """Write the index of some runs.

    Raises:
        OSError: if it cannot be written.
    """
    configs, config_at = _to_tables([entry.summary.config for entry in entries])
    metrics, metrics_at = _to_tables([entry.summary.metrics for entry in entries])
    stored_entries = [
        _StoredEntry(
            entry.name,
            msgspec.structs.replace(
                entry.summary,
                config={} if config_at[number] else dict(entry.summary.config),
                metrics={} if metrics_at[number] else dict(entry.summary.metrics),
            ),
            entry.annotated_ns,
            entry.annotations,
            config_at[number],
            metrics_at[number],
        )
        for number, entry in enumerate(entries)
    ]
    content = msgspec.msgpack.encode(_StoredIndex(_VERSION, configs, metrics, stored_entries))
    make_folder(path.parent, below=below)
    replace_file(path, _checksum(content) + content, below=below)


def _to_tables(rows: Sequence[Mapping[str, Any]]) -> tuple[list[_StoredTable], list[tuple[int, int] | None]]:
    """Return the tables of rows, and the place of each row that is in one."""
    tables: list[_StoredTable] = []
    places: dict[int, tuple[int, int]] = {}
    for keys, members in _by_keys(rows):
        if len(members) < _MIN_SHARED or not keys:
            continue
        for position, row in enumerate(members):
            places[id(row)] = len(tables), position
        columns = {key: msgspec.Raw(msgspec.msgpack.encode(column)) for key, column in columns_of(members)}
        tables.append(_StoredTable(len(members), columns))
    return tables, [places.get(id(row)) for row in rows]


def _checksum(content: bytes | memoryview) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little")
