"""Mean and range of one metric over several runs.

The mean is taken at positions that runs recorded, and only where at least two of them have a value; positions that no
run recorded never appear, and nothing is sampled at random. So the mean at a position depends on nothing but the values
of the runs there. Which axis is used decides when a run has a value:

- On an axis of counts (steps, samples, tokens, epochs), it has one at the positions that it recorded.
- On an axis of time, two runs never record at the same moment. There, a run has a value between its first and its last
  point, on the line that connects its points. The mean is taken at points of all runs, including the extremes of each.

The result is thinned to about `num_points` positions with min/max per bucket, of the mean and of both limits of the
range, so that every visible extreme remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tachograph.store._chart_lines import choose_extremes
from tachograph.store._columns import Floats, Integers

__all__ = ["GroupCurve", "average_lines"]

_MAX_TIMES = 20_000
_MIN_TIMES = 64
Points = tuple[Floats, Floats]


class GroupCurve(NamedTuple):
    """Mean and range of several runs at each position, and the number of runs with a value there."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    num_runs: Integers


def average_lines(members: Sequence[Points], *, is_continuous: bool, num_points: int) -> GroupCurve:
    """Return mean and range of runs.

    Args:
        members: positions, which increase, and values of each run. Runs with the same positions should share the array.
        is_continuous: whether values between the points of a run count.
        num_points: the approximate number of positions to return.
    """
    members = [points for points in members if len(points[0])]
    if len(members) == 1:
        x, y = members[0]
        curve = GroupCurve(x, y, y, y, np.ones(len(x), dtype=np.int64))
    else:
        curve = _average_between(members) if is_continuous else _average_at(members)
    if len(curve.x) <= num_points:
        return curve
    num_per_column = max(8, num_points // 3)
    indexes = np.unique(
        np.concatenate([choose_extremes(curve.x, y, num_per_column) for y in (curve.mean, curve.low, curve.high)])
    )
    return GroupCurve(*(column[indexes] for column in curve))


def _average_at(members: Sequence[Points]) -> GroupCurve:
    """Return mean and range at the positions that at least two runs recorded."""
    grids = {id(x): x for x, _ in members}
    positions = np.unique(np.concatenate(list(grids.values()))) if grids else np.empty(0)
    indexes = {key: None if len(x) == len(positions) else np.searchsorted(positions, x) for key, x in grids.items()}
    curve = _Accumulator(positions)
    for x, y in members:
        curve.add(indexes[id(x)], y)
    return curve.result(curve.count >= 2)


def _average_between(members: Sequence[Points]) -> GroupCurve:
    """Return mean and range at positions of points between the first and the last point of at least two runs."""
    max_samples = max(_MIN_TIMES, _MAX_TIMES // max(1, len(members)))
    samples = [x if len(x) <= max_samples else x[choose_extremes(x, y, max_samples)] for x, y in members]
    positions = np.unique(np.concatenate(samples)) if samples else np.empty(0)
    curve = _Accumulator(positions)
    for x, y in members:
        first, end = np.searchsorted(positions, x[0]), np.searchsorted(positions, x[-1], side="right")
        curve.add(slice(int(first), int(end)), np.interp(positions[first:end], x, y))
    return curve.result(curve.count >= 2)


class _Accumulator:
    def __init__(self, x: Floats) -> None:
        self._x = x
        self.count = np.zeros(len(x), dtype=np.int64)
        self._total = np.zeros(len(x))
        self._low, self._high = np.full(len(x), np.inf), np.full(len(x), -np.inf)

    def add(self, indexes: Integers | slice | None, y: Floats) -> None:
        """Add the values of a run at some positions, or at all."""
        at = slice(None) if indexes is None else indexes
        self.count[at] += 1
        self._total[at] += y
        self._low[at] = np.minimum(self._low[at], y)
        self._high[at] = np.maximum(self._high[at], y)

    def result(self, keep: npt.NDArray[np.bool_]) -> GroupCurve:
        x, count = self._x[keep], self.count[keep]
        with np.errstate(over="ignore"):
            return GroupCurve(x, self._total[keep] / count, self._low[keep], self._high[keep], count)
