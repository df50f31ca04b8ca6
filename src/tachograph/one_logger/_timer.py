"""`Timer`: a stopwatch."""

from __future__ import annotations

import time

from tachograph.exceptions import TachographError
from tachograph.spans import TracingTimestamp

__all__ = ["Timer"]


class Timer:
    """A stopwatch that adds up the time between `start` and `stop`."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self._start_s: float | None = None

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self._start_s is not None

    def start(self, start_time: TracingTimestamp | None = None) -> None:
        """Start the timer."""
        if self._start_s is not None:
            raise TachographError("start called when the timer was already running; stop it first")
        self._start_s = start_time.perf_counter_seconds if start_time else time.perf_counter()

    def stop(self, reset: bool = False) -> float:
        """Stop the timer and return the elapsed seconds; with `reset`, set them back to 0."""
        if self._start_s is None:
            raise TachographError("stop called when the timer was not running; start it first")
        self._elapsed_s += time.perf_counter() - self._start_s
        self._start_s = None
        elapsed_s = self._elapsed_s
        if reset:
            self._elapsed_s = 0.0
        return elapsed_s

    def reset(self, start: bool = False) -> None:
        """Set the elapsed time to 0, and start again if asked to."""
        self._elapsed_s, self._start_s = 0.0, None
        if start:
            self.start()
