"""Column types of the store: numpy arrays, which may be views of a memory-mapped file.

A *stream* is a sequence of records of one sort: plain steps, windows of iterations, validations, system samples. Each
record is a *row* with a step, a time and an epoch. A *series* is one metric of a stream: its finite values with the
rows they belong to and, separately, *marks*: the rows at which the value was NaN or infinite. Separating them keeps the
values free of NaN, so extremes and means need no special cases.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "CHUNK",
    "COLUMNS",
    "MARK_KINDS",
    "AnyAxis",
    "Axis",
    "Column",
    "Floats",
    "Integers",
    "MetricAxis",
    "StreamRows",
    "SeriesPart",
    "AttemptRange",
    "Summary",
    "summarise",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]
Axis = Literal["step", "time", "epoch", "samples", "tokens", "training_time"]


class MetricAxis(NamedTuple):
    """An axis on which each record lies where a metric is at its step.

    A record without the metric lies at the last value before it: of the records of the same attempt whose step is not
    larger, the one with the largest step counts. Before the first value, and where it is NaN or infinite, records have
    no place.
    """

    name: str


AnyAxis = Axis | MetricAxis
Column = Literal["step", "time", "epoch", "position"]
"""The column with the positions of rows on an axis: `position` for axes that are computed and not recorded."""
COLUMNS: tuple[Column, ...] = ("step", "time", "epoch", "position")

CHUNK = 128
"""The number of points summarised as one for wide views."""
MARK_KINDS = ("NaN", "Infinity", "-Infinity")


class AttemptRange(NamedTuple):
    """Consecutive rows of one attempt."""

    attempt: int
    first: int
    """The first row; the range ends at the first row of the next one."""
    sorted_by: tuple[bool, ...]
    """Whether step, time, epoch and position never decrease within the range; the last one only if it is computed."""


class StreamRows(NamedTuple):
    """The positions of the rows of a stream on each axis."""

    step: Integers
    time: Floats
    epoch: Floats | None
    """The last recorded epoch, NaN before the first; in queries, the position on the epoch axis."""
    ranges: list[AttemptRange]
    position: Floats | None = None
    """In queries, the position on a computed axis."""

    def column(self, column: Column) -> Floats | Integers:
        """Return the positions in a column; NaN if there are none."""
        positions: Floats | Integers | None = getattr(self, column)
        return np.full(len(self.step), np.nan) if positions is None else positions


class Summary(NamedTuple):
    """Extremes, their positions, and mean of every `CHUNK` points of a series."""

    low: Floats
    high: Floats
    mean: Floats
    low_at: Integers
    high_at: Integers
    step: Integers
    """The position of the first point of each chunk, on each axis."""
    time: Floats
    epoch: Floats
    position: Floats | None = None


class SeriesPart(NamedTuple):
    """The values of a series in one segment or in the tail."""

    rows: Integers | range
    """The row of each value; a range if every row has a value."""
    values: Floats
    mark_rows: Integers
    mark_kinds: npt.NDArray[np.uint8]
    """Indexes into `MARK_KINDS`."""
    summary: Summary | None = None

    def rows_at(self, positions: Integers) -> Integers:
        """Return the rows of the values at some positions."""
        return positions + self.rows.start if isinstance(self.rows, range) else self.rows[positions]

    def position(self, row: int) -> int:
        """Return the position of the first value at or after a row."""
        if isinstance(self.rows, range):
            return min(max(row - self.rows.start, 0), len(self.rows))
        return int(np.searchsorted(self.rows, row))


def summarise(part: SeriesPart, rows: StreamRows) -> Summary:
    """Summarise complete chunks; points after the last complete chunk are not included."""
    num_chunks = len(part.values) // CHUNK
    values = part.values[: num_chunks * CHUNK].reshape(num_chunks, CHUNK)
    low_at, high_at = values.argmin(axis=1), values.argmax(axis=1)
    first = part.rows_at(np.arange(0, num_chunks * CHUNK, CHUNK))
    return Summary(
        low=np.take_along_axis(values, low_at[:, None], axis=1)[:, 0],
        high=np.take_along_axis(values, high_at[:, None], axis=1)[:, 0],
        mean=(values / CHUNK).sum(axis=1),  # divide first: the sum of large numbers may overflow
        low_at=low_at.astype(np.uint8),
        high_at=high_at.astype(np.uint8),
        step=rows.step[first],
        time=rows.time[first],
        epoch=rows.epoch[first] if rows.epoch is not None else np.full(num_chunks, np.nan),
    )
