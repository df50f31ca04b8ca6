"""Read points of many series with few statements.

A statement for each run would cost a page of hundreds of runs seconds of waiting. So every series states first which
points it needs, and the points of one metric are read for many runs at once. A point comes with a hash of its run and
stream instead of their names: a text per point would take longer than everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tachograph.server.columns._client import Columns, quote
from tachograph.server.columns._schema import StoreSchema

__all__ = ["SERIES_HASH", "PointQuery", "PointReader"]

_COLUMN_KINDS = {"attempt": "UInt16", "offset": "UInt64", "step": "Int64", "time": "Float64", "value": "Float64"}
SERIES_HASH = "cityHash64(run_id, toString(stream))"
_ROW_KINDS = {"series_hash": "UInt64", **_COLUMN_KINDS}
_MAX_ROWS = 1_000_000
"""A statement asks for about so many rows at most, unless one series has more …"""
_MAX_SQL_CHARACTERS = 100_000
"""… and has at most so many characters of conditions: servers accept 256 KiB."""


class _Group(NamedTuple):
    """Queries with the same group can be answered by one statement."""

    metric: str
    nonfinite: bool
    turn: int
    """Counts the queries of a series. A statement has one of each series: its rows do not say which one they answer."""


class PointQuery:
    """Points of one series that are needed, and once they were read, the points in the order of their records."""

    def __init__(self, group: _Group, series_hash: int, condition: str, num_expected: int) -> None:
        self.group, self.series_hash, self.condition, self.num_expected = group, series_hash, condition, num_expected
        self.points: Columns = {field: np.empty(0) for field in _COLUMN_KINDS}


class PointReader:
    """Reads the points of several series of one rank."""

    def __init__(self, schema: StoreSchema, rank: int) -> None:
        self._schema, self._rank = schema, rank
        self._num_queries: Counter[tuple[int, str, bool]] = Counter()

    def plan(
        self,
        run_id: str,
        stream: str,
        metric: str,
        series_hash: int,
        conditions: Sequence[str],
        num_expected: int,
        *,
        nonfinite: bool,
    ) -> PointQuery:
        """Return a query for the points that fulfil any of the conditions; with none of them, it has no points.

        Args:
            run_id: the run.
            stream: the stream of the series.
            metric: the name of the series.
            series_hash: `SERIES_HASH` of the series.
            conditions: SQL about attempt, step and offset.
            num_expected: how many points that will be.
            nonfinite: only NaN and infinities.
        """
        key = (series_hash, metric, nonfinite)
        group = _Group(metric, nonfinite, self._num_queries[key])
        self._num_queries[key] += 1
        condition = (
            f"(run_id = {quote(run_id)} AND stream = {quote(stream)} AND ({' OR '.join(conditions)}))"
            if conditions
            else ""
        )
        return PointQuery(group, series_hash, condition, num_expected)

    def read(self, queries: Sequence[PointQuery]) -> None:
        """Read the points.

        Raises:
            ColumnStoreError: if ClickHouse fails.
        """
        for batch in _batches([query for query in queries if query.condition]):
            group = batch[0].group
            rows = self._schema.client.columns(
                f"SELECT {', '.join(_ROW_KINDS)} FROM (SELECT {SERIES_HASH} AS series_hash, {', '.join(_COLUMN_KINDS)}"
                f" FROM {self._schema.table('points')} WHERE rank = {self._rank} AND metric = {quote(group.metric)}"
                f" AND ({' OR '.join(query.condition for query in batch)})"
                f"{' AND NOT isFinite(value)' if group.nonfinite else ''}) ORDER BY series_hash, offset",
                _ROW_KINDS,
            )
            hashes = rows["series_hash"]
            for query in batch:
                key = np.uint64(query.series_hash)
                part = slice(int(np.searchsorted(hashes, key, "left")), int(np.searchsorted(hashes, key, "right")))
                offsets = rows["offset"][part]
                is_new = np.append(True, offsets[1:] != offsets[:-1])[: len(offsets)]
                query.points = {field: rows[field][part][is_new] for field in _COLUMN_KINDS}


def _batches(queries: list[PointQuery]) -> Iterator[list[PointQuery]]:
    """Yield queries that one statement can answer."""
    batch: list[PointQuery] = []
    num_rows = num_characters = 0
    for query in sorted(queries, key=lambda query: query.group):
        num_rows, num_characters = num_rows + query.num_expected, num_characters + len(query.condition)
        is_full = num_rows > _MAX_ROWS or num_characters > _MAX_SQL_CHARACTERS
        if batch and (is_full or query.group != batch[0].group):
            yield batch
            batch, num_rows, num_characters = [], query.num_expected, len(query.condition)
        batch.append(query)
    if batch:
        yield batch
