"""The phases of sampled iterations: timed by the clock on a CPU, and by device events on a GPU.

The phases of a few iterations per second are measured. `SpanAggregator` gives the iterations in between the same
shares, so an iteration that is not sampled costs nothing here.

A GPU runs behind the program that feeds it, so the program's clock measures how long it took to launch the work, not
how long the work took. On CUDA each boundary is therefore an event in the stream. The training thread never waits for
an event: the writer thread queries it later.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from time import perf_counter
from typing import Any

from tachograph.records import wait_for_event
from tachograph.spans import StandardTrainingJobSpanName

__all__ = ["NO_MARKS", "PhaseMarks"]

_MAX_MARKS = 4096
"""A program that computes gradients but never steps an optimizer would otherwise collect marks without end."""
_MAX_POOLED_EVENTS = 256

_event_pools: dict[int, list[Any]] = {}
"""Events that can be reused, by device index."""


class PhaseMarks:
    """The phase boundaries of one iteration: each mark ends the phase that began with the mark before it.

    Args:
        is_cuda: whether to record a device event with each mark.
        is_sampled: whether to record anything at all.
    """

    __slots__ = ("_events", "_is_cuda", "_names", "_times_s", "is_sampled")

    def __init__(self, is_cuda: bool, is_sampled: bool = True) -> None:
        self._is_cuda = is_cuda
        self.is_sampled = is_sampled
        self._names: list[Any] = []
        self._times_s: list[float] = []
        self._events: list[Any] = []

    def __len__(self) -> int:
        return len(self._times_s)

    @property
    def phases(self) -> Iterable[tuple[Any, float, float]]:
        """Name, start and end of each interval between two marks; the name is None if it belongs to no phase."""
        return zip(self._names[1:], self._times_s, self._times_s[1:], strict=False)  # one interval less than marks

    def mark(self, phase: StandardTrainingJobSpanName | None, now_s: float | None = None) -> None:
        """Mark the end of a phase and the start of the next.

        Args:
            phase: the phase that ended; None if the time since the last mark belongs to no phase.
            now_s: the time on `perf_counter`; now if not given.
        """
        if not self.is_sampled or len(self._times_s) >= _MAX_MARKS:
            return
        self._names.append(phase)
        self._times_s.append(perf_counter() if now_s is None else now_s)
        if self._is_cuda:
            self._events.append(_record_event())

    def extend(self, later: PhaseMarks) -> None:
        """Append marks that were made after these. Without them, these would be incomplete."""
        self.is_sampled = self.is_sampled and later.is_sampled
        self._names += later._names
        self._times_s += later._times_s
        self._events += later._events

    @property
    def is_complete(self) -> bool:
        """Whether these marks are all there were, with at least one interval between them."""
        is_timed = not self._is_cuda or (len(self._events) == len(self._names) and None not in self._events)
        return self.is_sampled and len(self._names) > 1 and is_timed

    def shares(self, busy_s: float) -> Iterable[tuple[Any, float]]:
        """Return each phase with its share of the iteration, on the writer thread; see `PhaseSample`."""
        durations_s = self._device_durations() if self._is_cuda else [stop - start for _, start, stop in self.phases]
        # On a GPU the phases may take longer than launching them did: the device was still busy with earlier work.
        total_s = max(busy_s, sum(durations_s))
        if total_s <= 0:
            return []
        durations_by_phase = zip(self._names[1:], durations_s, strict=False)
        return [(name, duration_s / total_s) for name, duration_s in durations_by_phase if name is not None]

    def _device_durations(self) -> list[float]:
        """Return how long the device took between marks; empty if it is far behind, or stuck."""
        events, self._events = self._events, []
        if not events or not wait_for_event(events[-1]):
            return []
        durations_s = [first.elapsed_time(second) / 1000 for first, second in itertools.pairwise(events)]
        pool = _event_pools.setdefault(events[0].device.index, [])
        if len(pool) < _MAX_POOLED_EVENTS:
            pool.extend(events)
        return durations_s


NO_MARKS = PhaseMarks(is_cuda=False, is_sampled=False)
"""Marks that record nothing: no iteration is open, or it is not sampled."""


def _record_event() -> Any:
    """Record an event behind the work launched so far; return None while a CUDA graph is being captured."""
    cuda: Any = sys.modules["torch"].cuda
    if cuda.is_current_stream_capturing():
        return None
    pool = _event_pools.get(cuda.current_device())
    event = pool.pop() if pool else cuda.Event(enable_timing=True)
    event.record()
    return event
