"""The trend of the reward, for rules that weigh a rise against its cost."""

from __future__ import annotations

from tachograph.diagnostics._history import History
from tachograph.diagnostics._signal_stats import SignalStats

__all__ = ["RewardTrend"]

_MIN_POINTS = 4
_MIN_SIGMAS = 0.25
_MIN_RATE = 0.5


class RewardTrend:
    """The course of the reward over the run."""

    def __init__(self) -> None:
        self._history = History()
        self.level: float | None = None
        """The mean of the last block."""
        self._sigma = 0.0

    def add_block(self, stats: SignalStats) -> None:
        """Add a block of rewards."""
        self.level = sum(stats.values) / len(stats.values)
        self._sigma = stats.sigma or 0.0
        self._history.add(self.level)

    def is_rising(self) -> bool | None:
        """Return whether the reward rises at half its average pace or faster; None if that is unknown."""
        if len(self._history.points) < _MIN_POINTS:
            return None
        first, *_, before, last = self._history.parts()
        gain = last - before
        return gain > _MIN_SIGMAS * self._sigma and gain >= _MIN_RATE * (last - first) / 3
