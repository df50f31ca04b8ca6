"""Find where a series of numbers changed its level.

The runs of a series are looked at one after the other, as they came. After each one, the last thirty runs since the
last change are split at every place with at least three runs on both sides, and the split with the largest t is a
change if that exceeds 6. Trying every split finds large values by chance, hence a limit that a single test would not
need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tachograph.comparison._evidence import Floats

__all__ = ["MIN_HISTORY", "Change", "find_changes"]

MIN_HISTORY = 10
_MAX_WINDOW = 30
_MIN_SIDE = 3
_MIN_T = 6.0


class Change(NamedTuple):
    """A place in a series from which on its level is another one."""

    position: int
    """The first value after the change."""
    found_at: int
    """The value with which it was found."""
    difference: float
    t: float


def find_changes(levels: Sequence[float] | Floats, margin: float) -> list[Change]:
    """Return the changes in a series of levels, which are logarithms, in the order in which they are found."""
    values = np.asarray(levels, dtype=np.float64)
    changes: list[Change] = []
    start = 0
    for end in range(MIN_HISTORY, len(values) + 1):
        low = max(start, end - _MAX_WINDOW)
        if end - low < MIN_HISTORY:
            continue
        split, difference, t = _best_split(values[low:end])
        if t > _MIN_T and abs(difference) >= math.log1p(margin):
            start = low + split
            changes.append(Change(start, end - 1, difference, t))
    return changes


def _best_split(values: Floats) -> tuple[int, float, float]:
    """Return the split with the largest t: the size of the first part, the difference of the means, and t."""
    count = len(values)
    deviations = values - values.mean()
    sizes = np.arange(_MIN_SIDE, count - _MIN_SIDE + 1)
    sums, squares = np.cumsum(deviations)[sizes - 1], np.cumsum(deviations**2)[sizes - 1]
    rest = count - sizes
    total, total_squares = deviations.sum(), (deviations**2).sum()
    difference = (total - sums) / rest - sums / sizes
    within = (squares - sums**2 / sizes) + (total_squares - squares - (total - sums) ** 2 / rest)
    # Rounding leaves a little where all values of a part are the same.
    sd = np.sqrt(np.maximum(within, 1e-16 * max(1.0, float(values.max() ** 2))) / (count - 2))
    t = np.abs(difference) / (sd * np.sqrt(1 / sizes + 1 / rest))
    best = int(np.argmax(t))
    return int(sizes[best]), float(difference[best]), float(t[best])
