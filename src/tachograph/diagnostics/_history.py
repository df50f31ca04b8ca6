"""A whole run as a few points, to tell where a signal is heading."""

from __future__ import annotations

import itertools

__all__ = ["History"]

_MAX_POINTS = 32


class History:
    """The levels of all blocks as at most 32 means of neighbours: when it is full, pairs of points are merged."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all levels."""
        self.points: list[float] = []
        """Means over equal numbers of blocks, oldest first."""
        self.num_merged = 1
        """Number of blocks in a point."""
        self._pending: list[float] = []

    def copy(self) -> History:
        """Return an independent copy."""
        other = History()
        other.points, other.num_merged, other._pending = self.points.copy(), self.num_merged, self._pending.copy()
        return other

    def add_to_point(self, levels: list[float]) -> bool:
        """Add the levels of several blocks, if they do not complete a point; return whether they were added."""
        is_incomplete = len(self._pending) + len(levels) < self.num_merged
        if is_incomplete:
            self._pending += levels
        return is_incomplete

    def add(self, level: float) -> bool:
        """Add the level of a block; return whether it completes a point."""
        self._pending.append(level)
        if len(self._pending) < self.num_merged:
            return False
        self.points.append(sum(self._pending) / self.num_merged)
        self._pending = []
        if len(self.points) == _MAX_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [0.5 * (earlier + later) for earlier, later in pairs]
            self.num_merged *= 2
        return True

    def parts(self, num_points: int | None = None, num_parts: int = 4) -> list[float]:
        """Return the means of equal parts of the last points, oldest first."""
        points = self.points if num_points is None else self.points[-num_points:]
        bounds = [round(part * len(points) / num_parts) for part in range(num_parts + 1)]
        return [sum(points[begin:end]) / (end - begin) for begin, end in itertools.pairwise(bounds) if end > begin]
