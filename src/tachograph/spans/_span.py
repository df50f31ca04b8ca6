"""A span: a stretch of time with a name. A small object that is its own context manager, decorator and buffer entry.

Nothing is made before somebody asks for it: ids, time stamps, attributes and events of a span that has none cost
nothing. `ShortSpan` is for iterations and their phases: it goes into the buffer once, when it ends.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from tachograph._base.decorator import wrap_calls
from tachograph.exceptions import TachographError
from tachograph.recorder import DeferredRecord, PendingRecord
from tachograph.spans._attributes import Attribute, Attributes, AttributeValue, attribute_of, attributes_of
from tachograph.spans._event import Event
from tachograph.spans._names import StandardEventName, StandardSpanAttributeName, text_of
from tachograph.spans._timestamp import TracingTimestamp

if TYPE_CHECKING:
    from tachograph.spans._recorder import TrainingRecorder

__all__ = [
    "SpanExtras",
    "ShortSpan",
    "Span",
    "SpanName",
    "current_span",
    "enter_twin",
    "entered_here",
    "leave_twin",
    "new_span",
    "outward",
    "pass_over_ended",
]

SpanName = Enum | str
_Function = TypeVar("_Function", bound=Callable[..., Any])

_MOST_EVENTS = 100

current_span: ContextVar[Span | None] = ContextVar("tachograph_span", default=None)
"""The span begun last, for each thread and each asyncio task. The innermost open one is it, or around it: ending a span
does not touch this, which halves the cost of an iteration.
"""

_get = current_span.get
_set = current_span.set


class SpanExtras:
    """What few spans have."""

    __slots__ = (
        "attributes",
        "events",
        "id",
        "is_queued",
        "is_started",
        "is_written",
        "start_attributes",
        "status",
        "stop_attributes",
        "twins",
        "updated",
        "wall_offset_s",
    )

    def __init__(self) -> None:
        self.attributes: Attributes | None = None
        self.updated: Attributes | None = None
        self.start_attributes: Attributes | None = None
        self.stop_attributes: Attributes | None = None
        self.events: deque[Event] | None = None
        self.id: int | uuid.UUID | None = None
        self.status = "ok"
        self.twins: list[Span] | None = None
        self.wall_offset_s = 0.0
        self.is_queued = False
        """Whether the start is on its way to the writer; if not, the end stands for both."""
        self.is_started = False
        """For the writer: whether it has met the span's start."""
        self.is_written = False
        """For the writer: whether the start is in the journal."""


class Span(DeferredRecord, msgspec.Struct, eq=False):
    """A stretch of time with a name; made by `timed_span` and the context managers, or by `Span.create`.

    Example:
        >>> with timed_span("augment") as span:
        ...     span.add_attribute("num_crops", 4)
    """

    name: Any
    _given: tuple[Any, Any, Any, TrainingRecorder | None] | None = None
    recorder: TrainingRecorder | None = None
    start_s: float | None = None
    stop_s: float | None = None
    _parent: Span | None = None
    _more: SpanExtras | None = None

    @classmethod
    def create(
        cls,
        name: SpanName,
        parent_span: Span | None = None,
        span_attributes: Attributes | None = None,
        start_event_attributes: Attributes | None = None,
        start_time: TracingTimestamp | None = None,
    ) -> Span:
        """Make a span that has begun and that no recorder knows of; `TrainingRecorder.start` makes a recorded one."""
        start_time = start_time or TracingTimestamp.now()
        span = new_span(Span, name, span_attributes, start_event_attributes)
        span._parent = parent_span
        span._prepare()
        span.more.id = uuid.uuid4()
        span.more.wall_offset_s = start_time.seconds_since_epoch - start_time.perf_counter_seconds
        span.start_s = start_time.perf_counter_seconds
        return span

    # What it is ----------------------------------------------------------------------------------------------------

    @property
    def more(self) -> SpanExtras:
        """What few spans have, made when it is asked for."""
        if self._more is None:
            self._more = SpanExtras()
        return self._more

    @property
    def id(self) -> uuid.UUID:
        """A number no other span has, made when it is asked for."""
        if self.recorder is not None:
            return self.recorder.ids.uuid_of(self)
        if not isinstance(self.more.id, uuid.UUID):
            self.more.id = uuid.uuid4()
        return self.more.id

    @property
    def name_str(self) -> str:
        """The name as a text."""
        return text_of(self.name)

    @property
    def parent_span(self) -> Span | None:
        """The span around this one."""
        return self._parent if self._parent is not None and self._parent.name else None

    @property
    def active(self) -> bool:
        """Whether it has begun and not ended."""
        return self.start_s is not None and self.stop_s is None

    @property
    def attributes(self) -> Attributes:
        """All that is said about it."""
        more = self._more
        if more is None or more.attributes is None:
            return Attributes.merge(None if more is None else more.updated)
        return type(more.attributes).merge(more.attributes, more.updated)

    @property
    def updated_attributes(self) -> Attributes:
        """What was said about it after it began."""
        more = self.more
        if more.updated is None:
            more.updated = Attributes()
        return more.updated

    @property
    def start_event(self) -> Event:
        """The event of its beginning."""
        return _edge(self, StandardEventName.SPAN_START, self.start_s, self.more.start_attributes)

    @property
    def stop_event(self) -> Event | None:
        """The event of its end, or None while it is active."""
        if self.stop_s is None:
            return None
        return _edge(self, StandardEventName.SPAN_STOP, self.stop_s, self.more.stop_attributes)

    @property
    def events(self) -> list[Event]:
        """Its beginning, the latest hundred of the events added to it, and its end."""
        stop = self.stop_event
        return [self.start_event, *(self.more.events or ()), *([stop] if stop else [])]

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a reading of the clock the span was timed with."""
        if self.recorder is not None:
            return self.recorder.times.wall_s(steady_s)
        return steady_s + self.more.wall_offset_s

    def duration_msec(self) -> int:
        """Return its length in whole milliseconds.

        Raises:
            TachographError: while it is active.
        """
        if self.start_s is None or self.stop_s is None:
            raise TachographError(f"span {self.name_str!r} has not ended yet")
        return int((self.stop_s - self.start_s) * 1000)

    # What is said about it -----------------------------------------------------------------------------------------

    def add_attribute(self, name: str | Enum, value: AttributeValue) -> Attribute:
        """Say something about it. What cannot be an attribute is stored as a text."""
        if self.stop_s is not None and self.recorder is not None:
            self.recorder.report_misuse(f"attribute {text_of(name)!r} came after the end of span {self.name_str!r}")
        return self.updated_attributes.add_attribute(attribute_of(text_of(name), value, _complainer(self)))

    def add_attributes(self, attributes: Attributes | Mapping[str, Any]) -> None:
        """Say several things about it."""
        for name, value in attributes.items():
            self.add_attribute(name, value.value if isinstance(value, Attribute) else value)

    def add_event(self, event: Event) -> Event:
        """Record that something happened in it."""
        if self.recorder is not None:
            return self.recorder.event(self, event)
        if not self.active:
            raise TachographError(f"span {self.name_str!r} is not active; an event needs an active span")
        self.keep_event(event)
        return event

    def keep_event(self, event: Event) -> None:
        """Remember an event; the latest hundred are."""
        more = self.more
        if more.events is None:
            more.events = deque(maxlen=_MOST_EVENTS)
        more.events.append(event)

    def stop(self, stop_event_attributes: Attributes | None = None, stop_time: TracingTimestamp | None = None) -> None:
        """End it; to end it again changes nothing."""
        if self.stop_s is not None:
            return
        if self.recorder is not None:
            self.recorder.stop(self, stop_event_attributes, stop_time)
            return
        self.stop_s = stop_time.perf_counter_seconds if stop_time else time.perf_counter()
        self.more.stop_attributes = stop_event_attributes
        self.add_attribute(StandardSpanAttributeName.DURATION_MSEC, self.duration_msec())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        events = [event.to_json() for event in self.events]
        return {"name": self.name_str, "id": str(self.id), "events": events, "attributes": self.attributes.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Span:
        """Make a span from what `to_json` returned."""
        events = [Event.from_json(event) for event in data["events"]]
        first, last = events[0], events[-1]
        own = [event for event in events if event.name_str not in set(_EDGES)]
        span = cls.create(data["name"], None, Attributes.from_json(data.get("attributes")), None, first.timestamp)
        span.more.start_attributes = first.attributes
        span.more.id = uuid.UUID(str(data["id"]))
        for event in own:
            span.keep_event(event)
        if last.name_str == StandardEventName.SPAN_STOP:
            span.stop_s, span.more.stop_attributes = last.timestamp.perf_counter_seconds, last.attributes
        return span

    def __repr__(self) -> str:
        state = "active" if self.active else "not begun" if self.start_s is None else "ended"
        return f"Span({self.name_str!r}, {state})"

    # As a context manager and a decorator --------------------------------------------------------------------------

    def __enter__(self) -> Span:
        if self.start_s is not None:
            return enter_twin(self)
        recorder = self.recorder or _find_parent().recorder
        assert recorder is not None  # noqa: S101 - a parent that was found has one
        recorder.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        span = entered_here(self)
        if span.recorder is not None:
            span.recorder.end(span, error=error)
        if span is not self:
            leave_twin(self, span)

    def __call__(self, function: _Function) -> _Function:
        """Use it as a decorator: each call of the function is a span of its own."""
        return wrap_calls(function, lambda _args: self._again())

    def _again(self) -> Span:
        """Return a span like this one that has not begun."""
        return type(self)(self.name, self._given, None if self._given is None else self._given[3])

    def _prepare(self) -> None:
        """Take over what was given, when the span begins."""
        if self._given is None:
            return
        attributes, start_attributes, prepare, _ = self._given
        if attributes:
            self.more.attributes = attributes_of(attributes, _complainer(self))
        if start_attributes:
            self.more.start_attributes = attributes_of(start_attributes, _complainer(self))
        if prepare is not None:
            prepare(self)

    def before_end(self, error: BaseException | None, now_s: float) -> None:
        """Do what belongs to the end, while the span is still open."""

    # As an entry of the buffer -------------------------------------------------------------------------------------

    def notes(self, latest: Mapping[str, Any] | None) -> Iterable[PendingRecord]:
        """Return what to record of it; it is in the buffer when it begins and again when it has ended."""
        return self.recorder.aggregator.take(self, latest) if self.recorder is not None else ()

    def notes_of_all(
        self, guests: Sequence[Any], latest: Iterable[Mapping[str, Any] | None]
    ) -> Iterable[PendingRecord]:
        """Return what to record of several short spans, of which this is one."""
        return self.recorder.aggregator.take_all(guests, latest) if self.recorder is not None else ()


class ShortSpan(Span, eq=False, gc=False):
    """An iteration, or a phase of one: unless it is to be recorded by itself, it is only summed up.

    The garbage collector is told not to look at them: nothing they refer to refers to them.
    """

    goes_beside: ClassVar[bool] = True

    # The hot path: this, `__exit__`, and making the object, which is why spans are structs.
    def __enter__(self) -> Span:
        parent = _get()
        while parent is not None and parent.stop_s is not None:
            parent = parent._parent
        around = parent._parent if parent is not None else None
        if (
            parent is None
            or around is None
            or around.stop_s is not None
            or self.start_s is not None
            or self._given is not None
        ):
            if self.start_s is not None or self._given is not None:
                return super().__enter__()
            parent = _find_parent()
            pass_over_ended(parent)
        recorder: TrainingRecorder = parent.recorder  # type: ignore[assignment] # one that was begun has it
        if recorder.begins_short:
            return super().__enter__()
        self._parent = parent
        self.recorder = recorder
        _set(self)
        self.start_s = recorder.now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        recorder = self.recorder
        if recorder is None:
            return  # it was never entered
        stop_s = recorder.now()
        if error is not None or self._more is not None:
            super().__exit__(kind, error, _trace)
            return
        self.stop_s = stop_s
        buffer = recorder.buffer
        if len(buffer) > 4096:  # PRESSURE
            recorder.take_slowly(self)
        else:
            buffer.append(self)


_Kind = TypeVar("_Kind", bound=Span)


def new_span(
    kind: type[_Kind],
    name: SpanName,
    attributes: Attributes | Mapping[str, Any] | None = None,
    start_attributes: Attributes | Mapping[str, Any] | None = None,
    prepare: Callable[[Span], None] | None = None,
    recorder: TrainingRecorder | None = None,
) -> _Kind:
    """Make a span that has not begun.

    Args:
        kind: its class.
        name: its name.
        attributes: what to say about it.
        start_attributes: what to say about its beginning.
        prepare: called when it begins.
        recorder: what records it, if that is not to be found out when it begins.
    """
    if attributes is None and start_attributes is None and prepare is None and recorder is None:
        return kind(name)
    return kind(name, (attributes, start_attributes, prepare, recorder), recorder)


_EDGES = (StandardEventName.SPAN_START, StandardEventName.SPAN_STOP)


def _edge(span: Span, name: StandardEventName, steady_s: float | None, attributes: Attributes | None) -> Event:
    """Return the event of a span's beginning or end."""
    if steady_s is None:
        raise TachographError(f"span {span.name_str!r} has not begun")
    return Event(name, TracingTimestamp(span.wall_s(steady_s), steady_s), attributes)


def _complainer(span: Span) -> Callable[[str], None]:
    """Return what tells of a mistake in what is said about a span."""
    recorder = span.recorder
    return lambda what: recorder.report_misuse(f"span {span.name_str!r}: {what}") if recorder is not None else None


def outward(span: Span | None) -> Iterator[Span]:
    """Yield a span, the one around it, and so on, up to what stands for the run.

    Where the training thread looks at every call, a loop is written out instead, which costs it less.
    """
    while span is not None:
        yield span
        span = span._parent


def pass_over_ended(span: Span) -> None:
    """Let go of spans around this one that have ended, so that no chain of them grows."""
    around = span._parent
    if around is None or around.stop_s is None:
        return
    opened = next((outer for outer in outward(around) if outer.stop_s is None), None)
    span._parent = opened if opened is not None or span.recorder is None else span.recorder.root


def enter_twin(span: Span) -> Span:
    """Enter a span a second time: an object kept outside the loop is a new span each time."""
    twin = span._again()
    more = span.more
    if more.twins is None:
        more.twins = []
    more.twins.append(twin)  # which is atomic, unlike making another list
    return twin.__enter__()


def leave_twin(span: Span, twin: Span) -> None:
    """Forget one of the spans that an object stood for."""
    with contextlib.suppress(ValueError, AttributeError):
        span.more.twins.remove(twin)  # type: ignore[union-attr] # there may be none


def entered_here(span: Span) -> Span:
    """Return the span that an object stands for at the present place, where several threads may use it."""
    twins = list(span._more.twins or ()) if span._more is not None else []
    if not twins:
        return span
    for inner in outward(_get()):
        if inner.stop_s is None and (inner is span or any(inner is twin for twin in twins)):
            return inner
    return twins[-1] if span.stop_s is not None else span


def _find_parent() -> Span:
    from tachograph.spans._current import find_parent

    return find_parent()
