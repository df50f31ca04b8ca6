"""From columns to the points of a chart: as many as there are pixels, with every extreme among them.

Wide views are made of the summaries of chunks, narrow ones of the points themselves; both give points that were really
recorded, and the same ones each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxDownsampler

from tachograph.store._columns import AXES, CHUNK, MARK_KINDS, Axis, Floats, Integers, Rows, SeriesPart, Stretch
from tachograph.store._tail import SeriesStats

__all__ = ["Line", "Mark", "Part", "View", "lines_of", "marks_of", "points_of"]

_MOST_RAW_POINTS = 1 << 18
_MOST_MARKS = 500
_BLOCK_POINTS = 10_000
_MARK_VALUES = np.array([float(kind) for kind in MARK_KINDS])
_downsampler = MinMaxDownsampler()  # type: ignore[no-untyped-call]


class Part(Protocol):
    """A segment, or the tail."""

    @property
    def streams(self) -> list[str]:
        """The names of the streams, in order of appearance."""
        ...

    @property
    def series(self) -> list[tuple[str, str]]:
        """Stream and name of each series, in order of appearance."""
        ...

    def stats(self, stream: str, name: str) -> SeriesStats | None:
        """Return a series in a few numbers, if it is here."""
        ...

    def rows(self, stream: str) -> Rows:
        """Return where the points of a stream lie."""
        ...

    def num_rows(self, stream: str) -> int:
        """Return how many rows a stream has here."""
        ...

    def part(self, stream: str, name: str) -> SeriesPart | None:
        """Return a series, as far as it is here."""
        ...


class View(NamedTuple):
    """What is to be seen of a series."""

    axis: Axis = "step"
    low: float | None = None
    high: float | None = None
    num_points: int = 2_000
    after_row: int = 0
    """Leave out the rows before this one."""


class Line(msgspec.Struct):
    """Points to be joined; all of one attempt."""

    stream: str
    attempt: int
    x: list[float]
    y: list[float | None]
    """None where the line is broken, because the value was no finite number there."""
    mean_x: list[float]
    mean_y: list[float]
    mean_count: list[int]
    """The means of equal stretches, and over how many points; empty where every point is in `x` and `y`."""
    num_points: int
    """How many points were recorded in this stretch."""


class Mark(msgspec.Struct):
    """A place where a value was no finite number."""

    x: float
    kind: str
    count: int


class _Slice(NamedTuple):
    """Some values of a part, all of one attempt."""

    rows: Rows
    part: SeriesPart
    num_marks_before: int
    """Marks in the parts before this one."""
    first_row: int
    end_row: int
    first: int
    begin: int
    end: int
    last: int
    """The attempt has the values from `first` up to `last`; those from `begin` up to `end` are in the view."""


class _Candidates(NamedTuple):
    x: npt.NDArray[Any]
    """Where the point lies, or the chunk that it is of begins."""
    y: Floats
    position: Integers
    """Which value of the part."""
    chunks: slice | None
    """The chunks that are in it, in place of their points."""
    num_before: int
    """How many points lie before those chunks."""


def lines_of(parts: Sequence[Part], stream: str, name: str, view: View) -> list[Line]:
    """Return the lines of a series in a view, one for each attempt that has a point in it."""
    attempts: dict[int, _OfAttempt] = {}
    base, num_marks = 0, 0
    for part in parts:
        num_rows = part.num_rows(stream)
        series = part.part(stream, name) if num_rows and base + num_rows > view.after_row else None
        if series is not None:
            for stretch, piece in _slices(part.rows(stream), series, view, view.after_row - base, num_marks):
                attempts.setdefault(stretch.attempt, _OfAttempt()).add(stretch, piece, view.axis)
            num_marks += len(series.mark_rows)
        base += num_rows
    lines = []
    for attempt, found in attempts.items():
        make = _sorted_line if found.is_sorted else _unsorted_line
        line = make(stream, attempt, found.slices, view)
        if line is not None:
            lines.append(line)
    return lines


class _OfAttempt:
    """The slices of one attempt, and whether they lie one after the other along the axis."""

    def __init__(self) -> None:
        self.slices: list[_Slice] = []
        self.is_sorted = True
        self._last_x = -np.inf

    def add(self, stretch: Stretch, piece: _Slice, axis: Axis) -> None:
        x = piece.rows.axis(axis)
        self.is_sorted &= stretch.sorted_by[AXES.index(axis)] and self._last_x <= float(x[piece.first_row])
        self._last_x = float(x[piece.end_row - 1])
        self.slices.append(piece)


def _slices(
    rows: Rows, series: SeriesPart, view: View, after_row: int, num_marks_before: int
) -> Iterator[tuple[Stretch, _Slice]]:
    """Yield what a part has of a series, attempt by attempt."""
    x = rows.axis(view.axis)
    ends = [stretch.first for stretch in rows.stretches[1:]] + [len(x)]
    for stretch, end_row in zip(rows.stretches, ends, strict=True):
        first_row = max(stretch.first, after_row)
        if view.axis == "epoch":
            first_row = _first_known(x, first_row, end_row)
        if first_row < end_row:
            places = _places(series, x, first_row, end_row, view)
            piece = _Slice(rows, series, num_marks_before, first_row, end_row, *places)
            if piece.last > piece.first:
                yield stretch, piece


def marks_of(parts: Sequence[Part], stream: str, name: str, view: View) -> list[Mark]:
    """Return where values were not finite: all such places, or so many that they fill the view."""
    positions, kinds = [], []
    base = 0
    for part in parts:
        num_rows = part.num_rows(stream)
        series = part.part(stream, name) if num_rows and base + num_rows > view.after_row else None
        if series is not None and len(series.mark_rows):
            seen = series.mark_rows >= view.after_row - base
            positions.append(part.rows(stream).axis(view.axis)[series.mark_rows[seen]])
            kinds.append(series.mark_kinds[seen])
        base += num_rows
    if not positions:
        return []
    x, kind = np.concatenate(positions), np.concatenate(kinds)
    in_view = ~np.isnan(x) & _within(x, view.low, view.high)
    x, kind = x[in_view], kind[in_view]
    marks = []
    for index, text in enumerate(MARK_KINDS):
        places, counts = np.unique(x[kind == index], return_counts=True)
        if len(places) > _MOST_MARKS:
            edges = np.linspace(places[0], places[-1], _MOST_MARKS + 1)
            first = np.unique(np.searchsorted(places, edges[:-1]))
            places, counts = places[first], np.add.reduceat(counts, first)
        marks += [Mark(float(place), text, int(count)) for place, count in zip(places, counts, strict=True)]
    return marks


def points_of(
    name: str, rows: Rows, series: SeriesPart, axis: Axis, low: float | None, high: float | None
) -> Iterator[list[tuple[str, int, int, float, float, float]]]:
    """Yield every point of a part in blocks, those that are not finite in their places."""
    row = np.concatenate([series.rows_at(np.arange(len(series.values))), series.mark_rows]).astype(np.int64)
    value = np.concatenate([series.values, _MARK_VALUES[series.mark_kinds]])
    order = np.argsort(row, kind="stable")
    row, value = row[order], value[order]
    x = rows.axis(axis)[row]
    keep = _within(x, low, high)
    row, value = row[keep], value[keep]
    firsts = np.array([stretch.first for stretch in rows.stretches])
    attempts = np.array([stretch.attempt for stretch in rows.stretches])
    for begin in range(0, len(row), _BLOCK_POINTS):
        block = row[begin : begin + _BLOCK_POINTS]
        columns = (
            [name] * len(block),
            attempts[np.searchsorted(firsts, block, side="right") - 1].tolist(),
            rows.step[block].tolist(),
            rows.time[block].tolist(),
            rows.axis("epoch")[block].tolist(),
            value[begin : begin + _BLOCK_POINTS].tolist(),
        )
        yield list(zip(*columns, strict=True))


def _within(x: npt.NDArray[Any], low: float | None, high: float | None) -> npt.NDArray[np.bool_]:
    keep = np.ones(len(x), dtype=bool)
    if low is not None:
        keep &= x >= low
    if high is not None:
        keep &= x <= high
    return keep


def _first_known(x: npt.NDArray[Any], begin: int, end: int) -> int:
    """Return the first row whose epoch is known; those before it are NaN."""
    while begin < end:
        middle = (begin + end) // 2
        if np.isnan(x[middle]):
            begin = middle + 1
        else:
            end = middle
    return begin


def _places(
    series: SeriesPart, x: npt.NDArray[Any], first_row: int, end_row: int, view: View
) -> tuple[int, int, int, int]:
    """Return where the values of some rows begin, where those in the view begin and end, and where all end."""
    within = x[first_row:end_row]
    begin = first_row if view.low is None else first_row + _find(within, view.low, "left")
    end = end_row if view.high is None else first_row + _find(within, view.high, "right")
    return (
        series.position(first_row),
        series.position(begin),
        series.position(max(begin, end)),
        series.position(end_row),
    )


def _find(x: npt.NDArray[Any], place: float, side: Literal["left", "right"]) -> int:
    """Return where a place lies. A whole number is sought among whole numbers, or all of them would be converted."""
    if x.dtype.kind == "i":
        whole = math.ceil(place) if side == "left" else math.floor(place)
        return int(np.searchsorted(x, np.int64(min(max(whole, -(2**62)), 2**62)), side=side))
    return int(np.searchsorted(x, place, side=side))


def _sorted_line(stream: str, attempt: int, slices: list[_Slice], view: View) -> Line | None:
    slices = _with_neighbours(slices)
    num_points = sum(piece.end - piece.begin for piece in slices)
    if not num_points:
        return None
    is_coarse = num_points > _MOST_RAW_POINTS
    candidates = [_candidates(piece, view.axis, is_coarse=is_coarse) for piece in slices]
    chosen = _choose(
        np.concatenate([found.x for found in candidates]), np.concatenate([found.y for found in candidates]), view
    )
    xs, ys, gaps = [], [], []
    begin = 0
    for piece, found in zip(slices, candidates, strict=True):
        mine = chosen[(chosen >= begin) & (chosen < begin + len(found.y))] - begin
        begin += len(found.y)
        row = piece.part.rows_at(found.position[mine])
        xs.append(piece.rows.axis(view.axis)[row].astype(np.float64))
        ys.append(found.y[mine])
        gaps.append(np.searchsorted(piece.part.mark_rows, row) + piece.num_marks_before)
    means = _means(slices, candidates, view) if len(chosen) < num_points else ([], [], [])
    x, y = np.concatenate(xs), np.concatenate(ys)
    places, values = _broken(x, y, np.concatenate(gaps))
    if view.after_row and _follows_a_mark(slices[0]):
        places.insert(0, places[0])
        values.insert(0, None)
    return Line(stream, attempt, places, values, means[0], means[1], means[2], num_points)


def _follows_a_mark(piece: _Slice) -> bool:
    """Tell whether a value that was not finite lies between the first point of a slice and the one before it."""
    row = int(piece.part.rows_at(np.array([piece.begin]))[0])
    before = int(piece.part.rows_at(np.array([piece.begin - 1]))[0]) if piece.begin else -1
    return bool(((piece.part.mark_rows > before) & (piece.part.mark_rows < row)).any())


def _unsorted_line(stream: str, attempt: int, slices: list[_Slice], view: View) -> Line | None:
    """Draw what goes back and forth along the axis, such as steps that begin anew each epoch."""
    x = np.concatenate(
        [
            piece.rows.axis(view.axis)[piece.part.rows_at(np.arange(piece.first, piece.last))].astype(np.float64)
            for piece in slices
        ]
    )
    y = np.concatenate([piece.part.values[piece.first : piece.last] for piece in slices])
    keep = ~np.isnan(x) & _within(x, view.low, view.high)
    x, y = x[keep], y[keep]
    if not len(x):
        return None
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    chosen = _choose(x, y, view)
    means = _bucket_means(x, y, np.ones(len(x), dtype=np.int64), view) if len(chosen) < len(x) else ([], [], [])
    marks = [piece.rows.axis(view.axis)[piece.part.mark_rows] for piece in slices]
    places, values = _broken(x[chosen], y[chosen], np.searchsorted(np.sort(np.concatenate(marks)), x[chosen]))
    return Line(stream, attempt, places, values, means[0], means[1], means[2], len(x))


def _with_neighbours(slices: list[_Slice]) -> list[_Slice]:
    """Add the point before the view and the one after it, so that lines run to its edges."""
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


def _candidates(piece: _Slice, axis: Axis, *, is_coarse: bool) -> _Candidates:
    part, summary = piece.part, piece.part.summary
    # Never of the first or the last point: a line begins and ends where it does.
    first_chunk, last_chunk = piece.begin // CHUNK + 1, (piece.end - 1) // CHUNK
    if not is_coarse or summary is None or last_chunk <= first_chunk:
        positions = np.arange(piece.begin, piece.end)
        x = piece.rows.axis(axis)[part.rows_at(positions)]
        return _Candidates(x, part.values[piece.begin : piece.end], positions, None, 0)
    chunks = slice(first_chunk, last_chunk)
    starts = np.arange(first_chunk, last_chunk) * CHUNK
    low_at, high_at = starts + summary.low_at[chunks], starts + summary.high_at[chunks]
    low_first = low_at <= high_at
    ordered = np.stack([np.where(low_first, low_at, high_at), np.where(low_first, high_at, low_at)], axis=1).ravel()
    low, high = summary.low[chunks], summary.high[chunks]
    values = np.stack([np.where(low_first, low, high), np.where(low_first, high, low)], axis=1).ravel()
    head, tail = np.arange(piece.begin, first_chunk * CHUNK), np.arange(last_chunk * CHUNK, piece.end)
    position = piece.rows.axis(axis)
    x = np.concatenate(
        [position[part.rows_at(head)], np.repeat(getattr(summary, axis)[chunks], 2), position[part.rows_at(tail)]]
    )
    y = np.concatenate([part.values[head], values, part.values[tail]])
    return _Candidates(x, y, np.concatenate([head, ordered, tail]), chunks, len(head))


def _choose(x: npt.NDArray[Any], y: Floats, view: View) -> Integers:
    """Return which points to draw: all, or the lowest and the highest of each stretch, and both ends."""
    num_points = max(8, view.num_points // 2 * 2)
    if len(y) <= num_points:
        return np.arange(len(y))
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    if x[-1] > x[0]:
        chosen = _downsampler.downsample(x, y, n_out=num_points)
    else:
        chosen = _downsampler.downsample(y, n_out=num_points)
    return np.unique(np.concatenate([[0], chosen.astype(np.int64), [len(y) - 1]]))


Means = tuple[list[float], list[float], list[int]]


def _means(slices: list[_Slice], candidates: list[_Candidates], view: View) -> Means:
    xs, means, counts = [], [], []
    for piece, found in zip(slices, candidates, strict=True):
        if found.chunks is None:
            xs.append(found.x)
            means.append(found.y)
            counts.append(np.ones(len(found.y), dtype=np.int64))
            continue
        summary = piece.part.summary
        assert summary is not None  # noqa: S101 - chunks come from it
        num_chunks = found.chunks.stop - found.chunks.start
        behind = found.num_before + 2 * num_chunks
        xs += [found.x[: found.num_before], getattr(summary, view.axis)[found.chunks], found.x[behind:]]
        means += [found.y[: found.num_before], summary.mean[found.chunks], found.y[behind:]]
        counts += [np.full(len(part), size) for part, size in zip(xs[-3:], (1, CHUNK, 1), strict=True)]
    return _bucket_means(np.concatenate(xs), np.concatenate(means), np.concatenate(counts), view)


def _bucket_means(x: npt.NDArray[Any], means: Floats, counts: Integers, view: View) -> Means:
    num_buckets = max(4, view.num_points // 4)
    edges = np.linspace(float(x[0]), float(x[-1]), num_buckets + 1)[:-1]
    first = np.unique(np.searchsorted(x, edges))
    sizes = np.add.reduceat(counts, first)
    shares = counts / np.repeat(sizes, np.diff(np.append(first, len(x))))
    middles = (x[first].astype(np.float64) + x[np.append(first[1:], len(x)) - 1]) / 2
    return middles.tolist(), np.add.reduceat(means * shares, first).tolist(), sizes.tolist()


def _broken(x: Floats, y: Floats, num_marks_before: Integers) -> tuple[list[float], list[float | None]]:
    """Break the line between two points if a value that was not finite lies between them."""
    places = np.flatnonzero(np.diff(num_marks_before) > 0)
    xs: list[float] = x.tolist()
    ys: list[float | None] = y.tolist()
    for place in reversed(places.tolist()):
        xs.insert(place + 1, (xs[place] + xs[place + 1]) / 2)
        ys.insert(place + 1, None)
    return xs, ys
