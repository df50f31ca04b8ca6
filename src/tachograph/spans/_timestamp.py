"""Timestamps on two clocks: the wall clock, and the steady clock for durations."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tachograph.exceptions import ConfigError, TachographError

__all__ = ["TracingTimestamp", "check_time"]

_EARLIEST_S = 946_684_800.0  # the year 2000
_FUTURE_S = 600.0


def check_time(wall_s: float, now_s: float, argument: str, unit: str = "seconds") -> float:
    """Return a time given by a caller, if it is plausible. The message of the error names the caller's unit.

    Raises:
        ConfigError: if it is not a time, lies in the future, or is before the year 2000.
    """
    if isinstance(wall_s, bool) or not isinstance(wall_s, (int, float)) or not math.isfinite(wall_s):
        raise ConfigError(f"{argument} is {wall_s!r}, which is not a time")
    if wall_s > now_s + _FUTURE_S:
        raise ConfigError(
            f"{argument} is in the future. This is meant to be the time in {unit} since epoch. "
            f"It is {wall_s - now_s:.0f} s ahead of now"
        )
    if wall_s < min(_EARLIEST_S, now_s - _FUTURE_S):  # a machine without a clock of its own starts in 1970
        raise ConfigError(
            f"{argument} is too old. This is meant to be the time in {unit} since epoch. It is before the year 2000"
        )
    return float(wall_s)


@dataclass(frozen=True)
class TracingTimestamp:
    """A point in time, as seconds since the epoch and as a reading of `time.perf_counter`."""

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
        """Return the current time."""
        return cls(time.time(), time.perf_counter())

    @classmethod
    def for_timestamp(
        cls, timestamp_sec: float, perf_counter: float | None = None, validate_timestamp: bool = True
    ) -> TracingTimestamp:
        """Return a past time; its reading of the steady clock is computed if it is not given.

        Raises:
            ConfigError: if the time is not plausible; see `check_time`.
        """
        now_s = time.time()
        if validate_timestamp:
            check_time(timestamp_sec, now_s, "timestamp")
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
        """Create a timestamp from the result of `to_json`."""
        names = ("seconds_since_epoch", "perf_counter_seconds")
        if not isinstance(data, Mapping) or not all(data.get(name) for name in names):
            raise TachographError(f"a TracingTimestamp must have {' and '.join(names)}: {data!r:.200}")
        return cls(*(float(data[name]) for name in names))
