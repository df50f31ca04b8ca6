"""Times that callers give, on the run's steady clock; and the ids of spans."""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tachograph._base.clock import SystemClock
from tachograph.exceptions import TachographError
from tachograph.recorder import Run
from tachograph.spans._span import Span
from tachograph.spans._timestamp import TracingTimestamp, check_moment

__all__ = ["TimeConverter", "SpanIds"]

_CLOCKS_AGREE_S = 3600.0


class TimeConverter:
    """Turns times of callers into readings of the run's steady clock, and back."""

    def __init__(self, run: Run, complain: Callable[[str], None]) -> None:
        self._run = run
        self._complain = complain
        clock = run._clock
        self.now: Callable[[], float] = perf_counter if type(clock) is SystemClock else clock.steady_s

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a reading of the steady clock."""
        if self._run._writer is not None:
            return self._run._writer.wall_s(steady_s)
        return self._run._clock.wall_s() - self.now() + steady_s

    def of_msec(self, msec: float | None, what: str) -> float | None:
        """Return the steady reading of a time in milliseconds since the epoch, or None for now."""
        if msec is None:
            return None
        now_s = self.now()
        wall_now_s = self.wall_s(now_s)
        try:
            wall_s = check_moment(msec / 1000 if isinstance(msec, (int, float)) else msec, wall_now_s, what)
        except TachographError as error:
            self._complain(f"{error}; the present time is used (milliseconds since the epoch are expected)")
            return None
        return min(now_s - (wall_now_s - wall_s), now_s)

    def of_timestamp(self, timestamp: Any, what: str) -> float | None:
        """Return the steady reading of a time stamp, by its wall time if its other reading cannot be; None for now."""
        if timestamp is None:
            return None
        if not isinstance(timestamp, TracingTimestamp):
            self._complain(f"{what} is {timestamp!r:.80}, not a TracingTimestamp; the present time is used")
            return None
        if self.now is not perf_counter:
            return None  # the run has a clock of its own, which knows nothing of the machine's
        steady_s, now_s = timestamp.perf_counter_seconds, self.now()
        behind_s = self.wall_s(now_s) - timestamp.seconds_since_epoch
        if 0 < steady_s <= now_s and abs(now_s - steady_s - behind_s) < _CLOCKS_AGREE_S:
            return steady_s
        return self.of_msec(timestamp.seconds_since_epoch * 1000, what)


class SpanIds:
    """Gives each span of a run a number that no other has, also not those of other attempts."""

    def __init__(self, run: Run) -> None:
        first = int.from_bytes(os.urandom(4), "big") << 32 if run.folder is not None else 0
        self._run_id = run.id
        self._numbers = itertools.count(first + 1)
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Use another lock: in a forked child, a thread of the parent may have held this one."""
        self._lock = threading.Lock()

    def text_of(self, span: Span) -> str:
        """Return the span's id as records have it."""
        return f"{self._number(span):016x}"

    def uuid_of(self, span: Span) -> uuid.UUID:
        """Return the span's id with that of its run in front."""
        run_part = int(self._run_id, 16) if len(self._run_id) == 16 else 0
        return uuid.UUID(int=run_part << 64 | self._number(span))

    def _number(self, span: Span) -> int:
        more = span.more
        if not isinstance(more.id, int):
            with self._lock:
                if not isinstance(more.id, int):
                    more.id = next(self._numbers)
        return more.id
