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
from tachograph.server.columns._points import SERIES_HASH, PointQuery, PointReader
from tachograph.server.columns._rows import SORTED_BY_STEP, SORTED_BY_TIME, TILE_POINTS
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

__all__ = [
    "ClickHouseRun",
    "MetricLines",
    "SeriesRequest",
    "condition_of",
    "list_aggregates",
    "list_cursors",
    "list_metrics",
    "read_series",
]

_WINDOW_STEPS = "window_steps"
_MIN_TILES = 32
"""A line that is drawn from tiles has at least about so many of them."""
_KEY_KINDS = {"run_id": "String", "metric": "String", "stream": "String"}
_TILE_KINDS = {
    **_KEY_KINDS,
    "series_hash": "UInt64",
    **{name: kind for name, kind in SCHEMA_TABLES["tiles"].columns.items() if name not in {*_KEY_KINDS, "rank"}},
}
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


class SeriesRequest(NamedTuple):
    """Some metrics of a run in a view."""

    run_id: str
    names: tuple[str, ...]
    view: View


class MetricLines(NamedTuple):
    """A metric of a run in a view."""

    lines: list[Line]
    marks: list[Mark]
    last: float
    """Its last value, also if the view ends before."""


class _Tiles(NamedTuple):
    """The tiles of one series in one attempt, in order."""

    stream: str
    attempt: int
    columns: Columns

    @property
    def series_hash(self) -> int:
        """The hash of the run and the stream, as `PointReader` returns it with each point."""
        return int(self.columns["series_hash"][0])

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


_TilesByMetric = dict[str, list[_Tiles]]


class ClickHouseRun:
    """The metrics of one journal in ClickHouse; a `SeriesSource`.

    Axes that are computed from other metrics, and points that `tacho store retain` removed, are only in files: then
    `series` raises `ColumnStoreError`.
    """

    def __init__(self, schema: StoreSchema, run_id: str, rank: int = 0) -> None:
        self._schema, self._rank = schema, rank
        self.run_id = run_id

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics, in the order of their first records."""
        return list(list_metrics(self._schema, [self.run_id], self._rank).get(self.run_id, {}))

    def aggregates(self) -> dict[str, MetricAggregates]:
        """Return the aggregates of every metric, without points that a later attempt repeated.

        The column store has neither medians nor tails: they are None.
        """
        names = self.metric_names
        condition = condition_of([self.run_id], self._rank)
        aggregates = list_aggregates(self._schema, names, condition).get(self.run_id, {}) if names else {}
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
        request = SeriesRequest(self.run_id, (name,), View(axis, low, high, num_points))
        [lines_of_metrics] = read_series(self._schema, [request], self._rank)
        if isinstance(lines_of_metrics, ColumnStoreError):
            raise lines_of_metrics
        metric = lines_of_metrics.get(name)
        return (metric.lines, metric.marks) if metric else ([], [])


def list_metrics(schema: StoreSchema, run_ids: Collection[str], rank: int = 0) -> dict[str, dict[str, str]]:
    """Return the metrics of some runs, in the order of their first records, each with its first stream."""
    rows = schema.client.columns(
        f"SELECT run_id, metric, argMin(stream, offset_first) AS first_stream, min(offset_first) AS place"
        f" FROM {schema.table('tiles')} WHERE {condition_of(run_ids, rank)} AND chunk = 0"
        " GROUP BY run_id, metric ORDER BY run_id, place, metric",
        {"run_id": "String", "metric": "String", "first_stream": "String"},
    )
    metrics: dict[str, dict[str, str]] = {}
    for run_id, metric, stream in zip(*rows.values(), strict=True):
        metrics.setdefault(run_id, {})[metric] = stream
    return metrics


def list_cursors(schema: StoreSchema, run_ids: Collection[str], rank: int = 0) -> dict[str, int]:
    """Return up to which offset the journals of some runs are in the tables."""
    rows = schema.client.columns(
        f"SELECT run_id, argMax(offset, version) AS num_bytes FROM {schema.table('cursors')}"
        f" WHERE {condition_of(run_ids, rank)} GROUP BY run_id",
        {"run_id": "String", "num_bytes": "UInt64"},
    )
    return dict(zip(rows["run_id"], rows["num_bytes"].tolist(), strict=True))


def read_series(
    schema: StoreSchema,
    requests: Sequence[SeriesRequest],
    rank: int = 0,
    *,
    usual_points: float = math.inf,
    max_points: float = math.inf,
) -> list[dict[str, MetricLines] | ColumnStoreError]:
    """Return the lines and marks of metrics of several runs, with few statements.

    Args:
        schema: the tables.
        requests: the runs and metrics; each run once.
        rank: the rank whose journal is drawn.
        usual_points: the number of points to read for all series: if they have more, long ones are drawn from tiles …
        max_points: … and if short ones have more, the last runs are not drawn.

    Returns:
        For each request the lines and marks of the metrics that the run has, or the reason why only the files have
        them.

    Raises:
        ColumnStoreError: if ClickHouse fails.
    """
    tiles = _read_tiles(schema, requests, rank)
    reader = PointReader(schema, rank)
    num_series = sum(len(request.names) for request in requests)
    max_raw_points = max(_MIN_TILES * TILE_POINTS, usual_points / num_series)
    drawings = [_RunDrawing(request, tiles.get(request.run_id, {}), reader, max_raw_points) for request in requests]
    num_left = max_points
    queries: list[PointQuery] = []
    for drawing in drawings:
        if drawing.num_points > num_left:
            drawing.problem = f"{drawing.num_points:,} more points are too many for one answer"
            continue
        num_left -= drawing.num_points
        queries += drawing.queries
    reader.read(queries)
    return [drawing.lines() for drawing in drawings]


def condition_of(run_ids: Collection[str], rank: int) -> str:
    """Return SQL that chooses the journals of a rank of some runs."""
    return f"run_id IN ({', '.join(map(quote, run_ids))}) AND rank = {rank}"


def _read_tiles(schema: StoreSchema, requests: Sequence[SeriesRequest], rank: int) -> dict[str, _TilesByMetric]:
    """Return the tiles of the metrics of some runs: by run and metric, streams by appearance, then attempts."""
    run_ids = [request.run_id for request in requests]
    names = dict.fromkeys(name for request in requests for each in request.names for name in _names_to_draw(each))
    rows = schema.client.columns(
        f"SELECT {', '.join(_TILE_KINDS)} FROM (SELECT *, {SERIES_HASH} AS series_hash FROM {schema.table('tiles')}"
        f" WHERE {condition_of(run_ids, rank)} AND metric IN ({', '.join(map(quote, names))}))"
        " ORDER BY run_id, metric, stream, attempt, chunk, n",
        _TILE_KINDS,
    )
    keys = list(zip(rows["run_id"], rows["metric"], rows["stream"], rows["attempt"].tolist(), strict=True))
    starts = [index for index, key in enumerate(keys) if index == 0 or key != keys[index - 1]]
    tiles: dict[str, _TilesByMetric] = {}
    for begin, end in itertools.pairwise([*starts, len(keys)]):
        chunks = rows["chunk"][begin:end]
        newest = np.flatnonzero(np.append(chunks[1:] != chunks[:-1], True)) + begin
        columns = {name: rows[name][newest] for name in _TILE_KINDS if name not in _KEY_KINDS}
        run_id, metric, stream, attempt = keys[begin]
        tiles.setdefault(run_id, {}).setdefault(metric, []).append(_Tiles(stream, attempt, columns))
    for parts in (parts for tiles_of_run in tiles.values() for parts in tiles_of_run.values()):
        first = {part.stream: int(part.columns["offset_first"][0]) for part in reversed(parts)}
        parts.sort(key=lambda part: (first[part.stream], part.attempt))
    return tiles


def _names_to_draw(name: str) -> tuple[str, ...]:
    """Return a metric and the metrics that state the extremes of its windows, if it has windows."""
    return name, f"{name}/min", f"{name}/max", _WINDOW_STEPS


class _RunDrawing:
    """How the metrics of one run are drawn: it states which points it needs, which are then read together."""

    def __init__(
        self, request: SeriesRequest, tiles: _TilesByMetric, reader: PointReader, max_raw_points: float
    ) -> None:
        self.problem = ""
        """Why only the files have the answer."""
        self._streams: dict[str, list[_StreamDrawing]] = {}
        self._last: dict[str, float] = {}
        for name in request.names:
            metric_tiles = tiles.get(name, [])
            if not metric_tiles:
                continue
            newest = max((part.columns for part in metric_tiles), key=lambda columns: int(columns["offset_last"][-1]))
            self._last[name] = float(newest["last"][-1])
            drawings = self._streams.setdefault(name, [])
            for stream in dict.fromkeys(each.stream for each in metric_tiles):
                others = {
                    each: [part for part in tiles.get(each, []) if part.stream == stream]
                    for each in _names_to_draw(name)[1:]
                }
                names = _names_to_draw(name) if all(others.values()) else (name,)
                parts = [part for part in metric_tiles if part.stream == stream]
                drawings.append(_StreamDrawing(names, parts, request, reader, max_raw_points))

    @property
    def queries(self) -> list[PointQuery]:
        return [query for drawings in self._streams.values() for drawing in drawings for query in drawing.queries]

    @property
    def num_points(self) -> int:
        """The number of points that are read at least."""
        return sum(query.num_expected for query in self.queries)

    def lines(self) -> dict[str, MetricLines] | ColumnStoreError:
        lines_of_metrics: dict[str, MetricLines] = {}
        for name, drawings in self._streams.items():
            lines: list[Line] = []
            marks: list[Mark] = []
            for drawing in drawings:
                if self.problem or not drawing.is_complete:
                    reason = f"points of {name!r} were removed from the column store; the journal has them"
                    return ColumnStoreError(self.problem or reason)
                stream_lines, stream_marks = drawing.draw()
                lines += stream_lines
                marks += stream_marks
            lines_of_metrics[name] = MetricLines(lines, marks, self._last[name])
        return lines_of_metrics


class _CoarsePart(NamedTuple):
    """An attempt with many points: its inner tiles, and what is read of it."""

    part: _Tiles
    inner: slice
    edges: PointQuery
    marks: PointQuery


class _StreamDrawing:
    """How one stream of a metric is drawn; the metrics after the first have the extremes of its windows."""

    def __init__(
        self,
        names: tuple[str, ...],
        parts: list[_Tiles],
        request: SeriesRequest,
        reader: PointReader,
        max_raw_points: float,
    ) -> None:
        self._names, self._parts, self._view = names, parts, request.view
        self._coarse: list[_CoarsePart] = []
        view = request.view
        ranges: list[tuple[_Tiles, _TileRange]] = []
        limit = min(MAX_RAW_POINTS, max(MIN_COARSE_POINTS, CHUNK * view.num_points), max_raw_points)

        def query(name: str, ranges: list[tuple[_Tiles, _TileRange]], *, nonfinite: bool = False) -> PointQuery:
            return _query_of_tiles(reader, request.run_id, name, parts[0], ranges, nonfinite=nonfinite)

        for part in parts:
            tile_range = _tiles_in_view(part, view)
            num_finite = int(part.num_finite[tile_range.begin : tile_range.end].sum())
            if len(names) > 1 or not part.is_sorted(view.column) or num_finite <= limit:
                ranges.append((part, tile_range))
                continue
            # Tiles that only partly lie in the view, and tiles with the points next to it, are read as points.
            begin = tile_range.begin + 1 if view.low is not None else tile_range.begin
            end = tile_range.end - 1 if view.high is not None else tile_range.end
            edges = []
            if view.low is not None:
                edges.append((part, _TileRange(tile_range.first, begin, tile_range.first, begin)))
            if view.high is not None:
                edges.append((part, _TileRange(end, tile_range.last, end, tile_range.last)))
            marks = query(names[0], [(part, tile_range)], nonfinite=True)
            self._coarse.append(_CoarsePart(part, slice(begin, end), query(names[0], edges), marks))
        self._points = {name: query(name, ranges) for name in names}

    @property
    def queries(self) -> list[PointQuery]:
        coarse_queries = [query for coarse in self._coarse for query in (coarse.edges, coarse.marks)]
        return [*self._points.values(), *coarse_queries]

    @property
    def is_complete(self) -> bool:
        """Whether the table has all points that the tiles count."""
        needed_queries = [self._points[self._names[0]], *(coarse.edges for coarse in self._coarse)]
        return all(len(query.points["value"]) >= query.num_expected for query in needed_queries)

    def draw(self) -> tuple[list[Line], list[Mark]]:
        name, stream, view = self._names[0], self._parts[0].stream, self._view
        sources = [_PointSource(stream, self._parts, {each: query.points for each, query in self._points.items()})]
        lines = {line.attempt: line for line in build_lines_with_extremes(sources, stream, name, view)}
        for coarse in self._coarse:
            sources.append(_PointSource(stream, [coarse.part], {name: coarse.marks.points}))
            line = _coarse_line(coarse, view)
            if line is not None:
                lines[coarse.part.attempt] = line
        marks = build_marks(sources, stream, name, view)
        return [lines[attempt] for attempt in sorted(lines)], marks


def _query_of_tiles(
    reader: PointReader,
    run_id: str,
    name: str,
    series: _Tiles,
    ranges: Iterable[tuple[_Tiles, _TileRange]],
    *,
    nonfinite: bool,
) -> PointQuery:
    """Return what to read for the tiles of some ranges."""
    conditions = []
    num_expected = 0
    for part, tile_range in ranges:
        tiles = slice(tile_range.first, tile_range.last)
        columns = {field: values[tiles] for field, values in part.columns.items()}
        if nonfinite:
            has_some = columns["nonfinite"] > 0
            columns = {field: values[has_some] for field, values in columns.items()}
        if len(columns["n"]):
            num_expected += int(columns["nonfinite" if nonfinite else "n"].sum())
            conditions.append(
                f"(attempt = {part.attempt}"
                f" AND step BETWEEN {columns['step_min'].min()} AND {columns['step_max'].max()}"
                f" AND offset BETWEEN {columns['offset_first'].min()} AND {columns['offset_last'].max()})"
            )
    return reader.plan(run_id, series.stream, name, series.series_hash, conditions, num_expected, nonfinite=nonfinite)


def _coarse_line(coarse: _CoarsePart, view: View) -> Line | None:
    """Return a line through the extremes of tiles; at the edges of the view, through points."""
    part = coarse.part
    points = coarse.edges.points
    keep = np.isfinite(points["value"])
    points = {field: values[keep] for field, values in points.items()}
    keep = _with_neighbours(points[view.column], view)
    points = {field: values[keep] for field, values in points.items()}
    inner = {field: values[coarse.inner] for field, values in part.columns.items()}
    x, y, offset = _candidates(points, inner, view)
    selection = choose_extremes(x, y, view.num_points)
    num_finite = inner["n"].astype(np.int64) - inner["nonfinite"].astype(np.int64)
    has_mean = (num_finite > 0) & np.isfinite(inner["total"])
    mean_x = np.concatenate([points[view.column], inner[f"{view.column}_first"][has_mean]]).astype(np.float64)
    means = np.concatenate([points["value"], inner["total"][has_mean] / num_finite[has_mean]])
    counts = np.concatenate([np.ones(len(points["value"]), np.int64), num_finite[has_mean]])
    order = np.argsort(mean_x, kind="stable")
    middles = bucket_means(mean_x[order], means[order], counts[order], view)
    gaps = np.searchsorted(coarse.marks.points["offset"], offset[selection])
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
