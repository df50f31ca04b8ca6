"""Detects a step time that grows a little all the time.

The levels of all blocks are kept as a few points. Over all of them, the later half or the latest quarter, the means of
four equal parts must rise, each by a fair share of the whole rise. A sudden change does not do that: most of its rise
lies between two parts.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from tachograph.diagnostics._history import History

__all__ = ["Creep", "CreepDetector"]

_MIN_POINTS = 8
_MIN_PART = 0.15  # of the whole rise, between two neighbouring parts


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
        while num_points >= _MIN_POINTS:
            parts = self._history.parts(num_points)
            rise = parts[-1] - parts[0]
            is_steady = all(later - earlier >= _MIN_PART * rise for earlier, later in itertools.pairwise(parts))
            if parts[0] > 0 and rise >= self._min_share * parts[0] and is_steady:
                creep = Creep(parts[0], parts[-1], num_points * self._history.num_merged)
                self._history.clear()
                return creep
            num_points //= 2
        return None
