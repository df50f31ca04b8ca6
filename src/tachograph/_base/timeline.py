"""Attribution of time: every moment is counted once, even if several spans cover it.

`Timeline` keeps the claimed time as a sorted list of disjoint intervals. A claim finds the intervals it overlaps by
bisection, returns the part that was still free, and merges everything into one interval. Claims usually arrive in
order of time, so the common case appends to the end of the list.
"""

from __future__ import annotations

import bisect
import math

__all__ = ["Timeline"]

_MAX_INTERVALS = 10_000


class Timeline:
    """The intervals of time claimed so far.

    Args:
        start: time before it cannot be claimed.
        end: time after it cannot be claimed.
    """

    def __init__(self, start: float = -math.inf, end: float = math.inf) -> None:
        self._start, self._end = start, end
        self._starts: list[float] = []
        self._stops: list[float] = []

    def claim(self, start: float, stop: float) -> float:
        """Claim the unclaimed time between two moments and return its length."""
        start, stop = max(start, self._start), min(stop, self._end)
        if not stop > start:
            return 0.0
        starts, stops = self._starts, self._stops
        if not stops or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            if len(starts) > _MAX_INTERVALS:  # bounds memory: the oldest half can no longer be claimed
                self._start = stops[_MAX_INTERVALS // 2]
                del starts[: _MAX_INTERVALS // 2 + 1], stops[: _MAX_INTERVALS // 2 + 1]
            return stop - start
        first = bisect.bisect_left(stops, start)
        last = bisect.bisect_right(starts, stop)
        overlap = 0.0
        low, high = start, stop
        for index in range(first, last):
            overlap += max(0.0, min(stop, stops[index]) - max(start, starts[index]))
            low, high = min(low, starts[index]), max(high, stops[index])
        starts[first:last] = [low]
        stops[first:last] = [high]
        return max(0.0, stop - start - overlap)
