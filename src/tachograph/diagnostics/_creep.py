"""Detects a step time that grows a little all the time.

The levels of all blocks are kept as a few points. Over all of them, the later half or the latest quarter, the means of
four equal parts must rise, each by a fair share of the whole rise. A sudden change does not do that: most of its rise
lies between two parts.
"""

from __future__ import annotations

import itertools
import math
from operator import mul
from typing import NamedTuple

from tachograph.diagnostics._history import History

__all__ = ["Creep", "CreepDetector"]

_MIN_POINTS = 8
_MIN_BLOCKS = 16
"""Blocks over which a step time must grow: over fewer, other programs or the length of the data may be the cause."""
_MIN_PART = 0.15  # of the whole rise, between two neighbouring parts
_MIN_ERRORS = 5.0
"""Minimum rise in standard errors of the mean of a part: a step time that wanders rises now and then."""

_HIDDEN_SIMILARITY = 3.0
_MAX_SIMILARITY = 0.9


class Creep(NamedTuple):
    """A level that has grown gradually."""

    before: float
    after: float
    num_blocks: int
    """Number of blocks over which it grew."""


class CreepDetector:
    """Detects gradual growth; see the module docstring."""

    def __init__(self, min_share: float) -> None:
        self._min_share = min_share
        self._history = History()

    def clear(self) -> None:
        """Forget all levels."""
        self._history.clear()

    def copy(self) -> CreepDetector:
        """Return an independent copy."""
        other = CreepDetector(self._min_share)
        other._history = self._history.copy()
        return other

    def add_levels(self, levels: list[float]) -> bool:
        """Add the levels of several blocks; return whether none confirms a growth. The rest is left out then."""
        return self._history.add_to_point(levels) or all(self.add_level(level) is None for level in levels)

    def add_level(self, level: float) -> Creep | None:
        """Add the level of a block; return the growth it confirms, if any."""
        if not self._history.add(level):
            return None
        points = self._history.points
        if min(points) > 0 and max(points) < (1 + self._min_share) * min(points):
            return None  # no two parts can differ by as much
        num_points = len(points)
        while num_points >= _MIN_POINTS and num_points * self._history.num_merged >= _MIN_BLOCKS:
            parts = self._history.parts(num_points)
            rise = parts[-1] - parts[0]
            is_steady = all(later - earlier >= _MIN_PART * rise for earlier, later in itertools.pairwise(parts))
            is_high = parts[0] > 0 and rise >= self._min_share * parts[0]
            if is_high and is_steady and rise >= _MIN_ERRORS * _error(points[-num_points:], parts):
                creep = Creep(parts[0], parts[-1], num_points * self._history.num_merged)
                self._history.clear()
                return creep
            num_points //= 2
        return None


def _error(points: list[float], parts: list[float]) -> float:
    """Return the standard error of the mean of a quarter of the points, measured from a line through the means."""
    slope = (parts[-1] - parts[0]) / (0.75 * len(points))
    middle, mean = 0.5 * (len(points) - 1), sum(points) / len(points)
    residuals = [point - mean - slope * (index - middle) for index, point in enumerate(points)]
    square = sum(residual * residual for residual in residuals)
    if square <= 0:
        return 0.0
    # Neighbours are alike where other programs use the machine now and then, and the line hides some of that.
    similarity = sum(map(mul, residuals, residuals[1:])) / square + _HIDDEN_SIMILARITY / len(points)
    similarity = min(max(similarity, 0.0), _MAX_SIMILARITY)
    factor = math.sqrt((1 + similarity) / (1 - similarity))
    return factor * math.sqrt(square / len(points) / (0.25 * len(points)))
