"""Durations of profiled functions and blocks, collected by name until the writer thread records them.

The training thread appends a duration to the queue of its name and does nothing else. About every second the writer
thread drains all queues into one `profile` record. A queue that fills up faster is folded by the thread that fills it,
unless another thread is folding it already: the training thread never waits for a lock.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections import deque
from typing import Any

from tachograph._base.guard import guard, reraise_from_signal_handler
from tachograph.recorder import Run, latest_run
from tachograph.spans._profiling_config import ProfilingConfig

__all__ = ["ProfileStats", "Meter", "record"]

_MAX_WAIT_S = 0.1
_FOLD_AT = 4096
"""Length of a queue at which the thread that adds to it folds it."""
_MAX_SAMPLES = 8192
"""Durations kept per window for the percentile; beyond that, a random sample."""
_MAX_NAMES = 200


class Meter:
    """The durations of one name."""

    __slots__ = ("_lock", "_samples", "_share", "_total_s", "count", "names", "num_durations", "queue")

    def __init__(self, name: str) -> None:
        series = f"profiling/{name}"
        self.names = (series, f"{series}/p95", f"{series}/count", f"{series}/total")
        self.count = itertools.count(1)
        """Numbers the calls that are long enough; `next` on it is atomic."""
        self.queue: deque[float] = deque()
        self.num_durations = 0
        # Re-entrant: a signal handler may end the run while its own thread is in here.
        self._lock = threading.RLock()
        self._clear()

    def _clear(self) -> None:
        self.num_durations = 0
        self._total_s = 0.0
        self._samples: list[float] = []
        self._share = 1.0

    def try_fold(self) -> None:
        """Fold a full queue, unless another thread is folding it."""
        if self._lock.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._lock.release()

    def drain(self) -> dict[str, float]:
        """Return the fields of the current window and start the next; empty if nothing was timed."""
        # A signal handler may have interrupted a thread in here, and wait for the writer, which gets here, too.
        if not self._lock.acquire(timeout=_MAX_WAIT_S):
            return {}
        try:
            self._fold()
            num_durations, total_s, samples = self.num_durations, self._total_s, sorted(self._samples)
            self._clear()
        finally:
            self._lock.release()
        if not num_durations:
            return {}
        p95_s = samples[math.ceil(0.95 * len(samples)) - 1]
        return dict(zip(self.names, (total_s / num_durations, p95_s, num_durations, total_s), strict=True))

    def _fold(self) -> None:
        popleft = self.queue.popleft
        durations = [popleft() for _ in range(len(self.queue))]
        self.num_durations += len(durations)
        self._total_s += sum(durations)
        if self._share < 1:
            durations = _random.sample(durations, math.ceil(self._share * len(durations)))
        self._samples += durations
        while len(self._samples) > _MAX_SAMPLES:
            self._samples = _random.sample(self._samples, len(self._samples) // 2)
            self._share /= 2


_random = random.Random()  # separate: the random state of the training code must not change  # noqa: S311


class ProfileStats:
    """The meters of one run; collects its `profile` records."""

    __slots__ = ("_is_full", "is_closed", "meters", "run")

    def __init__(self, run: Run | None) -> None:
        self.run = run
        self.meters: dict[str, Meter] = {}
        self.is_closed = run is None or not run.enabled or run.status != "running" or run._is_forked
        self._is_full = False

    def add(self, name: Any) -> Meter | None:
        """Return the meter of a name, creating it if needed; None if there are too many names."""
        text = str(name)
        if len(self.meters) >= _MAX_NAMES and text not in self.meters:
            if not self._is_full and self.run is not None:
                self._is_full = True
                reason = f"more than {_MAX_NAMES} names are profiled; further ones are dropped"
                self.run.report_error("too_many_names", text[:200], f"{reason}; do not put numbers into names")
            return None
        return self.meters.setdefault(text, Meter(text))

    # As a collector of the run ---------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Record the durations since the last call."""
        fields: dict[str, Any] = {}
        for meter in list(self.meters.values()):
            fields.update(meter.drain())
        if fields and self.run is not None:
            self.run.add_record("profile", fields)

    def close(self) -> None:
        """Record the rest and stop collecting."""
        self.collect()
        self.is_closed = True

    def forget(self) -> None:
        """In a forked child: stop collecting, because the run belongs to the parent."""
        self.is_closed = True
        self.meters = {}  # their locks may be held by threads of the parent


class _Current:
    """The stats of the current run. An attribute of an object, because it is read on every call."""

    __slots__ = ("stats",)

    def __init__(self) -> None:
        self.stats = ProfileStats(None)


_current = _Current()


def record(name: Any, duration_s: float, config: ProfilingConfig) -> None:
    """Add a duration to the current run, unless the config excludes it. Never raises."""
    # The hot path, in one function: calling others would double its cost.
    try:
        if duration_s * 1000.0 < config.min_duration_ms:
            return
        stats = _current.stats
        run = latest_run()
        if stats.run is not run:
            stats = _current.stats = _stats_of(run)
        if stats.is_closed:
            return
        meter = stats.meters.get(name) or stats.add(name)
        if meter is None:
            return
        if config.log_interval != 1:
            number = next(meter.count)
            if number != 1 and number % config.log_interval:
                return
        queue = meter.queue
        queue.append(duration_s)
        if len(queue) >= _FOLD_AT:
            meter.try_fold()
    except Exception as fault:
        reraise_from_signal_handler(fault)
        guard.report("profiling", fault)
        if guard.strict:
            raise


def _stats_of(run: Run | None) -> ProfileStats:
    collectors = run.collectors if run is not None else []
    stats = next((collector for collector in collectors if isinstance(collector, ProfileStats)), None)
    if stats is not None:
        return stats
    stats = ProfileStats(run)
    if run is not None and not stats.is_closed:
        run.collectors.append(stats)
    return stats
