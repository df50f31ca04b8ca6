"""A moment on both clocks: the one people read, and the steady one that durations come from."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tachograph.exceptions import ConfigError, TachographError

__all__ = ["Timer", "TracingTimestamp", "check_moment"]

_EARLIEST_S = 946_684_800.0  # the year 2000
_FUTURE_S = 600.0


def check_moment(wall_s: float, now_s: float, what: str) -> float:
    """Return a time that a caller gave, if a training job can have had it.

    Raises:
        ConfigError: for what is no time at all, lies in the future, or before the year 2000.
    """
    if isinstance(wall_s, bool) or not isinstance(wall_s, (int, float)) or not math.isfinite(wall_s):
        raise ConfigError(f"{what} is {wall_s!r}, which is no time")
    if wall_s > now_s + _FUTURE_S:
        raise ConfigError(f"{what} lies {wall_s - now_s:.0f} s in the future")
    if wall_s < _EARLIEST_S:
        raise ConfigError(f"{what} is before the year 2000: is it in the right unit?")
    return float(wall_s)


@dataclass(frozen=True)
class TracingTimestamp:
    """A moment, as seconds since the epoch and as a reading of `time.perf_counter`."""

    _seconds_since_epoch: float
    _perf_counter_seconds: float

    @property
    def seconds_since_epoch(self) -> float:
        """Seconds since the epoch."""
        return self._seconds_since_epoch

    @property
    def milliseconds_since_epoch(self) -> int:
        """Whole milliseconds since the epoch."""
        return int(self._seconds_since_epoch * 1000)

    @property
    def perf_counter_seconds(self) -> float:
        """Reading of the steady clock."""
        return self._perf_counter_seconds

    @classmethod
    def now(cls) -> TracingTimestamp:
        """Return the present moment."""
        return cls(time.time(), time.perf_counter())

    @classmethod
    def for_timestamp(
        cls, timestamp_sec: float, perf_counter: float | None = None, validate_timestamp: bool = True
    ) -> TracingTimestamp:
        """Return a past moment; its reading of the steady clock is worked out if it is not given.

        Raises:
            ConfigError: if the time lies in the future or is no time a job can have had; see `check_moment`.
        """
        now_s = time.time()
        if validate_timestamp:
            check_moment(timestamp_sec, now_s, "timestamp_sec")
        if not perf_counter:
            perf_counter = time.perf_counter() - (now_s - timestamp_sec)
        return cls(float(timestamp_sec), perf_counter)

    def to_json(self) -> dict[str, float]:
        """Return both readings."""
        return {
            "seconds_since_epoch": self._seconds_since_epoch,
            "perf_counter_seconds": self._perf_counter_seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TracingTimestamp:
        """Make a moment from what `to_json` returned."""
        if not data or not data.get("seconds_since_epoch"):
            raise TachographError(f"a time stamp needs 'seconds_since_epoch', got {data!r}")
        seconds = float(data["seconds_since_epoch"])
        return cls.for_timestamp(seconds, data.get("perf_counter_seconds"), validate_timestamp=False)


class Timer:
    """A stopwatch that sums up what lies between `start` and `stop`."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self._start_s: float | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._start_s is not None

    def start(self, start_time: TracingTimestamp | None = None) -> None:
        """Begin to count."""
        if self._start_s is not None:
            raise TachographError("the timer is running already; stop it first")
        self._start_s = start_time.perf_counter_seconds if start_time else time.perf_counter()

    def stop(self, reset: bool = False) -> float:
        """Stop counting and return the seconds counted so far; with `reset`, forget them."""
        if self._start_s is None:
            raise TachographError("the timer is not running; start it first")
        self._elapsed_s += time.perf_counter() - self._start_s
        self._start_s = None
        elapsed_s = self._elapsed_s
        if reset:
            self._elapsed_s = 0.0
        return elapsed_s

    def reset(self, start: bool = False) -> None:
        """Forget what was counted, and perhaps begin anew."""
        self._elapsed_s, self._start_s = 0.0, None
        if start:
            self.start()
