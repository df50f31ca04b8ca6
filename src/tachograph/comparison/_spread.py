"""Measure how much repeated runs differ, if a few of them do not belong to the rest.

Two slow runs among ten, or a regression that was reverted, would count as noise and hide the next regression. So a
minority far away from all others, by a test that hardly ever excludes runs of a normal distribution, is left out of
the standard deviation. It shows nevertheless that a single run can be that far off: the largest deviation is kept, and
a difference counts only beyond it. Earlier runs are also divided where their level changed for good.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tachograph.comparison._changes import find_changes
from tachograph.comparison._evidence import Floats
from tachograph.comparison._student import student_quantile

__all__ = ["EarlierSpread", "Spread", "measure_spread", "spread_of_earlier"]

_MIN_RUNS = 5
_ERROR_SHARE = 0.001
_MAX_DEGREES = 20


class Spread(NamedTuple):
    """The spread of levels."""

    mean: float
    """The mean of the runs that belong together."""
    squares: float
    """The sum of their squared deviations."""
    num_runs: int
    max_deviation: float = 0.0
    """How far the run farthest off is from the mean; 0 if all belong together."""


class EarlierSpread(NamedTuple):
    """The spread of earlier runs around the level of their time."""

    sd: float
    degrees: float
    max_deviation: float


def measure_spread(levels: Sequence[float]) -> Spread:
    """Measure the spread of levels; with five or more, without a minority that is far away from the rest."""
    values = np.asarray(levels, dtype=np.float64)
    count = len(values)
    if count >= _MIN_RUNS:
        by_distance = values[np.argsort(np.abs(values - np.median(values)), kind="stable")]
        # Many exceptions first: with one left out of two, the other one makes the spread so large that it fits.
        for num_usual in range(count // 2 + 1, count):
            usual, exceptions = by_distance[:num_usual], by_distance[num_usual:]
            probability = 1 - _ERROR_SHARE / count
            limit = student_quantile(probability, num_usual - 1) * usual.std(ddof=1) * math.sqrt(1 + 1 / num_usual)
            distances = np.abs(exceptions - usual.mean())
            if distances.min() > limit:
                return _spread(usual, float(distances.max()))
    return _spread(values, 0.0)


def _spread(values: Floats, max_deviation: float) -> Spread:
    mean = math.fsum(values) / len(values)
    return Spread(mean, math.fsum((value - mean) ** 2 for value in values.tolist()), len(values), max_deviation)


def spread_of_earlier(levels: Sequence[float], margin: float) -> EarlierSpread | None:
    """Measure the spread of earlier runs, oldest first, between changes of their level; None with too few runs."""
    positions = [change.position for change in find_changes(levels, margin)]
    edges = [0, *positions, len(levels)]
    stretches = [measure_spread(levels[start:end]) for start, end in itertools.pairwise(edges) if end > start]
    # A change costs two degrees of freedom: the level after it and its place, which was chosen to fit.
    degrees = sum(stretch.num_runs - 1 for stretch in stretches) - len(positions)
    if degrees < 1:
        return None
    sd = math.sqrt(math.fsum(stretch.squares for stretch in stretches) / degrees)
    return EarlierSpread(sd, float(min(degrees, _MAX_DEGREES)), max(stretch.max_deviation for stretch in stretches))
