"""A summary of consecutive points: counts, range, extremes, sum, first and last.

Tiles and summaries are extents. An extent is a function of its points alone: it does not depend on how they were
divided into batches, so dropping the tables and inserting everything again gives the same numbers. For this, the sum
is kept as two floats, the second of which holds the rounding error of the first.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph.store import Floats

__all__ = ["Extent", "PointColumns", "extent_of"]


class PointColumns(msgspec.Struct, frozen=True):
    """Points of one series in the order of their records, NaN and infinities included."""

    offset: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    time: Floats
    value: Floats

    def __len__(self) -> int:
        return len(self.value)

    def part(self, selection: Any) -> PointColumns:
        """Return some of the points: a slice or a mask."""
        return PointColumns(self.offset[selection], self.step[selection], self.time[selection], self.value[selection])


class Extent(msgspec.Struct, array_like=True):
    """An extent. Without finite values, the extremes are infinite and the steps, times and offsets of them are 0."""

    n: int = 0
    nonfinite: int = 0
    offset_first: int = 0
    offset_last: int = 0
    step_first: int = 0
    step_last: int = 0
    step_min: int = 0
    step_max: int = 0
    time_first: float = math.nan
    time_last: float = math.nan
    first: float = math.nan
    last: float = math.nan
    low: float = math.inf
    high: float = -math.inf
    low_step: int = 0
    high_step: int = 0
    low_time: float = math.nan
    high_time: float = math.nan
    low_offset: int = 0
    high_offset: int = 0
    total: float = 0.0
    rest: float = 0.0
    """The exact sum of the finite values minus `total`."""

    def add(self, later: Extent) -> None:
        """Add the points after these."""
        if not later.n:
            return
        if not self.n:
            for name in self.__struct_fields__:
                setattr(self, name, getattr(later, name))
            return
        self.n += later.n
        self.nonfinite += later.nonfinite
        self.offset_last, self.step_last, self.time_last = later.offset_last, later.step_last, later.time_last
        self.step_min, self.step_max = min(self.step_min, later.step_min), max(self.step_max, later.step_max)
        self.last = later.last
        if later.low < self.low:
            self.low, self.low_step, self.low_time = later.low, later.low_step, later.low_time
            self.low_offset = later.low_offset
        if later.high > self.high:
            self.high, self.high_step, self.high_time = later.high, later.high_step, later.high_time
            self.high_offset = later.high_offset
        self.total, self.rest = _exact_sum([self.total, self.rest, later.total, later.rest])


def extent_of(points: PointColumns) -> Extent:
    """Return the extent of some points."""
    if not len(points):
        return Extent()
    value = points.value
    extent = Extent(
        n=len(value),
        offset_first=int(points.offset[0]),
        offset_last=int(points.offset[-1]),
        step_first=int(points.step[0]),
        step_last=int(points.step[-1]),
        step_min=int(points.step.min()),
        step_max=int(points.step.max()),
        time_first=float(points.time[0]),
        time_last=float(points.time[-1]),
        first=float(value[0]),
        last=float(value[-1]),
    )
    is_finite = np.isfinite(value)
    if not is_finite.all():
        points = points.part(is_finite)
        value = points.value
        extent.nonfinite = extent.n - len(value)
    if len(value):
        low, high = int(value.argmin()), int(value.argmax())
        extent.low, extent.high = float(value[low]), float(value[high])
        extent.low_step, extent.high_step = int(points.step[low]), int(points.step[high])
        extent.low_time, extent.high_time = float(points.time[low]), float(points.time[high])
        extent.low_offset, extent.high_offset = int(points.offset[low]), int(points.offset[high])
        extent.total, extent.rest = _exact_sum(value.tolist())
    return extent


def _exact_sum(values: list[float]) -> tuple[float, float]:
    """Return a sum as two floats; NaN if it is too large for one, or if it was before."""
    try:
        total = math.fsum(values)
        return (total, math.fsum([*values, -total])) if math.isfinite(total) else (math.nan, math.nan)
    except (OverflowError, ValueError):
        return math.nan, math.nan
