"""A stretch of time of which every moment can be claimed once: what ran side by side is not counted twice."""

from __future__ import annotations

import bisect
import math

__all__ = ["Timeline"]

_MOST_STRETCHES = 10_000


class Timeline:
    """Keeps what was claimed, as stretches that do not touch each other.

    Args:
        start: nothing before it can be claimed.
        end: nothing after it can be claimed.
    """

    def __init__(self, start: float = -math.inf, end: float = math.inf) -> None:
        self._start, self._end = start, end
        self._starts: list[float] = []
        self._stops: list[float] = []

    def claim(self, start: float, stop: float) -> float:
        """Claim what is free between two moments; return how much that was."""
        start, stop = max(start, self._start), min(stop, self._end)
        if not stop > start:
            return 0.0
        starts, stops = self._starts, self._stops
        if not stops or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            if len(starts) > _MOST_STRETCHES:  # what is that long ago is not told any more
                self._start = stops[_MOST_STRETCHES // 2]
                del starts[: _MOST_STRETCHES // 2 + 1], stops[: _MOST_STRETCHES // 2 + 1]
            return stop - start
        first = bisect.bisect_left(stops, start)
        last = bisect.bisect_right(starts, stop)
        taken = 0.0
        low, high = start, stop
        for place in range(first, last):
            taken += max(0.0, min(stop, stops[place]) - max(start, starts[place]))
            low, high = min(low, starts[place]), max(high, stops[place])
        starts[first:last] = [low]
        stops[first:last] = [high]
        return max(0.0, stop - start - taken)
