"""The phases of an iteration: timed by the clock on a CPU, and by device events on a GPU.

A GPU runs behind the program that feeds it, so the program's clock measures how long it took to launch the work, not
how long the work took. On CUDA each boundary is therefore also recorded as an event in the stream. The training thread
never waits for an event: the writer thread queries it later. Recording one costs about ten microseconds, so only a
few iterations per second are timed by events; the iterations in between get the same shares as the last timed one.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any

from tachograph.records import wait_for_event
from tachograph.spans import ShortSpan, Span, StandardTrainingJobSpanName, TrainingRecorder

__all__ = ["PhaseMarks"]

_SAMPLE_EVERY_S = 0.25
_MAX_MARKS = 4096
"""A program that computes gradients but never steps an optimizer would otherwise collect marks without end."""
_MAX_POOLED_EVENTS = 256

_event_pools: dict[int, list[Any]] = {}
"""Events that can be reused, by device index."""

_last_sample_s = [float("-inf")]
"""When an iteration was last timed by events."""

_phase_shares: weakref.WeakKeyDictionary[TrainingRecorder, list[tuple[Any, float]]] = weakref.WeakKeyDictionary()
"""The phases of the last iteration timed by events, each with its share of the time. Used by the writer thread."""


class PhaseMarks:
    """The phase boundaries of one iteration: each mark ends the phase that began with the mark before it."""

    __slots__ = ("_events", "_is_cuda", "_is_sampled", "_names", "_times_s")

    def __init__(self, is_cuda: bool) -> None:
        self._is_cuda = is_cuda
        self._is_sampled = is_cuda and perf_counter() - _last_sample_s[0] >= _SAMPLE_EVERY_S
        self._names: list[Any] = []
        self._times_s: list[float] = []
        self._events: list[Any] = []

    def __len__(self) -> int:
        return len(self._times_s)

    @property
    def last_s(self) -> float:
        """The time of the last mark, on `perf_counter`."""
        return self._times_s[-1]

    @property
    def phases(self) -> Iterable[tuple[Any, float, float]]:
        """Name, start and end of each interval between two marks; the name is None if it belongs to no phase."""
        return zip(self._names[1:], self._times_s, self._times_s[1:], strict=False)  # one interval less than marks

    def mark(self, ended: StandardTrainingJobSpanName | None, now_s: float | None = None) -> None:
        """Mark the end of a phase and the start of the next.

        Args:
            ended: the phase that ended; None if the time since the last mark belongs to no phase.
            now_s: the time on `perf_counter`; now if not given.
        """
        if len(self._times_s) >= _MAX_MARKS:
            return
        self._names.append(ended)
        self._times_s.append(perf_counter() if now_s is None else now_s)
        if self._is_sampled:
            self._events.append(_record_event())

    def extend(self, later: PhaseMarks) -> None:
        """Append marks that were made after these."""
        self._names += later._names
        self._times_s += later._times_s
        self._events += later._events

    def submit(self, recorder: TrainingRecorder, iteration: Span, stop_s: float) -> None:
        """Record the iteration with its phases."""
        if self._is_cuda:
            is_complete = len(self._names) == len(self._events) > 1 and None not in self._events
            events = self._events if is_complete else []
            if events:
                _last_sample_s[0] = stop_s
            iteration.stop_s = stop_s
            start_s = self._times_s[0] if self._times_s else stop_s
            recorder.add_deferred_spans(_DevicePhases(recorder, iteration, start_s, self._names, events).resolve)
            return
        for name, phase_start_s, phase_stop_s in self.phases:
            if name is not None:
                recorder.add_finished_span(name, phase_start_s, phase_stop_s, iteration)
        recorder.finish_span(iteration, stop_s)


class _DevicePhases:
    """An iteration on a GPU. The writer computes its phases once the device has passed their boundaries."""

    __slots__ = ("_events", "_iteration", "_names", "_recorder", "_start_s")

    def __init__(
        self, recorder: TrainingRecorder, iteration: Span, start_s: float, names: list[Any], events: list[Any]
    ) -> None:
        self._recorder = recorder
        self._iteration = iteration
        self._start_s = start_s
        self._names = names
        self._events = events

    def resolve(self) -> Sequence[Span]:
        """Return the phases and the iteration, on the writer thread."""
        if self._events:
            self._measure_shares()
        spans: list[Span] = []
        # The phases are laid end to end into the time in which the iteration was launched. The device may have been
        # busy with the previous iteration meanwhile; the shares are right as long as iterations are alike.
        start_s = self._start_s
        total_s = max(0.0, (self._iteration.stop_s or start_s) - start_s)
        for name, share in _phase_shares.get(self._recorder, ()):
            stop_s = start_s + share * total_s
            if name is not None:
                spans.append(ShortSpan(name, self._recorder, start_s, stop_s, self._iteration))
            start_s = stop_s
        return [*spans, self._iteration]

    def _measure_shares(self) -> None:
        """Compute the shares of the phases from the events."""
        events = self._events
        if not wait_for_event(events[-1]):
            return  # the device is far behind, or stuck
        durations_s = [first.elapsed_time(second) / 1000 for first, second in itertools.pairwise(events)]
        pool = _event_pools.setdefault(events[0].device.index, [])
        if len(pool) < _MAX_POOLED_EVENTS:
            pool.extend(events)
        total_s = max(sum(durations_s), (self._iteration.stop_s or self._start_s) - self._start_s)
        if total_s > 0:
            phases = zip(self._names[1:], durations_s, strict=True)
            _phase_shares[self._recorder] = [(name, duration_s / total_s) for name, duration_s in phases]


def _record_event() -> Any:
    """Record an event behind the work launched so far; return None while a CUDA graph is being captured."""
    cuda: Any = sys.modules["torch"].cuda
    if cuda.is_current_stream_capturing():
        return None
    pool = _event_pools.get(cuda.current_device())
    event = pool.pop() if pool else cuda.Event(enable_timing=True)
    event.record()
    return event
