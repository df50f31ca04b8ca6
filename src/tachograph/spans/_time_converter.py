"""Converting times given by callers into readings of the run's steady clock, and back."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from tachograph._base.clock import SystemClock
from tachograph.exceptions import TachographError
from tachograph.recorder import Run
from tachograph.spans._timestamp import TracingTimestamp, check_time

__all__ = ["TimeConverter"]

_MAX_CLOCK_DIFFERENCE_S = 3600.0


class TimeConverter:
    """Converts times of callers into readings of the run's steady clock, and back."""

    def __init__(self, run: Run, report_misuse: Callable[[str], None]) -> None:
        self._run = run
        self._report_misuse = report_misuse
        self.now: Callable[[], float] = perf_counter if type(run.clock) is SystemClock else run.clock.steady_s

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a reading of the steady clock."""
        if self._run.backend is not None:
            return self._run.backend.wall_s(steady_s)
        return self._run.clock.wall_s() - self.now() + steady_s

    def of_msec(self, msec: float | None, argument: str) -> float | None:
        """Return the steady reading of a time in milliseconds since the epoch, or None for now."""
        if msec is None:
            return None
        now_s = self.now()
        wall_now_s = self.wall_s(now_s)
        try:
            wall_s = msec / 1000 if isinstance(msec, (int, float)) else msec
            wall_s = check_time(wall_s, wall_now_s, argument, "milliseconds")
        except TachographError as error:
            self._report_misuse(f"{error}; using the current time")
            return None
        return min(now_s - (wall_now_s - wall_s), now_s)

    def of_timestamp(self, timestamp: Any, argument: str) -> float | None:
        """Return the steady reading of a timestamp, or None for now.

        Falls back to its wall time if its steady reading is impossible, such as one of another process.
        """
        if timestamp is None:
            return None
        if not isinstance(timestamp, TracingTimestamp):
            self._report_misuse(f"{argument} is {timestamp!r:.80}, not a TracingTimestamp; using the current time")
            return None
        if self.now is not perf_counter:
            return None  # the run has a clock of its own, unrelated to the machine's
        steady_s, now_s = timestamp.perf_counter_seconds, self.now()
        behind_s = self.wall_s(now_s) - timestamp.seconds_since_epoch
        if 0 < steady_s <= now_s and abs(now_s - steady_s - behind_s) < _MAX_CLOCK_DIFFERENCE_S:
            return steady_s
        return self.of_msec(timestamp.seconds_since_epoch * 1000, argument)
