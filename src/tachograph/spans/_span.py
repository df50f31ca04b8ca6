"""`Span`: a named interval of time, as data.

A span is a small struct. Its id, its timestamps, its attributes and its events are created on first use and stored in
`SpanExtras`, so a span that has none of these costs nothing extra.

`ShortSpan` is the type of iterations and their phases. A short span goes into the buffer once, when it stops, and is
usually only aggregated; any other span goes into the buffer when it starts and again when it stops.

A `SpanScope` starts and stops spans through `SpanRecorder.open_span` and `close_span`. The recorder only uses the
fields of a span. The methods for the user of a span (`add_event`, `stop`) call the recorder, as a scope does.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from enum import Enum
from typing import Any, Protocol

import msgspec

from tachograph.exceptions import TachographError
from tachograph.spans._attributes import Attribute, Attributes, AttributeValue, attribute_of, attributes_of
from tachograph.spans._event import Event
from tachograph.spans._names import StandardEventName, StandardSpanAttributeName, text_of
from tachograph.spans._timestamp import TracingTimestamp

__all__ = [
    "DISABLED_SPAN",
    "DisabledSpan",
    "ObservedIteration",
    "PhaseSample",
    "ShortSpan",
    "Span",
    "SpanExtras",
    "SpanName",
    "ancestors",
    "current_span",
    "skip_stopped",
]

SpanName = Enum | str

_MAX_EVENTS = 100

current_span: ContextVar[Span | None] = ContextVar("tachograph_span", default=None)
"""The span started last, for each thread and each asyncio task.

It may have stopped already; then the innermost open span is one of its ancestors. Stopping a span does not reset this
variable, which halves the cost of an iteration.
"""


class SpanExtras:
    """Properties that few spans have."""

    __slots__ = (
        "added_attributes",
        "attributes",
        "events",
        "id",
        "is_queued",
        "is_started",
        "is_written",
        "on_stop",
        "start_attributes",
        "status",
        "stop_attributes",
        "stop_time",
        "wall_offset_s",
    )

    def __init__(self) -> None:
        self.attributes: Attributes | None = None
        self.added_attributes: Attributes | None = None
        self.start_attributes: Attributes | None = None
        self.stop_attributes: Attributes | None = None
        self.events: deque[Event] | None = None
        self.id: int | uuid.UUID | None = None
        self.status = "ok"
        self.stop_time: TracingTimestamp | None = None
        """When a span without a recorder stopped; its wall clock may have been set since the start."""
        self.wall_offset_s = 0.0
        self.on_stop: Callable[[Span, BaseException | None, float], None] | None = None
        """Called when the span is about to stop, with the exception that stops it and the time."""
        self.is_queued = False
        """Whether the start is in the buffer; if not, the stop stands for both."""
        self.is_started = False
        """Writer thread: whether it has handled the start."""
        self.is_written = False
        """Writer thread: whether the start is in the journal."""


class Span(msgspec.Struct, eq=False):
    """A named interval of time; created by `timed_span` and the other context managers, or by `Span.create`.

    Example:
        >>> with timed_span("augment") as span:
        ...     span.add_attribute("num_crops", 4)
    """

    name: Any
    recorder: Any = None  # a SpanRecorder, which is defined later
    start_s: float | None = None
    stop_s: float | None = None
    _parent: Span | None = None
    _extras: SpanExtras | None = None

    @classmethod
    def create(
        cls,
        name: SpanName,
        parent_span: Span | None = None,
        span_attributes: Attributes | None = None,
        start_event_attributes: Attributes | None = None,
        start_time: TracingTimestamp | None = None,
    ) -> Span:
        """Create a started span without a recorder; `timed_span` starts one that is recorded."""
        start_time = start_time or TracingTimestamp.now()
        span = Span(name, None, start_time.perf_counter_seconds, None, parent_span)
        extras = span.extras
        if span_attributes is not None:
            extras.attributes = attributes_of(span_attributes, span.report_misuse)
        if start_event_attributes:
            extras.start_attributes = attributes_of(start_event_attributes, span.report_misuse)
        extras.id = uuid.uuid4()
        extras.wall_offset_s = start_time.seconds_since_epoch - start_time.perf_counter_seconds
        return span

    # Properties ----------------------------------------------------------------------------------------------------

    @property
    def extras(self) -> SpanExtras:
        """The properties that few spans have, created on first use."""
        if self._extras is None:
            self._extras = SpanExtras()
        return self._extras

    @property
    def id(self) -> uuid.UUID:
        """A unique id, created on first use."""
        if self.recorder is not None:
            span_id: uuid.UUID = self.recorder.ids.uuid_of(self)
            return span_id
        if not isinstance(self.extras.id, uuid.UUID):
            self.extras.id = uuid.uuid4()
        return self.extras.id

    @property
    def name_str(self) -> str:
        """The name as a string."""
        return text_of(self.name)

    @property
    def parent_span(self) -> Span | None:
        """The enclosing span."""
        return self._parent if self._parent is not None and self._parent.name else None

    @property
    def active(self) -> bool:
        """Whether it has started and not stopped."""
        return self.start_s is not None and self.stop_s is None

    @property
    def attributes(self) -> Attributes:
        """All attributes, set at the start or added later."""
        extras = self._extras
        if extras is None or extras.attributes is None:
            return Attributes.merge(None if extras is None else extras.added_attributes)
        return type(extras.attributes).merge(extras.attributes, extras.added_attributes)

    @property
    def updated_attributes(self) -> Attributes:
        """The attributes added after the start."""
        extras = self.extras
        if extras.added_attributes is None:
            kind = Attributes if extras.attributes is None else type(extras.attributes)
            extras.added_attributes = kind.from_json(None)
        return extras.added_attributes

    @property
    def start_event(self) -> Event:
        """The event of its start."""
        return self._edge_event(StandardEventName.SPAN_START, self.start_s, self.extras.start_attributes)

    @property
    def stop_event(self) -> Event | None:
        """The event of its stop, or None while it is active."""
        if self.stop_s is None:
            return None
        extras = self.extras
        if extras.stop_time is not None:
            return Event(StandardEventName.SPAN_STOP, extras.stop_time, extras.stop_attributes)
        return self._edge_event(StandardEventName.SPAN_STOP, self.stop_s, extras.stop_attributes)

    @property
    def events(self) -> list[Event]:
        """The start event, the last hundred events added to it, and the stop event."""
        stop = self.stop_event
        return [self.start_event, *(self.extras.events or ()), *([stop] if stop else [])]

    def _edge_event(self, name: StandardEventName, steady_s: float | None, attributes: Attributes | None) -> Event:
        if steady_s is None:
            raise TachographError(f"span {self.name_str!r} has not started")
        return Event(name, TracingTimestamp(self.wall_s(steady_s), steady_s), attributes)

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a reading of the clock that timed the span."""
        if self.recorder is not None:
            wall_s: float = self.recorder.times.wall_s(steady_s)
            return wall_s
        return steady_s + self.extras.wall_offset_s

    def duration_msec(self) -> int:
        """Return its duration in whole milliseconds.

        Raises:
            TachographError: while it is active.
        """
        if self.start_s is None or self.stop_s is None:
            raise TachographError(f"span {self.name_str!r} has no duration yet: it has not stopped")
        return int((self.stop_s - self.start_s) * 1000)

    # Changes -------------------------------------------------------------------------------------------------------

    def add_attribute(self, name: str | Enum, value: AttributeValue) -> Attribute:
        """Add an attribute. A value that cannot be an attribute is stored as a string."""
        if self.stop_s is not None and self.recorder is not None:
            self.recorder.report_misuse(f"attribute {text_of(name)!r} was added after span {self.name_str!r} stopped")
        return self.updated_attributes.add_attribute(attribute_of(text_of(name), value, self.report_misuse))

    def add_attributes(self, attributes: Attributes | Mapping[str, Any]) -> None:
        """Add several attributes."""
        for name, value in attributes.items():
            self.add_attribute(name, value.value if isinstance(value, Attribute) else value)

    def add_event(self, event: Event) -> Event:
        """Record an event of the span."""
        if self.recorder is not None:
            added_event: Event = self.recorder.event(self, event)
            return added_event
        if not self.active:
            raise TachographError(
                f"Cannot add an event to a span that is not running: {event.name_str!r} to {self.name_str!r}"
            )
        self.keep_event(event)
        return event

    def keep_event(self, event: Event) -> None:
        """Keep an event in `events`, which holds the last hundred."""
        extras = self.extras
        if extras.events is None:
            extras.events = deque(maxlen=_MAX_EVENTS)
        extras.events.append(event)

    def stop(self, stop_event_attributes: Attributes | None = None, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the span. Stopping it again has no effect."""
        if self.stop_s is not None:
            return
        if self.recorder is not None:
            stop_s = self.recorder.times.of_timestamp(stop_time, "stop_time")
            self.recorder.close_span(self, stop_s, stop_attributes=stop_event_attributes)
            return
        stop_time = stop_time or TracingTimestamp.now()
        self.stop_s = stop_time.perf_counter_seconds
        self.extras.stop_time = stop_time
        self.extras.stop_attributes = stop_event_attributes
        self.add_attribute(StandardSpanAttributeName.DURATION_MSEC, self.duration_msec())

    def report_misuse(self, problem: str) -> None:
        """Report a mistake in the use of this span."""
        if self.recorder is not None:
            self.recorder.report_misuse(f"span {self.name_str!r}: {problem}")

    # JSON ----------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        events = [event.to_json() for event in self.events]
        return {"name": self.name_str, "id": str(self.id), "events": events, "attributes": self.attributes.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Span:
        """Create a span from the result of `to_json`."""
        if not isinstance(data, Mapping) or not data:
            raise TachographError(f"Span data must be a dictionary, got {data!r:.200}")
        if not data.get("name") or not data.get("id"):
            raise TachographError(f"a Span must have a name and an id: {data!r:.200}")
        if not isinstance(data.get("events"), list) or not data["events"]:
            raise TachographError(f"a Span must have a start event: {data!r:.200}")
        edges = {StandardEventName.SPAN_START, StandardEventName.SPAN_STOP}
        events = [Event.from_json(event) for event in data["events"]]
        first, last = events[0], events[-1]
        span = cls.create(data["name"], None, Attributes.from_json(data.get("attributes")), None, first.timestamp)
        span.extras.start_attributes = first.attributes
        try:
            span.extras.id = uuid.UUID(str(data["id"]))
        except ValueError:
            raise TachographError(f"the id of a Span must be a UUID, got {data['id']!r:.80}") from None
        for event in events:
            if event.name_str not in edges:
                span.keep_event(event)
        if last.name_str == StandardEventName.SPAN_STOP:
            span.stop_s, span.extras.stop_attributes = last.timestamp.perf_counter_seconds, last.attributes
            span.extras.stop_time = last.timestamp
        return span

    def __repr__(self) -> str:
        state = "active" if self.active else "not started" if self.start_s is None else "stopped"
        return f"Span({self.name_str!r}, {state})"


class ShortSpan(Span, eq=False, gc=False):
    """An iteration or a phase of one; only aggregated, unless it is to be recorded by itself.

    The garbage collector does not track these: nothing that a short span refers to refers back to it.
    """

    @property
    def queued_at(self) -> float | None:
        """When the span was queued, which is when it stopped."""
        return self.stop_s


class DisabledSpan(Span, eq=False):
    """The span that every block has while the run is disabled. It can be used like any other and keeps nothing."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep nothing."""

    @property
    def extras(self) -> SpanExtras:
        """Properties that are kept nowhere."""
        return SpanExtras()

    @property
    def id(self) -> uuid.UUID:
        """The nil id."""
        return _NIL

    def duration_msec(self) -> int:
        """Return 0: it has no times."""
        return 0

    def add_attribute(self, name: str | Enum, value: AttributeValue) -> Attribute:
        """Do nothing."""
        return _NO_ATTRIBUTE

    def add_attributes(self, attributes: Attributes | Mapping[str, Any]) -> None:
        """Do nothing."""

    def add_event(self, event: Event) -> Event:
        """Do nothing."""
        return event

    def keep_event(self, event: Event) -> None:
        """Do nothing."""

    def stop(self, stop_event_attributes: Attributes | None = None, stop_time: TracingTimestamp | None = None) -> None:
        """Do nothing."""


_NIL = uuid.UUID(int=0)
_NO_ATTRIBUTE = Attribute("disabled", True)
DISABLED_SPAN = DisabledSpan("disabled", None, 0.0, None, DisabledSpan("disabled", None, 0.0))
"""Shared by all threads. It has a parent, because code may use the parent of an inner span without a check."""


class PhaseSample(Protocol):
    """The phases of one iteration, measured to estimate the phases of the iterations around it."""

    def shares(self, busy_s: float) -> Iterable[tuple[SpanName, float]]:
        """Return each phase with its share of the iteration, on the writer thread.

        Args:
            busy_s: the duration of the iteration without the time in which it waited for data.
        """
        ...


class ObservedIteration(ShortSpan, eq=False, gc=False):
    """An iteration that an integration observed from outside, with its data wait and a sample of its phases."""

    data_s: float | None = 0.0
    """How long the iteration waited for data; None if that was not observed."""
    phases: Any = None  # a PhaseSample, in some iterations; msgspec cannot have a protocol here


def ancestors(span: Span | None) -> Iterator[Span]:
    """Yield a span, its parent, and so on, up to the root that stands for the run.

    Code on the training thread that runs for every iteration has this loop inlined, which is cheaper.
    """
    while span is not None:
        yield span
        span = span._parent


def skip_stopped(span: Span, root: Span) -> None:
    """Replace a stopped parent by its nearest open ancestor, else by the root: no chain of stopped spans grows."""
    parent = span._parent
    if parent is not None and parent.stop_s is not None:
        span._parent = next((outer for outer in ancestors(parent) if outer.stop_s is None), root)
