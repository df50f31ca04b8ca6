"""The straight line through some points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

__all__ = ["slope_of"]


def slope_of(places: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the line through some points, and its standard error; infinite where there is no line."""
    count = len(values)
    mean_place, mean = sum(places) / count, sum(values) / count
    away = [place - mean_place for place in places]
    spread = sum(map(mul, away, away))  # unlike **, this never raises for what is huge
    if spread <= 0:
        return 0.0, math.inf
    slope = sum(map(mul, away, (value - mean for value in values))) / spread
    rest = [value - mean - slope * distance for value, distance in zip(values, away, strict=True)]
    return slope, math.sqrt(sum(map(mul, rest, rest)) / max(count - 2, 1) / spread)
