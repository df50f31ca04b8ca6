"""Turn columns into chart lines: about as many points as pixels, with every visible extreme among them.

For each attempt there are four steps:

1. Find the values inside the view by binary search in each source (segment or tail), plus one neighbour on each side,
   so that lines run to the edges of the chart.
2. Collect candidates. A narrow view uses the points themselves. A view of more than `MAX_RAW_POINTS`, or a long one
   with more points per wanted point than a chunk has, uses the chunk summaries written with each segment: of every
   complete chunk only the lowest and the highest point, so ten million points cost as much as a hundred thousand.
3. Downsample the candidates with min/max per bucket. The result contains only recorded points, never averages, and is
   the same each time. Means per bucket are returned separately and labelled as means.
4. Break the line where a NaN or infinite value lies between two chosen points.

This needs positions that never decrease along the axis. Otherwise, for example when steps restart each epoch, all
points are sorted first; that case is slower but rare. If the axis is a metric, which may go up and down, points are
drawn in the order of their records, and thinned by the extremes of both directions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph.store._columns import (
    CHUNK,
    COLUMNS,
    MARK_KINDS,
    AttemptRange,
    Column,
    Floats,
    Integers,
    SeriesPart,
    StreamRows,
)
from tachograph.store._tail import SeriesStats

__all__ = [
    "MAX_RAW_POINTS",
    "MIN_COARSE_POINTS",
    "ColumnSource",
    "Line",
    "Mark",
    "View",
    "break_at_marks",
    "bucket_means",
    "build_lines",
    "build_marks",
    "choose_extremes",
    "iter_points",
]

MAX_RAW_POINTS = 1 << 18
MIN_COARSE_POINTS = 50_000
"""Reading fewer points than this takes no time worth saving."""
_MAX_MARKS = 500
_BLOCK_POINTS = 1_000
_MARK_VALUES = np.array([float(kind) for kind in MARK_KINDS])


@functools.cache
def _downsampler() -> Any:
    from tsdownsample import MinMaxDownsampler  # not needed to compare runs

    return MinMaxDownsampler()  # type: ignore[no-untyped-call]


class ColumnSource(Protocol):
    """A source of columns: a segment or the tail."""

    @property
    def streams(self) -> list[str]:
        """The names of the streams, in order of appearance."""
        ...

    @property
    def series_keys(self) -> list[tuple[str, str]]:
        """Stream and name of each series, in order of appearance."""
        ...

    def stats(self, stream: str, name: str) -> SeriesStats | None:
        """Return the statistics of a series, or None if this source does not have it."""
        ...

    def rows(self, stream: str) -> StreamRows:
        """Return the rows of a stream."""
        ...

    def num_rows(self, stream: str) -> int:
        """Return the number of rows of a stream in this source."""
        ...

    def series_part(self, stream: str, name: str) -> SeriesPart | None:
        """Return the values of a series in this source, or None."""
        ...

    def is_changed(self) -> bool:
        """Return whether the columns were changed by others since the last call."""
        ...

    @property
    def num_changes(self) -> int:
        """How often `is_changed` has found a change."""
        ...


class View(NamedTuple):
    """The visible range of a series, and the number of points to return."""

    column: Column = "step"
    low: float | None = None
    high: float | None = None
    num_points: int = 2_000
    after_row: int = 0
    """Skip the rows before this one."""
    keeps_order: bool = False
    """Whether a line whose positions decrease is drawn in the order of its records, and not sorted."""


class Line(msgspec.Struct):
    """The points of one line, all of one attempt."""

    stream: str
    attempt: int
    x: list[float]
    y: list[float | None]
    """None where the line is interrupted by a NaN or infinite value."""
    mean_x: list[float]
    mean_y: list[float]
    mean_count: list[int]
    """Number of points in each mean, taken over equal intervals; all empty if `x` and `y` have every point or `x`
    decreases somewhere, which it can if it is a metric."""
    num_points: int
    """The number of recorded points in the view."""


class Mark(msgspec.Struct):
    """A position with NaN or infinite values."""

    x: float
    kind: str
    count: int


class _Slice(NamedTuple):
    """The values of one attempt in one source."""

    rows: StreamRows
    part: SeriesPart
    num_marks_before: int
    """The number of marks in earlier sources."""
    first_row: int
    end_row: int
    first: int
    begin: int
    end: int
    last: int
    """The attempt has the values from `first` to `last`; the view has the values from `begin` to `end`."""


class _Candidates(NamedTuple):
    x: npt.NDArray[Any]
    """The position of the point, or of the start of its chunk."""
    y: Floats
    position: Integers
    """The index of the value in its `SeriesPart`."""
    chunks: slice | None
    """The chunks included by their summaries."""
    num_before: int
    """The number of points before these chunks."""


def _read_part(source: ColumnSource, stream: str, name: str) -> SeriesPart | None:
    return source.series_part(stream, name)


def build_lines(
    sources: Sequence[ColumnSource],
    stream: str,
    name: str,
    view: View,
    read_part: Callable[[ColumnSource, str, str], SeriesPart | None] = _read_part,
) -> list[Line]:
    """Return the lines of a series in a view, one for each attempt with points.

    Args:
        sources: the columns, in order.
        stream: the stream of the series.
        name: the series.
        view: the range and the number of points.
        read_part: returns the values in a source.
    """
    attempts: dict[int, _AttemptSlices] = {}
    base, num_marks = 0, 0
    for source in sources:
        num_rows = source.num_rows(stream)
        series = read_part(source, stream, name) if num_rows and base + num_rows > view.after_row else None
        if series is not None:
            for attempt_range, piece in _slices(source.rows(stream), series, view, view.after_row - base, num_marks):
                attempts.setdefault(attempt_range.attempt, _AttemptSlices()).add(attempt_range, piece, view.column)
            num_marks += len(series.mark_rows)
        base += num_rows
    lines = []
    for attempt, attempt_slices in attempts.items():
        build_line = _sorted_line if attempt_slices.is_sorted else _unsorted_line
        line = build_line(stream, attempt, attempt_slices.slices, view)
        if line is not None:
            lines.append(line)
    return lines


class _AttemptSlices:
    """The slices of one attempt, and whether their positions never decrease along the axis."""

    def __init__(self) -> None:
        self.slices: list[_Slice] = []
        self.is_sorted = True
        self._last_x = -np.inf

    def add(self, attempt_range: AttemptRange, piece: _Slice, column: Column) -> None:
        x = piece.rows.column(column)
        self.is_sorted &= attempt_range.sorted_by[COLUMNS.index(column)] and self._last_x <= float(x[piece.first_row])
        self._last_x = float(x[piece.end_row - 1])
        self.slices.append(piece)


def _slices(
    rows: StreamRows, series: SeriesPart, view: View, after_row: int, num_marks_before: int
) -> Iterator[tuple[AttemptRange, _Slice]]:
    """Yield the slices of a series in one source, one for each attempt."""
    x = rows.column(view.column)
    ends = [attempt_range.first for attempt_range in rows.ranges[1:]] + [len(x)]
    for attempt_range, end_row in zip(rows.ranges, ends, strict=True):
        first_row = max(attempt_range.first, after_row)
        if view.column == "epoch":
            first_row = _first_known_epoch(x, first_row, end_row)
        if first_row < end_row:
            bounds = _value_bounds(series, x, first_row, end_row, view)
            piece = _Slice(rows, series, num_marks_before, first_row, end_row, *bounds)
            if piece.last > piece.first:
                yield attempt_range, piece


def build_marks(sources: Sequence[ColumnSource], stream: str, name: str, view: View) -> list[Mark]:
    """Return the positions of NaN and infinite values, merged into at most `_MAX_MARKS` of each kind."""
    positions, kinds = [], []
    base = 0
    for source in sources:
        num_rows = source.num_rows(stream)
        series = source.series_part(stream, name) if num_rows and base + num_rows > view.after_row else None
        if series is not None and len(series.mark_rows):
            is_new = series.mark_rows >= view.after_row - base
            positions.append(source.rows(stream).column(view.column)[series.mark_rows[is_new]])
            kinds.append(series.mark_kinds[is_new])
        base += num_rows
    if not positions:
        return []
    x, kind = np.concatenate(positions), np.concatenate(kinds)
    in_view = ~np.isnan(x) & _within(x, view.low, view.high)
    x, kind = x[in_view], kind[in_view]
    marks = []
    for index, text in enumerate(MARK_KINDS):
        mark_x, counts = np.unique(x[kind == index], return_counts=True)
        if len(mark_x) > _MAX_MARKS:
            edges = np.linspace(mark_x[0], mark_x[-1], _MAX_MARKS + 1)
            first = np.unique(np.searchsorted(mark_x, edges[:-1]))
            mark_x, counts = mark_x[first], np.add.reduceat(counts, first)
        marks += [Mark(float(position), text, int(count)) for position, count in zip(mark_x, counts, strict=True)]
    return marks


def iter_points(
    name: str, rows: StreamRows, series: SeriesPart, column: Column, low: float | None, high: float | None
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all points of a series in one source in blocks, including NaN and infinite values.

    A point is its name, attempt, step, time, epoch and value; with computed positions, its position precedes its value.
    Holds one block at a time: the consumer may take a long time, or stop before the end.
    """
    firsts = np.array([attempt_range.first for attempt_range in rows.ranges])
    attempts = np.array([attempt_range.attempt for attempt_range in rows.ranges])
    num_values, num_marks = len(series.values), len(series.mark_rows)
    value, mark = 0, 0
    while value < num_values or mark < num_marks:
        # Merge the next values and the next marks by row, up to the row that both have reached.
        value_rows = series.rows_at(np.arange(value, min(value + _BLOCK_POINTS, num_values)))
        mark_rows = series.mark_rows[mark : mark + _BLOCK_POINTS]
        last = min(
            value_rows[-1] if value + len(value_rows) < num_values else np.inf,
            mark_rows[-1] if mark + len(mark_rows) < num_marks else np.inf,
        )
        value_end = value + int(np.searchsorted(value_rows, last, side="right"))
        mark_end = mark + int(np.searchsorted(mark_rows, last, side="right"))
        row = np.concatenate([value_rows[: value_end - value], mark_rows[: mark_end - mark]]).astype(np.int64)
        values = np.concatenate([series.values[value:value_end], _MARK_VALUES[series.mark_kinds[mark:mark_end]]])
        value, mark = value_end, mark_end
        order = np.argsort(row, kind="stable")
        row, values = row[order], values[order]
        epochs = np.full(len(row), np.nan) if rows.epoch is None else rows.epoch[row]
        x = epochs if column == "epoch" else rows.column(column)[row]
        keep = _within(x, low, high)
        row, values, epochs = row[keep], values[keep], epochs[keep]
        if not len(row):
            continue
        columns: tuple[list[Any], ...] = (
            [name] * len(row),
            attempts[np.searchsorted(firsts, row, side="right") - 1].tolist(),
            rows.step[row].tolist(),
            rows.time[row].tolist(),
            epochs.tolist(),
            *([x[keep].tolist()] if column == "position" else []),
            values.tolist(),
        )
        yield list(zip(*columns, strict=True))


def _within(x: npt.NDArray[Any], low: float | None, high: float | None) -> npt.NDArray[np.bool_]:
    keep = np.ones(len(x), dtype=bool)
    if low is not None:
        keep &= x >= low
    if high is not None:
        keep &= x <= high
    return keep


def _first_known_epoch(x: npt.NDArray[Any], begin: int, end: int) -> int:
    """Return the first row with a known epoch by binary search; the rows before it are NaN."""
    while begin < end:
        middle = (begin + end) // 2
        if np.isnan(x[middle]):
            begin = middle + 1
        else:
            end = middle
    return begin


def _value_bounds(
    series: SeriesPart, x: npt.NDArray[Any], first_row: int, end_row: int, view: View
) -> tuple[int, int, int, int]:
    """Return four value indexes: first of the rows, first and end of the view, end of the rows."""
    within = x[first_row:end_row]
    begin = first_row if view.low is None else first_row + _find(within, view.low, "left")
    end = end_row if view.high is None else first_row + _find(within, view.high, "right")
    return (
        series.position(first_row),
        series.position(begin),
        series.position(max(begin, end)),
        series.position(end_row),
    )


def _find(x: npt.NDArray[Any], position: float, side: Literal["left", "right"]) -> int:
    """Binary search. Searches integers by an integer; a float would make numpy convert the whole array."""
    if x.dtype.kind == "i":
        whole = math.ceil(position) if side == "left" else math.floor(position)
        return int(np.searchsorted(x, np.int64(min(max(whole, -(2**62)), 2**62)), side=side))
    return int(np.searchsorted(x, position, side=side))


def _sorted_line(stream: str, attempt: int, slices: list[_Slice], view: View) -> Line | None:
    slices = _with_neighbours(slices)
    num_points = sum(piece.end - piece.begin for piece in slices)
    if not num_points:
        return None
    # Two chunks or more per point: reading each point would not make the line finer.
    is_coarse = num_points > min(MAX_RAW_POINTS, max(MIN_COARSE_POINTS, CHUNK * view.num_points))
    candidates = [_candidates(piece, view.column, is_coarse=is_coarse) for piece in slices]
    indexes = choose_extremes(
        np.concatenate([each.x for each in candidates]),
        np.concatenate([each.y for each in candidates]),
        view.num_points,
    )
    xs, ys, gaps = [], [], []
    begin = 0
    for piece, points in zip(slices, candidates, strict=True):
        selection = indexes[(indexes >= begin) & (indexes < begin + len(points.y))] - begin
        begin += len(points.y)
        row = piece.part.rows_at(points.position[selection])
        xs.append(piece.rows.column(view.column)[row].astype(np.float64))
        ys.append(points.y[selection])
        gaps.append(np.searchsorted(piece.part.mark_rows, row) + piece.num_marks_before)
    means = _means(slices, candidates, view) if len(indexes) < num_points else ([], [], [])
    x, y = np.concatenate(xs), np.concatenate(ys)
    line_x, line_y = break_at_marks(x, y, np.concatenate(gaps))
    if view.after_row and _follows_mark(slices[0]):
        line_x.insert(0, line_x[0])
        line_y.insert(0, None)
    return Line(stream, attempt, line_x, line_y, means[0], means[1], means[2], num_points)


def _follows_mark(piece: _Slice) -> bool:
    """Return whether a mark lies between the first point of a slice and the point before it."""
    row = int(piece.part.rows_at(np.array([piece.begin]))[0])
    before = int(piece.part.rows_at(np.array([piece.begin - 1]))[0]) if piece.begin else -1
    return bool(((piece.part.mark_rows > before) & (piece.part.mark_rows < row)).any())


def _unsorted_line(stream: str, attempt: int, slices: list[_Slice], view: View) -> Line | None:
    """Return a line whose positions decrease somewhere, such as steps that restart each epoch."""
    rows = [piece.part.rows_at(np.arange(piece.first, piece.last)) for piece in slices]
    x = np.concatenate(
        [piece.rows.column(view.column)[row].astype(np.float64) for piece, row in zip(slices, rows, strict=True)]
    )
    y = np.concatenate([piece.part.values[piece.first : piece.last] for piece in slices])
    has_position = ~np.isnan(x)
    if view.keeps_order and (np.diff(x[has_position]) < 0).any():
        num_marks_before = np.concatenate(
            [
                np.searchsorted(piece.part.mark_rows, row) + piece.num_marks_before
                for piece, row in zip(slices, rows, strict=True)
            ]
        )
        return _ordered_line(stream, attempt, x[has_position], y[has_position], num_marks_before[has_position], view)
    keep = has_position & _within(x, view.low, view.high)
    x, y = x[keep], y[keep]
    if not len(x):
        return None
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    indexes = choose_extremes(x, y, view.num_points)
    means = bucket_means(x, y, np.ones(len(x), dtype=np.int64), view) if len(indexes) < len(x) else ([], [], [])
    marks = [piece.rows.column(view.column)[piece.part.mark_rows] for piece in slices]
    line_x, line_y = break_at_marks(x[indexes], y[indexes], np.searchsorted(np.sort(np.concatenate(marks)), x[indexes]))
    return Line(stream, attempt, line_x, line_y, means[0], means[1], means[2], len(x))


def _ordered_line(
    stream: str, attempt: int, x: Floats, y: Floats, num_marks_before: Integers, view: View
) -> Line | None:
    """Return a line in the order of its records, interrupted where it leaves the view."""
    is_inside = _within(x, view.low, view.high)
    keep = is_inside.copy()  # with the points just before and after, so that the line runs to the edges
    keep[1:] |= is_inside[:-1]
    keep[:-1] |= is_inside[1:]
    num_breaks_before = (num_marks_before + np.cumsum(~keep))[keep]
    x, y = x[keep], y[keep]
    if not len(x):
        return None
    indexes = np.arange(len(x))
    if len(x) > max(8, view.num_points):
        half = view.num_points // 2
        indexes = np.union1d(choose_extremes(indexes, y, half), choose_extremes(indexes, x, half))
    line_x, line_y = break_at_marks(x[indexes], y[indexes], num_breaks_before[indexes])
    return Line(stream, attempt, line_x, line_y, [], [], [], len(x))


def _with_neighbours(slices: list[_Slice]) -> list[_Slice]:
    """Include the points just before and after the view, so that lines run to its edges."""
    slices = list(slices)
    before = next((index for index, piece in enumerate(slices) if piece.begin < piece.last), len(slices))
    if before < len(slices) and slices[before].begin > slices[before].first:
        slices[before] = slices[before]._replace(begin=slices[before].begin - 1)
    elif before > 0:
        piece = slices[before - 1]
        slices[before - 1] = piece._replace(begin=piece.last - 1, end=piece.last)
    after = next((index for index in reversed(range(len(slices))) if slices[index].end > slices[index].first), -1)
    if after >= 0 and slices[after].end < slices[after].last:
        slices[after] = slices[after]._replace(end=slices[after].end + 1)
    elif after + 1 < len(slices):
        piece = slices[after + 1]
        slices[after + 1] = piece._replace(begin=piece.first, end=piece.first + 1)
    return [piece for piece in slices if piece.end > piece.begin]


def _candidates(piece: _Slice, column: Column, *, is_coarse: bool) -> _Candidates:
    part, summary = piece.part, piece.part.summary
    # Exclude the chunks of the first and last point, so the line starts and ends exactly there.
    first_chunk, last_chunk = piece.begin // CHUNK + 1, (piece.end - 1) // CHUNK
    if not is_coarse or summary is None or last_chunk <= first_chunk:
        positions = np.arange(piece.begin, piece.end)
        x = piece.rows.column(column)[part.rows_at(positions)]
        return _Candidates(x, part.values[piece.begin : piece.end], positions, None, 0)
    chunks = slice(first_chunk, last_chunk)
    starts = np.arange(first_chunk, last_chunk) * CHUNK
    low_at, high_at = starts + summary.low_at[chunks], starts + summary.high_at[chunks]
    low_first = low_at <= high_at
    extremes = np.stack([np.where(low_first, low_at, high_at), np.where(low_first, high_at, low_at)], axis=1).ravel()
    low, high = summary.low[chunks], summary.high[chunks]
    values = np.stack([np.where(low_first, low, high), np.where(low_first, high, low)], axis=1).ravel()
    head, tail = np.arange(piece.begin, first_chunk * CHUNK), np.arange(last_chunk * CHUNK, piece.end)
    position = piece.rows.column(column)
    x = np.concatenate(
        [position[part.rows_at(head)], np.repeat(getattr(summary, column)[chunks], 2), position[part.rows_at(tail)]]
    )
    y = np.concatenate([part.values[head], values, part.values[tail]])
    return _Candidates(x, y, np.concatenate([head, extremes, tail]), chunks, len(head))


def choose_extremes(x: npt.NDArray[Any], y: Floats, num_points: int) -> Integers:
    """Return the indexes of the points to draw: all, or the minimum and maximum of each bucket and both ends."""
    if len(y) <= max(8, num_points):
        return np.arange(len(y))
    num_points = max(8, num_points // 2 * 2)  # the downsampler needs an even number
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    # Buckets of equal width need an x range; points at one position are divided by count.
    if x[-1] > x[0]:
        extremes = _downsampler().downsample(x, y, n_out=num_points)
    else:
        extremes = _downsampler().downsample(y, n_out=num_points)
    indexes = np.sort(np.concatenate([[0], extremes.astype(np.int64), [len(y) - 1]]))
    return indexes[np.diff(indexes, prepend=-1) > 0]  # several times as fast as `np.unique`


Means = tuple[list[float], list[float], list[int]]


def _means(slices: list[_Slice], candidates: list[_Candidates], view: View) -> Means:
    xs, means, counts = [], [], []
    for piece, points in zip(slices, candidates, strict=True):
        if points.chunks is None:
            xs.append(points.x)
            means.append(points.y)
            counts.append(np.ones(len(points.y), dtype=np.int64))
            continue
        summary = piece.part.summary
        assert summary is not None  # noqa: S101 - the chunks come from it
        num_chunks = points.chunks.stop - points.chunks.start
        behind = points.num_before + 2 * num_chunks
        xs += [points.x[: points.num_before], getattr(summary, view.column)[points.chunks], points.x[behind:]]
        means += [points.y[: points.num_before], summary.mean[points.chunks], points.y[behind:]]
        counts += [np.full(len(part), size) for part, size in zip(xs[-3:], (1, CHUNK, 1), strict=True)]
    return bucket_means(np.concatenate(xs), np.concatenate(means), np.concatenate(counts), view)


def bucket_means(x: npt.NDArray[Any], means: Floats, counts: Integers, view: View) -> Means:
    """Return middles, means and counts of intervals of equal width, given means of some points at each position."""
    num_buckets = max(4, view.num_points // 4)
    edges = np.linspace(float(x[0]), float(x[-1]), num_buckets + 1)[:-1]
    first = np.searchsorted(x, edges)
    first = first[np.diff(first, prepend=-1) > 0]
    sizes = np.add.reduceat(counts, first)
    # Weighted means of means. Weights are divided first, so that large values do not overflow.
    shares = counts / np.repeat(sizes, np.diff(np.append(first, len(x))))
    middles = (x[first].astype(np.float64) + x[np.append(first[1:], len(x)) - 1]) / 2
    return middles.tolist(), np.add.reduceat(means * shares, first).tolist(), sizes.tolist()


def break_at_marks(x: Floats, y: Floats, num_marks_before: Integers) -> tuple[list[float], list[float | None]]:
    """Insert a break between two points if a mark lies between them."""
    breaks = np.flatnonzero(np.diff(num_marks_before) > 0)
    xs: list[float] = x.tolist()
    ys: list[float | None] = y.tolist()
    for index in reversed(breaks.tolist()):  # from the end, so that earlier indexes stay valid
        xs.insert(index + 1, (xs[index] + xs[index + 1]) / 2)
        ys.insert(index + 1, None)
    return xs, ys
