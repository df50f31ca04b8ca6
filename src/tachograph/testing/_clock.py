"""A clock that moves only when a test advances it."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """The steady clock and the wall clock of a run, controlled by a test."""

    def __init__(self, wall_s: float = 1_700_000_000.0, steady_s: float = 1_000.0) -> None:
        self._wall_s = wall_s
        self._steady_s = steady_s

    def steady_s(self) -> float:
        """Return the steady time in seconds."""
        return self._steady_s

    def wall_s(self) -> float:
        """Return the wall time in seconds since the epoch."""
        return self._wall_s

    def advance(self, seconds: float) -> None:
        """Advance both clocks.

        Raises:
            ValueError: if `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds={seconds!r} is negative; to set the wall clock back, use set_wall()")
        self._steady_s += seconds
        self._wall_s += seconds

    def set_wall(self, wall_s: float) -> None:
        """Set the wall clock only, as a time server does."""
        self._wall_s = wall_s
