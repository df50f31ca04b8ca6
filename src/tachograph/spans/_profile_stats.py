"""What was timed in a run, name by name, until the writer comes for it.

The training thread appends to a queue of the name and does nothing else. About every second the writer's thread empties
all queues and makes one record of them; a queue that grows faster than that is summed up by whoever fills it.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections import deque
from typing import Any

from tachograph._base.guard import guard
from tachograph.recorder import Run, latest_run
from tachograph.spans._profiling_config import ProfilingConfig

__all__ = ["ProfileStats", "Meter", "record"]

_FOLD_AT = 4096
"""Durations that wait in a queue; then it is emptied by whoever adds to it."""
_MOST_SAMPLES = 8192
"""Durations of a window of which the percentile is taken; of more, a random sample."""
_MOST_NAMES = 200


class Meter:
    """What is timed under one name."""

    __slots__ = ("_lock", "_samples", "_share", "_total_s", "count", "names", "num_taken", "queue")

    def __init__(self, name: str) -> None:
        series = f"profiling/{name}"
        self.names = (series, f"{series}/p95", f"{series}/count", f"{series}/total")
        self.count = itertools.count(1)
        """Numbers the calls that are long enough; `next` of it is atomic."""
        self.queue: deque[float] = deque()
        self.num_taken = 0
        # Re-entrant: a signal handler may end the run while its own thread is in here.
        self._lock = threading.RLock()
        self._clear()

    def _clear(self) -> None:
        self.num_taken = 0
        self._total_s = 0.0
        self._samples: list[float] = []
        self._share = 1.0

    def relieve(self) -> None:
        """Empty a queue that is full, unless somebody does that already: the training thread never waits."""
        if self._lock.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._lock.release()

    def take(self) -> dict[str, float]:
        """Return the fields of the window that ends now, and begin the next; nothing if nothing was timed."""
        with self._lock:
            self._fold()
            num_taken, total_s, samples = self.num_taken, self._total_s, sorted(self._samples)
            self._clear()
        if not num_taken:
            return {}
        p95_s = samples[math.ceil(0.95 * len(samples)) - 1]
        return dict(zip(self.names, (total_s / num_taken, p95_s, num_taken, total_s), strict=True))

    def _fold(self) -> None:
        popleft = self.queue.popleft
        durations = [popleft() for _ in range(len(self.queue))]
        self.num_taken += len(durations)
        self._total_s += sum(durations)
        if self._share < 1:
            durations = _random.sample(durations, math.ceil(self._share * len(durations)))
        self._samples += durations
        while len(self._samples) > _MOST_SAMPLES:
            self._samples = _random.sample(self._samples, len(self._samples) // 2)
            self._share /= 2


_random = random.Random()  # of its own: that of the training code must go on as without us  # noqa: S311


class ProfileStats:
    """The meters of one run; the run's source of `profile` records."""

    __slots__ = ("_is_full", "is_closed", "meters", "run")

    def __init__(self, run: Run | None) -> None:
        self.run = run
        self.meters: dict[str, Meter] = {}
        self.is_closed = run is None or not run.enabled or run.status != "running" or run._is_forked
        self._is_full = False

    def add(self, name: Any) -> Meter | None:
        """Return the meter of a name, a new one if it has none; None if there are too many names."""
        text = str(name)
        if len(self.meters) >= _MOST_NAMES and text not in self.meters:
            if not self._is_full and self.run is not None:
                self._is_full = True
                reason = f"more than {_MOST_NAMES} names are timed; further ones are not recorded"
                self.run.report_error("too_many_names", text[:200], f"{reason}; do not put numbers into the names")
            return None
        return self.meters.setdefault(text, Meter(text))

    # As a source of the run ----------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Record what was timed since the last time."""
        fields: dict[str, Any] = {}
        for meter in list(self.meters.values()):
            fields.update(meter.take())
        if fields and self.run is not None:
            self.run._add_record("profile", fields)

    def close(self) -> None:
        """Record the rest, and take nothing more."""
        self.collect()
        self.is_closed = True

    def forget(self) -> None:
        """In a forked child: take nothing more, for the run is the parent's."""
        self.is_closed = True
        self.meters = {}  # whose locks may be held by threads that are not here


class _Present:
    __slots__ = ("aggregator",)

    def __init__(self) -> None:
        self.aggregator = ProfileStats(None)


_present = _Present()


def record(name: Any, duration_s: float, config: ProfilingConfig) -> None:
    """Take a duration for the current run, unless the config says otherwise. Never raises."""
    # The hot path, in one piece: a function that calls no others costs half.
    try:
        if duration_s * 1000.0 < config.min_duration_ms:
            return
        ledger = _present.aggregator
        run = latest_run()
        if ledger.run is not run:
            ledger = _present.aggregator = _ledger_of(run)
        if ledger.is_closed:
            return
        meter = ledger.meters.get(name) or ledger.add(name)
        if meter is None:
            return
        if config.log_interval != 1:
            number = next(meter.count)
            if number != 1 and number % config.log_interval:
                return
        queue = meter.queue
        queue.append(duration_s)
        if len(queue) >= _FOLD_AT:
            meter.relieve()
    except Exception as fault:
        guard.report("timing", fault)
        if guard.strict:
            raise


def _ledger_of(run: Run | None) -> ProfileStats:
    known = (
        next((source for source in run.collectors if isinstance(source, ProfileStats)), None)
        if run is not None
        else None
    )
    if known is not None:
        return known
    ledger = ProfileStats(run)
    if run is not None and not ledger.is_closed:
        run.collectors.append(ledger)
    return ledger
