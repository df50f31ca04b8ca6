"""Two clocks: a steady one for durations and the hot path, and the wall clock for timestamps people read."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "WallAnchor"]


class Clock(Protocol):
    """The clock interface of the recorder."""

    def steady_s(self) -> float:
        """Return seconds on a clock that never goes backwards; its zero point is arbitrary."""
        ...

    def wall_s(self) -> float:
        """Return seconds since the epoch, according to the machine."""
        ...


class SystemClock:
    """The clocks of the machine."""

    def steady_s(self) -> float:
        """Return `time.perf_counter()`, the clock the hot path reads directly."""
        return time.perf_counter()

    def wall_s(self) -> float:
        """Return `time.time()`."""
        return time.time()


class WallAnchor:
    """Converts steady readings to wall times and detects when the wall clock is set.

    The hot path reads only the steady clock, so a wall clock that jumps can neither reorder records nor make a
    duration negative. `follow` applies small corrections silently and returns the size of a jump once.
    """

    JUMP_S = 1.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.offset_s = clock.wall_s() - clock.steady_s()
        self.jumps_s = 0.0
        """The sum of all jumps so far; a resumed run starts with the sum of its earlier attempts."""

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a steady reading."""
        return self.offset_s + steady_s

    def follow(self) -> float | None:
        """Adopt the current offset of the wall clock; return the jump in seconds, or None if there was none."""
        offset_s = self._clock.wall_s() - self._clock.steady_s()
        jump_s = offset_s - self.offset_s
        if abs(jump_s) < 0.001:  # noise of reading two clocks one after the other on a busy machine
            return None
        self.offset_s = offset_s
        if abs(jump_s) < self.JUMP_S:
            return None
        self.jumps_s += jump_s
        return jump_s
