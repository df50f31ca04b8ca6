"""Two clocks: a steady one that durations and the hot path use, and the wall clock that people read."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "WallAnchor"]


class Clock(Protocol):
    """What the recorder asks for the time."""

    def steady_s(self) -> float:
        """Seconds on a clock that never goes back; its zero means nothing."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch, as the machine believes it is now."""
        ...


class SystemClock:
    """The machine's clocks."""

    def steady_s(self) -> float:
        """Seconds of `time.perf_counter`, the clock the hot path reads directly."""
        return time.perf_counter()

    def wall_s(self) -> float:
        """Seconds of `time.time`."""
        return time.time()


class WallAnchor:
    """Turns steady readings into wall times, and notices when the wall clock is set.

    The hot path reads only the steady clock, so a wall clock that jumps can neither reorder records nor make a
    duration negative. Small corrections are followed silently; a jump is reported once by `follow`.
    """

    JUMP_S = 1.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.offset_s = clock.wall_s() - clock.steady_s()

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a steady reading."""
        return self.offset_s + steady_s

    def follow(self) -> float | None:
        """Adopt the wall clock's present offset; return the jump in seconds if there was one."""
        offset_s = self._clock.wall_s() - self._clock.steady_s()
        jump_s = offset_s - self.offset_s
        if abs(jump_s) < 0.001:  # reading two clocks one after the other differs by this much on a busy machine
            return None
        self.offset_s = offset_s
        return jump_s if abs(jump_s) >= self.JUMP_S else None
