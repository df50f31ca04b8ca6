"""When the phases of an iteration began and ended: by the clock on a CPU, by events on a GPU that are looked at later.

A GPU works behind the program that feeds it, so the clock of the program tells how long it took to ask for the work,
not how long the work took. Nobody waits for an event: the writer's thread asks later whether it has happened. To
record one takes some ten microseconds, so a few iterations per second are timed by events, and those between are taken
to be like the last of them.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from tachograph.records import wait_for_event
from tachograph.spans import ShortSpan, Span, StandardTrainingJobSpanName, TrainingRecorder

__all__ = ["Marks"]

_SAMPLE_EVERY_S = 0.25
_MOST_POOLED = 256

_pools: dict[int, list[Any]] = {}
"""Events that are free to be used again, by the device they are of."""

_sampled_s = [float("-inf")]
"""When an iteration was last timed by events."""

_shares: weakref.WeakKeyDictionary[TrainingRecorder, list[tuple[Any, float]]] = weakref.WeakKeyDictionary()
"""Of the last iteration that was timed by events: each phase, and its share of the time. For the writer's thread."""


class Marks:
    """The phases of one iteration as they are marked: each ends the phase that began with the mark before it."""

    __slots__ = ("_events", "_is_cuda", "_is_sampled", "_names", "_times_s")

    def __init__(self, is_cuda: bool) -> None:
        self._is_cuda = is_cuda
        self._is_sampled = is_cuda and perf_counter() - _sampled_s[0] >= _SAMPLE_EVERY_S
        self._names: list[Any] = []
        self._times_s: list[float] = []
        self._events: list[Any] = []

    def __len__(self) -> int:
        return len(self._times_s)

    @property
    def last_s(self) -> float:
        """When the last mark was made, on `perf_counter`."""
        return self._times_s[-1]

    def mark(self, ended: StandardTrainingJobSpanName | None) -> None:
        """Say that a phase has ended, and the next begins; None where what has ended is no phase."""
        self._names.append(ended)
        self._times_s.append(perf_counter())
        if self._is_sampled:
            self._events.append(_record_event())

    def submit(self, recorder: TrainingRecorder, iteration: Span, stop_s: float) -> None:
        """Record the iteration with its phases."""
        if self._is_cuda:
            is_whole = len(self._names) == len(self._events) > 1 and None not in self._events
            events = self._events if is_whole else []
            if events:
                _sampled_s[0] = stop_s
            iteration.stop_s = stop_s
            start_s = self._times_s[0] if self._times_s else stop_s
            recorder.add_deferred_spans(_DevicePhases(recorder, iteration, start_s, self._names, events).resolve)
            return
        for place in range(1, len(self._names)):
            name = self._names[place]
            if name is not None:
                recorder.add_finished_span(name, self._times_s[place - 1], self._times_s[place], iteration)
        recorder.finish_span(iteration, stop_s)


class _DevicePhases:
    """An iteration whose phases the writer works out when the device has come to their ends."""

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
            self._measure()
        spans: list[Span] = []
        # Put one after the other into the time in which the iteration was fed to the device. What the device did
        # meanwhile may be of the iteration before: as long as they are alike, the shares are right.
        start_s = self._start_s
        room_s = max(0.0, (self._iteration.stop_s or start_s) - start_s)
        for name, share in _shares.get(self._recorder, ()):
            stop_s = start_s + share * room_s
            if name is not None:
                spans.append(ShortSpan(name, self._recorder, start_s, stop_s, self._iteration))
            start_s = stop_s
        return [*spans, self._iteration]

    def _measure(self) -> None:
        """Take the shares of the phases from the events."""
        events = self._events
        if not wait_for_event(events[-1]):
            return  # the device is far behind, or stuck
        lengths_s = [first.elapsed_time(second) / 1000 for first, second in itertools.pairwise(events)]
        pool = _pools.setdefault(events[0].device.index, [])
        if len(pool) < _MOST_POOLED:
            pool.extend(events)
        room_s = max(sum(lengths_s), (self._iteration.stop_s or self._start_s) - self._start_s)
        if room_s > 0:
            named = zip(self._names[1:], lengths_s, strict=True)
            _shares[self._recorder] = [(name, length_s / room_s) for name, length_s in named]


def _record_event() -> Any:
    """Return an event put behind what the device has to do so far; None while a CUDA graph is captured."""
    cuda: Any = sys.modules["torch"].cuda
    if cuda.is_current_stream_capturing():
        return None
    pool = _pools.get(cuda.current_device())
    event = pool.pop() if pool else cuda.Event(enable_timing=True)
    event.record()
    return event
