"""Charts and aggregates of runs, answered by ClickHouse with the answers of the file store.

A chart is built in two steps. The tiles of the series say how many points a view has, and which tiles it touches. A
view with few points reads those points, by their key, and is drawn by the code of the file store, so the result is the
same. A view with many points is drawn from the extremes of the tiles, which are recorded points, and reads points only
in the tiles at its edges.

Repeated rows that were not merged yet are removed here: `FINAL` would cost many times more than it saves. Points are
sorted by their offset, and of tiles the one with most points counts. NaN and infinities have a query of their own, and
only where a tile has some.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tachograph.exceptions import ColumnStoreError
from tachograph.server.columns._client import Columns, quote
from tachograph.server.columns._rows import SORTED_BY_STEP, SORTED_BY_TIME
from tachograph.server.columns._schema import SCHEMA_TABLES, StoreSchema
from tachograph.store import (
    CHUNK,
    MAX_RAW_POINTS,
    MIN_COARSE_POINTS,
    AttemptRange,
    Axis,
    Integers,
    Line,
    Mark,
    MetricAggregates,
    SeriesPart,
    SeriesStats,
    StreamRows,
    View,
    break_at_marks,
    bucket_means,
    build_lines_with_extremes,
    build_marks,
    choose_extremes,
    with_window_extremes,
)

__all__ = ["ClickHouseRun", "list_aggregates"]

_WINDOW_STEPS = "window_steps"
_TILE_KINDS = {
    "metric": "String",
    "stream": "String",
    **{
        name: kind
        for name, kind in SCHEMA_TABLES["tiles"].columns.items()
        if name not in {"run_id", "metric", "stream", "rank"}
    },
}
_POINT_KINDS = {"attempt": "UInt16", "offset": "UInt64", "step": "Int64", "time": "Float64", "value": "Float64"}
_SUMMARY_KINDS = {
    "run_id": "String",
    "metric": "String",
    "n": "UInt64",
    "nonfinite": "UInt64",
    "time_first": "Float64",
    "time_last": "Float64",
    "first": "Float64",
    "last": "Float64",
    "low": "Float64",
    "high": "Float64",
    "low_step": "Int64",
    "high_step": "Int64",
    "low_time": "Float64",
    "high_time": "Float64",
    "total": "Float64",
}


class _Tiles(NamedTuple):
    """The tiles of one series in one attempt, in order."""

    stream: str
    attempt: int
    columns: Columns

    @property
    def num_finite(self) -> Any:
        return self.columns["n"].astype(np.int64) - self.columns["nonfinite"].astype(np.int64)

    def is_sorted(self, axis: str) -> bool:
        bit = SORTED_BY_STEP if axis == "step" else SORTED_BY_TIME
        return bool((self.columns["sorted"] & bit).all())


class _TileRange(NamedTuple):
    """The tiles that a view needs."""

    begin: int
    end: int
    """The tiles from `begin` to `end` have points in the view …"""
    first: int
    last: int
    """… and the tiles from `first` to `last` also have the points next to it."""


class ClickHouseRun:
    """The metrics of one journal in ClickHouse; a `SeriesSource`.

    Axes that are computed from other metrics, and points that `tacho store retain` removed, are only in files: then
    `series` raises `ColumnStoreError`.
    """

    def __init__(self, schema: StoreSchema, run_id: str, rank: int = 0) -> None:
        self._schema, self._client = schema, schema.client
        self.run_id = run_id
        self._key = f"run_id = {quote(run_id)} AND rank = {rank}"

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics, in the order of their first records."""
        rows = self._client.columns(
            f"SELECT metric, min(offset_first) AS place FROM {self._schema.table('tiles')}"
            f" WHERE {self._key} AND chunk = 0 GROUP BY metric ORDER BY place, metric",
            {"metric": "String"},
        )
        names: list[str] = rows["metric"]
        return names

    def aggregates(self) -> dict[str, MetricAggregates]:
        """Return the aggregates of every metric, without points that a later attempt repeated.

        The column store has neither medians nor tails: they are None.
        """
        names = self.metric_names
        aggregates = list_aggregates(self._schema, names, self._key).get(self.run_id, {}) if names else {}
        return {name: aggregates[name] for name in names if name in aggregates}

    def series(
        self,
        name: str,
        *,
        axis: Axis = "step",
        low: float | None = None,
        high: float | None = None,
        num_points: int = 2_000,
    ) -> tuple[list[Line], list[Mark]]:
        """Return the lines and marks of a metric in a view; see `StoredRun.series`.

        Raises:
            ColumnStoreError: if ClickHouse fails, or only the files have the answer.
        """
        if axis not in {"step", "time"}:
            raise ColumnStoreError(f"the axis {axis!r} is computed from the journal; the column store does not have it")
        view = View(axis, low, high, num_points)
        tiles = self._tiles([name, f"{name}/min", f"{name}/max", _WINDOW_STEPS])
        metric_tiles = tiles.get(name, [])
        lines: list[Line] = []
        marks: list[Mark] = []
        for stream in dict.fromkeys(each.stream for each in metric_tiles):
            names = [name]
            parts = {
                each: [part for part in tiles.get(each, []) if part.stream == stream]
                for each in (f"{name}/min", f"{name}/max", _WINDOW_STEPS)
            }
            if all(parts.values()):
                names += parts
            stream_series = self._stream_lines(names, [part for part in metric_tiles if part.stream == stream], view)
            lines += stream_series[0]
            marks += stream_series[1]
        return lines, marks

    def _tiles(self, names: Sequence[str]) -> dict[str, list[_Tiles]]:
        """Return the tiles of some metrics: streams by appearance, then attempts."""
        rows = self._client.columns(
            f"SELECT {', '.join(_TILE_KINDS)} FROM {self._schema.table('tiles')}"
            f" WHERE {self._key} AND metric IN ({', '.join(map(quote, names))})"
            " ORDER BY metric, stream, attempt, chunk, n",
            _TILE_KINDS,
        )
        keys = list(zip(rows["metric"], rows["stream"], rows["attempt"].tolist(), strict=True))
        starts = [index for index, key in enumerate(keys) if index == 0 or key != keys[index - 1]]
        tiles: dict[str, list[_Tiles]] = {}
        for begin, end in itertools.pairwise([*starts, len(keys)]):
            chunks = rows["chunk"][begin:end]
            newest = np.flatnonzero(np.append(chunks[1:] != chunks[:-1], True)) + begin
            columns = {name: rows[name][newest] for name in _TILE_KINDS if name not in {"metric", "stream"}}
            metric, stream, attempt = keys[begin]
            tiles.setdefault(metric, []).append(_Tiles(stream, attempt, columns))
        for parts in tiles.values():
            first = {part.stream: int(part.columns["offset_first"][0]) for part in reversed(parts)}
            parts.sort(key=lambda part: (first[part.stream], part.attempt))
        return tiles

    def _stream_lines(self, names: list[str], parts: list[_Tiles], view: View) -> tuple[list[Line], list[Mark]]:
        """Return the lines of the first of some metrics of one stream; the others have the extremes of its windows."""
        coarse: dict[int, Line | None] = {}
        ranges: list[tuple[_Tiles, _TileRange]] = []
        coarse_ranges: list[tuple[_Tiles, _TileRange]] = []
        limit = min(MAX_RAW_POINTS, max(MIN_COARSE_POINTS, CHUNK * view.num_points))
        for part in parts:
            tile_range = _tiles_in_view(part, view)
            num_finite = int(part.num_finite[tile_range.begin : tile_range.end].sum())
            if len(names) == 1 and part.is_sorted(view.column) and num_finite > limit:
                coarse[part.attempt] = None
                coarse_ranges.append((part, tile_range))
            else:
                ranges.append((part, tile_range))
        stream = parts[0].stream
        sources = [_PointSource(stream, parts, {name: self._points(name, stream, ranges) for name in names})]
        self._check_complete(sources[0], names[0], ranges)
        lines = {line.attempt: line for line in build_lines_with_extremes(sources, stream, names[0], view)}
        for part, tile_range in coarse_ranges:
            mark_points = self._points(names[0], stream, [(part, tile_range)], nonfinite=True)
            sources.append(_PointSource(stream, [part], {names[0]: mark_points}))
            line = self._coarse_line(names[0], part, tile_range, view, mark_points["offset"])
            if line is not None:
                lines[part.attempt] = line
        marks = build_marks(sources, stream, names[0], view)
        return [lines[attempt] for attempt in sorted(lines)], marks

    def _points(
        self, name: str, stream: str, ranges: Iterable[tuple[_Tiles, _TileRange]], *, nonfinite: bool = False
    ) -> Columns:
        """Return the points in the tiles of some ranges, in the order of their records, each once."""
        conditions = []
        for part, tile_range in ranges:
            tiles = slice(tile_range.first, tile_range.last)
            columns = {field: values[tiles] for field, values in part.columns.items()}
            if nonfinite:
                has_some = columns["nonfinite"] > 0
                columns = {field: values[has_some] for field, values in columns.items()}
            if len(columns["n"]):
                conditions.append(
                    f"(attempt = {part.attempt}"
                    f" AND step BETWEEN {columns['step_min'].min()} AND {columns['step_max'].max()}"
                    f" AND offset BETWEEN {columns['offset_first'].min()} AND {columns['offset_last'].max()})"
                )
        if not conditions:
            return {field: np.empty(0) for field in _POINT_KINDS}
        where = f"{self._key} AND metric = {quote(name)} AND stream = {quote(stream)} AND ({' OR '.join(conditions)})"
        rows = self._client.columns(
            f"SELECT {', '.join(_POINT_KINDS)} FROM {self._schema.table('points')} WHERE {where}"
            f"{' AND NOT isFinite(value)' if nonfinite else ''} ORDER BY offset",
            _POINT_KINDS,
        )
        is_new = np.diff(rows["offset"].astype(np.int64), prepend=-1) > 0
        return {field: values[is_new] for field, values in rows.items()}

    def _check_complete(self, source: _PointSource, name: str, ranges: list[tuple[_Tiles, _TileRange]]) -> None:
        num_expected = sum(
            int(part.columns["n"][tile_range.first : tile_range.last].sum()) for part, tile_range in ranges
        )
        if source.num_points(name) < num_expected:
            raise ColumnStoreError(f"points of {name!r} were removed from the column store; the journal has them")

    def _coarse_line(
        self, name: str, part: _Tiles, tile_range: _TileRange, view: View, mark_offsets: Any
    ) -> Line | None:
        """Return a line through the extremes of tiles; at the edges of the view, through points."""
        # Tiles that only partly lie in the view, and tiles with the points next to it, are read as points.
        inner_begin = tile_range.begin + 1 if view.low is not None else tile_range.begin
        inner_end = tile_range.end - 1 if view.high is not None else tile_range.end
        edges = []
        if view.low is not None:
            edges.append((part, _TileRange(tile_range.first, inner_begin, tile_range.first, inner_begin)))
        if view.high is not None:
            edges.append((part, _TileRange(inner_end, tile_range.last, inner_end, tile_range.last)))
        points = self._points(name, part.stream, edges)
        num_expected = sum(int(part.columns["n"][each.first : each.last].sum()) for _, each in edges)
        if len(points["value"]) < num_expected:
            raise ColumnStoreError(f"points of {name!r} were removed from the column store; the journal has them")
        keep = np.isfinite(points["value"])
        points = {field: values[keep] for field, values in points.items()}
        keep = _with_neighbours(points[view.column], view)
        points = {field: values[keep] for field, values in points.items()}
        inner = {field: values[inner_begin:inner_end] for field, values in part.columns.items()}
        x, y, offset = _candidates(points, inner, view)
        selection = choose_extremes(x, y, view.num_points)
        num_finite = inner["n"].astype(np.int64) - inner["nonfinite"].astype(np.int64)
        has_mean = (num_finite > 0) & np.isfinite(inner["total"])
        mean_x = np.concatenate([points[view.column], inner[f"{view.column}_first"][has_mean]]).astype(np.float64)
        means = np.concatenate([points["value"], inner["total"][has_mean] / num_finite[has_mean]])
        counts = np.concatenate([np.ones(len(points["value"]), np.int64), num_finite[has_mean]])
        order = np.argsort(mean_x, kind="stable")
        middles = bucket_means(mean_x[order], means[order], counts[order], view)
        gaps = np.searchsorted(mark_offsets, offset[selection])
        line_x, line_y = break_at_marks(x[selection], y[selection], gaps)
        num_points = len(points["value"]) + int(num_finite.sum())
        return Line(part.stream, part.attempt, line_x, line_y, *middles, num_points)


def _tiles_in_view(part: _Tiles, view: View) -> _TileRange:
    """Return which tiles a view needs; all of them if their positions decrease somewhere."""
    num_tiles = len(part.columns["n"])
    if not part.is_sorted(view.column):
        return _TileRange(0, num_tiles, 0, num_tiles)
    first, last = part.columns[f"{view.column}_first"], part.columns[f"{view.column}_last"]
    begin = 0 if view.low is None else int(np.searchsorted(last, view.low, "left"))
    end = num_tiles if view.high is None else int(np.searchsorted(first, view.high, "right"))
    end = max(begin, end)
    finite_tiles = np.flatnonzero(part.num_finite)
    before, after = finite_tiles[finite_tiles < begin], finite_tiles[finite_tiles >= end]
    return _TileRange(begin, end, int(before[-1]) if len(before) else begin, int(after[0]) + 1 if len(after) else end)


def _with_neighbours(x: Any, view: View) -> Any:
    """Return which of some sorted positions are in the view or next to it."""
    begin = 0 if view.low is None else max(0, int(np.searchsorted(x, view.low, "left")) - 1)
    end = len(x) if view.high is None else int(np.searchsorted(x, view.high, "right")) + 1
    return slice(begin, end)


def _candidates(points: Columns, tiles: Columns, view: View) -> tuple[Any, Any, Any]:
    """Return positions, values and offsets of points, of the extremes of tiles, and of their first and last points."""
    is_finite = tiles["n"] > tiles["nonfinite"]
    xs, ys, offsets = [points[view.column]], [points["value"]], [points["offset"]]
    for side in ("low", "high"):
        xs.append(tiles[f"{side}_{view.column}"][is_finite])
        ys.append(tiles[side][is_finite])
        offsets.append(tiles[f"{side}_offset"][is_finite])
    for side, index in (("first", slice(0, 1)), ("last", slice(-1, None))):
        keep = np.isfinite(tiles[side][index])
        xs.append(tiles[f"{view.column}_{side}"][index][keep])
        ys.append(tiles[side][index][keep])
        offsets.append(tiles[f"offset_{side}"][index][keep])
    offset, selection = np.unique(np.concatenate(offsets), return_index=True)
    return np.concatenate(xs).astype(np.float64)[selection], np.concatenate(ys)[selection], offset


class _PointSource:
    """Points from the database as the columns that the queries of the file store read: one stream of one run."""

    num_changes = 0

    def __init__(self, stream: str, parts: list[_Tiles], points: dict[str, Columns]) -> None:
        self._stream, self._points = stream, points
        offsets = np.concatenate([columns_of_metric["offset"] for columns_of_metric in points.values()])
        self._offsets, first = np.unique(offsets, return_index=True)
        columns = {
            field: np.concatenate([columns_of_metric[field] for columns_of_metric in points.values()])[first]
            for field in ("attempt", "step", "time")
        }
        starts = np.flatnonzero(np.diff(columns["attempt"].astype(np.int64), prepend=-1))
        sorted_by = {part.attempt: (part.is_sorted("step"), part.is_sorted("time"), True) for part in parts}
        ranges = [
            AttemptRange(int(columns["attempt"][start]), int(start), sorted_by[int(columns["attempt"][start])])
            for start in starts
        ]
        self._rows = StreamRows(columns["step"].astype(np.int64), columns["time"], None, ranges)

    def num_points(self, name: str) -> int:
        return len(self._points[name]["value"])

    @property
    def streams(self) -> list[str]:
        return [self._stream]

    @property
    def series_keys(self) -> list[tuple[str, str]]:
        return [(self._stream, name) for name, columns in self._points.items() if len(columns["value"])]

    def stats(self, stream: str, name: str) -> SeriesStats | None:
        return SeriesStats() if (stream, name) in self.series_keys else None

    def rows(self, stream: str) -> StreamRows:
        return self._rows

    def num_rows(self, stream: str) -> int:
        return len(self._offsets)

    def series_part(self, stream: str, name: str) -> SeriesPart | None:
        columns = self._points.get(name)
        if columns is None or not len(columns["value"]):
            return None
        row: Integers = np.asarray(np.searchsorted(self._offsets, columns["offset"]))
        value = columns["value"]
        is_finite = np.isfinite(value)
        marks = value[~is_finite]
        kinds = np.where(np.isnan(marks), 0, np.where(marks > 0, 1, 2)).astype(np.uint8)
        return SeriesPart(row[is_finite], value[is_finite], row[~is_finite], kinds)

    def is_changed(self) -> bool:
        return False


def list_aggregates(
    schema: StoreSchema, names: Collection[str], condition: str
) -> dict[str, dict[str, MetricAggregates]]:
    """Return the aggregates of some metrics by run and name; medians and tails are None.

    Args:
        schema: the tables.
        names: the metrics.
        condition: SQL that chooses runs and ranks.
    """
    queried_names = dict.fromkeys(
        [*names, *(f"{name}/{side}" for name in names for side in ("min", "max", "nonfinite"))]
    )
    quoted_names = ", ".join(map(quote, [*queried_names, _WINDOW_STEPS]))
    rows_by_column = schema.client.columns(
        f"SELECT {', '.join(_SUMMARY_KINDS)} FROM {schema.table('summaries')} FINAL"
        f" WHERE metric IN ({quoted_names}) AND {condition} AND n > 0 ORDER BY run_id, metric, attempt, offset_first",
        _SUMMARY_KINDS,
    )
    columns = [each if isinstance(each, list) else each.tolist() for each in rows_by_column.values()]
    keys = list(zip(columns[0], columns[1], strict=True))
    rows = list(map(_SummaryRow._make, zip(*columns, strict=True)))
    starts = [index for index, key in enumerate(keys) if index == 0 or key != keys[index - 1]]
    runs: dict[str, dict[str, MetricAggregates]] = {}
    for begin, end in itertools.pairwise([*starts, len(keys)]):
        run_id, metric = keys[begin]
        runs.setdefault(run_id, {})[metric] = _join_summaries(rows[begin:end])
    metric_names = set(names)
    for run_id, metrics in runs.items():
        if _WINDOW_STEPS in metrics:
            with_extremes = with_window_extremes(metrics)
            runs[run_id] = {name: each for name, each in with_extremes.items() if name in metric_names}
        elif not metrics.keys() <= metric_names:
            runs[run_id] = {name: each for name, each in metrics.items() if name in metric_names}
    return {run_id: metrics for run_id, metrics in runs.items() if metrics}


class _SummaryRow(NamedTuple):
    """One row of `summaries`, as `_SUMMARY_KINDS` names its columns."""

    run_id: str
    metric: str
    n: int
    nonfinite: int
    time_first: float
    time_last: float
    first: float
    last: float
    low: float
    high: float
    low_step: int
    high_step: int
    low_time: float
    high_time: float
    total: float


def _join_summaries(rows: list[_SummaryRow]) -> MetricAggregates:
    """Return the aggregates of a metric from the summaries of its attempts and streams."""
    first = last = low = high = rows[0]
    for row in rows[1:]:
        first = row if row.time_first < first.time_first else first
        last = row if not row.time_last < last.time_last else last
        low = row if (row.low, row.low_time) < (low.low, low.low_time) else low
        high = row if (-row.high, row.high_time) < (-high.high, high.high_time) else high
    if len(rows) == 1:  # almost always, and a list has thousands
        num_points, nonfinite, total = first.n, first.nonfinite, first.total
    else:
        num_points, nonfinite = sum(row.n for row in rows), sum(row.nonfinite for row in rows)
        total = math.fsum(row.total for row in rows if row.n > row.nonfinite)
    if num_points == nonfinite:
        return MetricAggregates(num_points, nonfinite, first.first, last.last)
    mean = total / (num_points - nonfinite)
    return MetricAggregates(
        num_points,
        nonfinite,
        first.first,
        last.last,
        min=low.low,
        max=high.high,
        mean=mean if math.isfinite(mean) else None,
        at_min=low.low_step,
        at_max=high.high_step,
    )
