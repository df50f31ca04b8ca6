"""A clock that only moves when told to."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """Both clocks of a run, in the hands of a test."""

    def __init__(self, wall_s: float = 1_700_000_000.0, steady_s: float = 1_000.0) -> None:
        self._wall_s = wall_s
        self._steady_s = steady_s

    def steady_s(self) -> float:
        """Return the steady clock's reading."""
        return self._steady_s

    def wall_s(self) -> float:
        """Return the wall clock's reading."""
        return self._wall_s

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        if seconds < 0:
            raise ValueError("time does not go back; to set the wall clock back use set_wall")
        self._steady_s += seconds
        self._wall_s += seconds

    def set_wall(self, wall_s: float) -> None:
        """Set the wall clock, as an administrator or a time server does."""
        self._wall_s = wall_s
