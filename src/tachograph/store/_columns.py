"""Columns: where points lie and what they say, as numpy arrays that may be views of a file.

A *stream* is a sequence of records that advance together: plain steps, windows of iterations, validations, samples of
the system. Its rows hold when and at which step each was. A *series* is one metric of a stream: finite values with the
rows they belong to, and apart from them the rows at which the value was NaN or infinite.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "AXES",
    "CHUNK",
    "MARK_KINDS",
    "Axis",
    "Floats",
    "Integers",
    "Rows",
    "SeriesPart",
    "Stretch",
    "Summary",
    "summarise",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]
Axis = Literal["step", "time", "epoch"]
AXES: tuple[Axis, ...] = ("step", "time", "epoch")

CHUNK = 128
"""Points that are summed up as one for wide views."""
MARK_KINDS = ("NaN", "Infinity", "-Infinity")


class Stretch(NamedTuple):
    """Rows of one attempt that follow each other."""

    attempt: int
    first: int
    """Its first row; it ends where the next one begins."""
    sorted_by: tuple[bool, bool, bool]
    """Whether step, time and epoch never go back in it."""


class Rows(NamedTuple):
    """Where the points of a stream lie."""

    step: Integers
    time: Floats
    epoch: Floats | None
    """The last epoch that was told; NaN before the first."""
    stretches: list[Stretch]

    def axis(self, axis: Axis) -> Floats | Integers:
        """Return the positions on an axis."""
        if axis == "epoch" and self.epoch is None:
            return np.full(len(self.step), np.nan)
        positions: Floats | Integers = getattr(self, axis)
        return positions


class Summary(NamedTuple):
    """Every `CHUNK` points of a series as one: the extremes, where they are, and the mean."""

    low: Floats
    high: Floats
    mean: Floats
    low_at: Integers
    high_at: Integers
    step: Integers
    """Where each chunk begins, on each axis."""
    time: Floats
    epoch: Floats


class SeriesPart(NamedTuple):
    """A stretch of one metric."""

    rows: Integers | range
    """The row of each value; a range where every row has one."""
    values: Floats
    mark_rows: Integers
    mark_kinds: npt.NDArray[np.uint8]
    """Indexes of `MARK_KINDS`."""
    summary: Summary | None = None

    def rows_at(self, positions: Integers) -> Integers:
        """Return the rows of some of the values."""
        return positions + self.rows.start if isinstance(self.rows, range) else self.rows[positions]

    def position(self, row: int) -> int:
        """Return the position of the first value at a row or after it."""
        if isinstance(self.rows, range):
            return min(max(row - self.rows.start, 0), len(self.rows))
        return int(np.searchsorted(self.rows, row))


def summarise(part: SeriesPart, rows: Rows) -> Summary:
    """Sum up whole chunks; the points after the last whole one are in none."""
    num_chunks = len(part.values) // CHUNK
    values = part.values[: num_chunks * CHUNK].reshape(num_chunks, CHUNK)
    low_at, high_at = values.argmin(axis=1), values.argmax(axis=1)
    first = part.rows_at(np.arange(0, num_chunks * CHUNK, CHUNK))
    return Summary(
        low=np.take_along_axis(values, low_at[:, None], axis=1)[:, 0],
        high=np.take_along_axis(values, high_at[:, None], axis=1)[:, 0],
        mean=(values / CHUNK).sum(axis=1),  # divided first: the sum of large numbers may be too large
        low_at=low_at.astype(np.uint8),
        high_at=high_at.astype(np.uint8),
        step=rows.step[first],
        time=rows.time[first],
        epoch=rows.epoch[first] if rows.epoch is not None else np.full(num_chunks, np.nan),
    )
