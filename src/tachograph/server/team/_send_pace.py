"""`SendPace`: how often trainers may send, by how busy this process is.

A batch costs the server about as much as the next one, however many records it has. So if trainers send half as often,
the server has about half the work, and records arrive a little later. At the longest intervals, a run is still not
taken for one that has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["SendPace"]

_UPDATE_S = 2.0
_BUSY_SHARE = 0.6
"""Of one processor core. The rest is for dashboards, and for trainers that start."""
_MAX_FLUSH_S = 10.0
_MAX_BEAT_S = 10.0
_MAX_STEP = 2.0
"""The intervals grow or shrink at most by this factor at a time."""


class SendPace:
    """The intervals at which trainers send. Any thread may use it.

    Args:
        flush_interval_s: the interval of batches without load.
        beat_interval_s: the interval of beats without load.
        clock: returns the time.
        cpu_clock: returns the CPU time of this process.
    """

    def __init__(
        self,
        flush_interval_s: float,
        beat_interval_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._min_flush_s = flush_interval_s
        self._min_beat_s = beat_interval_s
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._lock = threading.Lock()
        self._factor = 1.0
        self._updated_s = clock()
        self._updated_cpu_s = cpu_clock()

    @property
    def flush_interval_s(self) -> float:
        """How long records of a trainer may gather before it sends them."""
        return max(self._min_flush_s, min(_MAX_FLUSH_S, self._current_factor() * self._min_flush_s))

    @property
    def beat_interval_s(self) -> float:
        """How often a trainer reports that it is alive."""
        return max(self._min_beat_s, min(_MAX_BEAT_S, self._current_factor() * self._min_beat_s))

    def _current_factor(self) -> float:
        with self._lock:
            now_s = self._clock()
            elapsed_s = now_s - self._updated_s
            if elapsed_s >= _UPDATE_S:
                cpu_s = self._cpu_clock()
                busy_share = (cpu_s - self._updated_cpu_s) / elapsed_s
                step = min(_MAX_STEP, max(1 / _MAX_STEP, busy_share / _BUSY_SHARE))
                self._factor = min(_MAX_FLUSH_S / self._min_flush_s, max(1.0, self._factor * step))
                self._updated_s, self._updated_cpu_s = now_s, cpu_s
            return self._factor
