"""Skipped iterations: only counted, because the governor wants no details of them."""

from __future__ import annotations

from time import perf_counter

__all__ = ["SkippedIterations"]


class SkippedIterations:
    """Counts iterations and keeps only the times at which they end.

    Args:
        start_s: when the first one started, on `perf_counter`.
        num_iterations: how many to count.
        num_hooks: the hooks of an iteration that are called all the same, and return at once.
    """

    __slots__ = ("_num_hooks", "_num_iterations", "costs_s", "has_batch", "start_s", "stops_s")

    def __init__(self, start_s: float, num_iterations: int, num_hooks: int) -> None:
        self.start_s = start_s
        self._num_iterations = num_iterations
        self._num_hooks = num_hooks
        self.stops_s: list[float] = []
        """When each iteration ended, which is when the next one started."""
        self.costs_s: list[float] = []
        """How long the hooks took in each of them."""
        self.has_batch = False
        """Whether the next one has its batch."""

    @property
    def num_begun(self) -> int:
        """The iterations that have ended, and the one that has its batch."""
        return len(self.stops_s) + self.has_batch

    def count(self, now_s: float) -> bool:
        """Count the iteration that ended at `now_s`, when its last hook began; return whether it was the last one."""
        self.stops_s.append(now_s)
        self.has_batch = False
        self.costs_s.append(self._num_hooks * (perf_counter() - now_s))  # the other hooks are about as short
        return len(self.stops_s) >= self._num_iterations
