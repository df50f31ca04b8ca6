"""Linear regression with one variable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

__all__ = ["fit_slope"]


def fit_slope(positions: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the least-squares line and its standard error: infinite if all positions are equal."""
    count = len(values)
    mean_position, mean = sum(positions) / count, sum(values) / count
    distances = [position - mean_position for position in positions]
    spread = sum(map(mul, distances, distances))  # unlike **, multiplication of huge floats never raises
    if spread <= 0:
        return 0.0, math.inf
    deviations = [value - mean for value in values]
    slope = sum(map(mul, distances, deviations)) / spread
    residuals = [deviation - slope * distance for deviation, distance in zip(deviations, distances, strict=True)]
    return slope, math.sqrt(sum(map(mul, residuals, residuals)) / max(count - 2, 1) / spread)
