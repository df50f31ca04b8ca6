"""`TrainingRecorder`: records the spans of one run, on the training thread; `SpanAggregator` is the writer's side."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any, Literal

from tachograph._base.guard import guard, warn
from tachograph.exceptions import TachographError
from tachograph.recorder import BACKPRESSURE_SIZE, BufferItem, Run, error_fields, error_message, error_type
from tachograph.records import LazyValue
from tachograph.spans._aggregator import Call, SpanAggregator
from tachograph.spans._attributes import Attributes
from tachograph.spans._event import ErrorEvent, Event
from tachograph.spans._filter import ExportCustomizationMode, SpanFilter
from tachograph.spans._names import text_of
from tachograph.spans._parameters import Parameters, ParameterSource
from tachograph.spans._span import ShortSpan, Span, SpanName, current_span, new_span, outward, pass_over_ended
from tachograph.spans._time_converter import SpanIds, TimeConverter
from tachograph.spans._timestamp import TracingTimestamp

__all__ = ["TrainingRecorder"]

EVENT_FIELDS = frozenset({"name", "span_id"})
"""Fields of an event's record; an attribute of that name is stored with an underscore behind it."""

_TOLD = "__tachograph_recorded__"
_MOST_OPEN = 10_000
_NO_GUARD = contextlib.nullcontext()


class TrainingRecorder:
    """Records the spans, events and training metrics of one run.

    Attributes:
        run: the run it records into.
        propagates: whether faults of telemetry itself are raised, as One Logger's PROPAGATE_EXCEPTIONS asks for.
        base: the span around all others: the application, or nothing's.
        identity: attributes for the event that opens an application.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.propagates = False
        self.identity: dict[str, Any] = {}
        self.owns_run = False
        self.driver: str | None = None
        """What marks the iterations, so that nothing else does: the name of an integration."""
        self.before_close: list[Callable[[], None]] = []
        """Called once, before what is open is ended: for those who know of something that is not recorded yet."""
        self.owner: Span | None = None
        """The application with which a run that was begun for it ends."""
        self.times = TimeConverter(run, self.report_misuse)
        self.now = self.times.now
        self.ids = SpanIds(run)
        self._writer = run._writer if run.status == "running" and not run._is_forked else None
        self.buffer: deque[BufferItem] = self._writer.buffer if self._writer is not None else deque(maxlen=0)
        self.root = Span("", recorder=self, start_s=self.now())
        self.base = self.root
        self.filter = SpanFilter()
        self.begins_short = False
        self.is_closed = False
        """Whether nothing is recorded any more, for the run has ended or is a parent's."""
        self.aggregator = SpanAggregator(self)
        self.detached: dict[str, Span] = {}
        """Iterations begun by a callback, which may be ended in another thread or task."""
        self._lock = threading.RLock()
        self._open: dict[Span, None] = {}
        self.next_save: Callable[[], int] = itertools.count(1).__next__
        """Counts the attempts to save a checkpoint."""
        self._told: set[str] = set()
        facts = run.facts
        batch_size = facts.get("effective_batch_size", facts.get("batch_size"))
        world_size = facts.get("world_size") or 1
        self._source = ParameterSource({})
        with contextlib.suppress(TachographError, TypeError):  # guesses from a config, which may hold anything
            self._source.update({"world_size": world_size})
            self._source.update({"global_batch_size": batch_size * world_size})
        with contextlib.suppress(TachographError):
            self._source.update({"train_iterations_target": facts.get("max_steps")})
        with contextlib.suppress(TachographError):
            self._source.update({"perf_tag": facts.get("perf_tag") or None})
        self.parameters = self._source.ask(lambda reason: None)
        """What was known of the job when it was last asked for."""
        self.aggregator.begin_with(self.parameters)

    # Faults --------------------------------------------------------------------------------------------------------

    def guarded(self, place: str) -> contextlib.AbstractContextManager[None]:
        """Return what keeps a fault inside from reaching the training code, unless it is to be propagated."""
        return _NO_GUARD if self.propagates else guard(place, functools.partial(_tell_fault, self.run))

    def report_misuse(self, what: str) -> None:
        """Tell of a mistake in the use of spans: once, in the journal; raised if faults are to be propagated."""
        if self.propagates:
            raise TachographError(what)
        if what in self._told or len(self._told) >= 100:
            return
        self._told.add(what)
        warn("%s", what)
        self.run.report_error("span_misused", "", what)

    # One Logger's recorder -----------------------------------------------------------------------------------------

    def start(
        self,
        span_name: SpanName,
        span_attributes: Attributes | None = None,
        start_event_attributes: Attributes | None = None,
        start_time: TracingTimestamp | None = None,
        parent_span: Span | None = None,
    ) -> Span:
        """Begin a span, which is the current one from now on."""
        span = new_span(Span, span_name, span_attributes, start_event_attributes, recorder=self)
        span._parent = parent_span
        self.begin(span, self.times.of_timestamp(start_time, "start_time"))
        return span

    def stop(
        self,
        span: Span,
        stop_event_attributes: Attributes | None = None,
        stop_time: TracingTimestamp | None = None,
    ) -> None:
        """End a span."""
        self.end(span, self.times.of_timestamp(stop_time, "stop_time"), stop_attributes=stop_event_attributes)

    def event(self, span: Span | Event, event: Event | None = None) -> Event:
        """Record that something happened, in a span, or in the current one if only the event is given."""
        if isinstance(span, Event):
            return self.event(self.current, span)
        if not isinstance(event, Event):
            self.report_misuse(f"an event is expected, such as Event.create('name'), got {event or span!r:.80}")
            return Event.create(str(event or span))
        with self.guarded("recording an event"):
            if span.stop_s is not None:
                self.report_misuse(f"an event {event.name_str!r} came after the end of span {span.name_str!r}")
            span.keep_event(event)
            steady_s = self.times.of_timestamp(event.timestamp, f"the time of event {event.name_str!r}")
            if isinstance(event, ErrorEvent):
                self._about(span, "error", _error_fields(event), steady_s)
            else:
                said = event.attributes.to_json()
                said.pop("timestamp_msec", None)
                fields = {f"{name}_" if name in EVENT_FIELDS else name: value for name, value in said.items()}
                self._about(span, "event", {"name": event.name_str, **fields}, steady_s)
        return event

    def error(self, span: Span, error_message: str, exception: BaseException | None = None) -> ErrorEvent:
        """Record an error of the training code in a span."""
        event = ErrorEvent.create(error_message, exception)
        self.event(span, event)
        return event

    def telemetry_data_error(self, error_message: str, attributes: Attributes | None = None) -> None:
        """Record that telemetry data is missing or wrong."""
        with self.guarded("recording an error of telemetry"):
            more = f"; {attributes.to_json()}" if attributes else ""
            self.run.report_error("telemetry_data_error", "", f"{error_message}{more}")

    def get_active_spans_by_name(self, span_name: SpanName) -> list[Span]:
        """Return the open spans of a name, oldest first."""
        name = text_of(span_name)
        with self._lock:
            return [span for span in self._open if span.name_str == name]

    def find_open(self, span_name: SpanName, inside: SpanName | None = None) -> Span | None:
        """Return the innermost open span of a name: at the present place, else in the run.

        Args:
            span_name: the name.
            inside: a name that ends the search, so that nothing outside such a span is found.
        """
        span = current_span.get()
        while span is not None:
            if span.stop_s is None and span.recorder is self:
                if span.name == span_name:
                    return span
                if inside is not None and span.name == inside:
                    return None
            span = span._parent
        if inside is not None:
            return None
        loose = self.detached.get(text_of(span_name))
        if loose is not None and loose.active:
            return loose
        found = self.get_active_spans_by_name(span_name)
        return found[-1] if found else None

    @property
    def current(self) -> Span:
        """The innermost open span of this run at the present place."""
        span = current_span.get()
        while span is not None and (span.stop_s is not None or span.recorder is not self):
            span = span._parent
        return span if span is not None and span.name else self.base

    # The life of a span --------------------------------------------------------------------------------------------

    def begin(self, span: Span, start_s: float | None = None) -> None:
        """Begin a span, now or at a time on the steady clock."""
        span.recorder = self
        span.start_s = self.now() if start_s is None else start_s
        if span._parent is None:
            span._parent = self.current
        pass_over_ended(span._parent)
        current_span.set(span)
        span.more  # noqa: B018 - made now, it tells that the span was begun the long way
        with self._lock:
            self._open[span] = None
        if len(self._open) > _MOST_OPEN:
            self._end_oldest(span.name)
        try:
            with self.guarded("preparing a span"):
                span._prepare()
        except BaseException:  # faults are propagated: then the block is never entered, and nobody ends the span
            span.stop_s = span.start_s
            self._leave(span)
            raise
        if not isinstance(span, ShortSpan) or self.filter.keeps(span.name_str):
            span.more.is_queued = True  # before, for the writer may meet it at once
            if not self.put(span, counts=False):
                span.more.is_queued = False  # then the end stands for both

    def end(
        self,
        span: Span,
        stop_s: float | None = None,
        *,
        error: BaseException | None = None,
        stop_attributes: Attributes | None = None,
        status: str = "ok",
    ) -> None:
        """End a span: now, or at a time on the steady clock, or because of an exception."""
        with self.guarded("ending a span"):
            now_s = self.now() if stop_s is None else stop_s
            if span.start_s is None or span.stop_s is not None:
                state = "has not begun" if span.start_s is None else "has ended already"
                is_known = span.more.status == "left_open"  # the application ended it
                if error is None and self._writer is not None and not is_known:
                    self.report_misuse(f"span {span.name_str!r} {state} and cannot be ended")
                return
            more = span.more
            more.status = status if error is None else "left" if _is_no_error(error) else "error"
            more.stop_attributes = stop_attributes
            try:
                if more.status == "error" and error is not None:
                    self._record_error(span, error, now_s)
                span.before_end(error, now_s)
            finally:
                span.stop_s = max(now_s, span.start_s)
                self._leave(span)
                self.put(span, must=more.is_queued)  # no more of these than of starts that were taken

    def _end_oldest(self, name: SpanName) -> None:
        """End a span that was probably forgotten, for somebody begins spans and never ends them."""
        with self._lock:
            spans = list(itertools.islice(self._open, _MOST_OPEN // 10))
        place = next((place for place, span in enumerate(spans) if span.name == name), len(spans) - 1)
        self.report_misuse(f"more than {_MOST_OPEN} spans are open, such as {text_of(name)!r}; the oldest are ended")
        self.end(spans[place], status="left_open")
        for span in spans[place + 1 : place + 3]:
            pass_over_ended(span)  # or a chain of ended ones would grow

    def _leave(self, span: Span) -> None:
        with self._lock:
            self._open.pop(span, None)
        if self.base is span:
            outer = (outer for outer in outward(span._parent) if outer.stop_s is None and outer.name == span.name)
            self.base = next(outer, self.root)

    def add_finished_span(self, name: SpanName, start_s: float, stop_s: float, parent: Span) -> None:
        """Record an iteration or a phase that is over, for those who learn of it afterwards."""
        self.finish_span(ShortSpan(name, None, self, start_s, None, parent), stop_s)

    def finish_span(self, span: Span, stop_s: float) -> None:
        """Record the end of a short span whose beginning was only noted: made, but never entered."""
        span.stop_s = stop_s
        if len(self.buffer) > BACKPRESSURE_SIZE:
            self.take_slowly(span)
        else:
            self.buffer.append(span)

    def take_slowly(self, span: Span) -> None:
        """Queue a short span while the buffer is under pressure."""
        if self._writer is None:
            return
        with self.guarded("recording an iteration"):
            self.run._make_room(self._writer)
            if len(self.buffer) >= self.run._settings.buffer_size:
                self.count_loss("the buffer was full")
            else:
                self.buffer.append(span)

    def count_loss(self, reason: str) -> None:
        """Count a record that could not be made."""
        if self.run._writer is not None:  # also after the end, while the writer still works
            self.run._writer.losses.add(reason)

    def _record_error(self, span: Span, error: BaseException, now_s: float) -> None:
        """Record an exception in the innermost span it leaves; those around it only say that it passed."""
        span.add_attribute("error", f"{error_type(error)}: {error_message(error)}"[:500])
        if not isinstance(error, Exception) or getattr(error, _TOLD, None) == self.run.id:
            return
        with contextlib.suppress(Exception):  # one that takes no attributes is told again further out
            setattr(error, _TOLD, self.run.id)
        self._about(span, "error", error_fields(error, fatal=False, where=f"span {span.name_str}"), now_s)

    def _about(self, span: Span, event: str, fields: Mapping[str, Any], steady_s: float | None = None) -> None:
        at_s = self.now() if steady_s is None else steady_s
        self.put(Call(self.aggregator, lambda: self.aggregator.notes.about(span, at_s, event, fields)))

    def put(self, entry: BufferItem, *, must: bool = False, counts: bool = True) -> bool:
        """Queue an entry for the writer; return whether it was taken."""
        if self._writer is None:
            return False
        if len(self.buffer) > BACKPRESSURE_SIZE:
            self.run._make_room(self._writer)
        is_taken = self._writer.put(entry, must=must)
        if counts and not is_taken:
            self.count_loss("the buffer was full")
        return is_taken

    # What is known of the job --------------------------------------------------------------------------------------

    def configure(
        self, parameters: Mapping[str, Any], *, tells: Literal["now", "later", "never"] = "now"
    ) -> Parameters:
        """Take what is known of the job, at any time; it holds from then on. See `set_training_config`.

        Args:
            parameters: names and values, or functions to ask.
            tells: when it is recorded: later is with the next change, or when an application begins; never is for what
                is said elsewhere.
        """
        self._source.update(parameters)
        known = self.parameters = self._source.ask(self.report_misuse)
        if tells == "never":
            self.put(Call(self.aggregator, lambda: self.aggregator.begin_with(known)), must=True)
        else:
            self.use(known, tells=tells == "now")
        return known

    def use(self, known: Parameters, *, tells: bool) -> None:
        """Use parameters from now on, and perhaps record what has changed since they were recorded last."""
        base, now_s = self.base, self.now()
        self.put(Call(self.aggregator, lambda: self.aggregator.change(known, base, now_s, tells=tells)), must=True)

    def customize_export(self, mode: ExportCustomizationMode, names: Collection[Enum | str] | None = None) -> None:
        """Choose which spans are recorded one by one from now on."""
        chosen = self.filter = SpanFilter(mode, names)
        self.begins_short = chosen.keeps_short
        self.put(Call(self.aggregator, lambda: self.aggregator.use_filter(chosen)), must=True)

    def saved(
        self,
        step: int | None,
        span: Span | None = None,
        path: str | os.PathLike[str] | None = None,
        at_s: float | None = None,
    ) -> None:
        """Record that the checkpoint of a step is safe."""
        base, now_s = self.base, self.now() if at_s is None else at_s
        place = os.path.abspath(path) if path is not None else None
        size = LazyValue(lambda: _size_bytes(place)) if place is not None else None
        text = os.fspath(path) if path is not None else None
        self.put(Call(self.aggregator, lambda: self.aggregator.saved(span, base, step, now_s, text, size)))

    # The end -------------------------------------------------------------------------------------------------------

    def close_open(self, since: Span | None = None) -> None:
        """End the spans that were left open, the latest first, and mark them.

        Args:
            since: only those inside this one.
        """
        with self._lock:
            left = list(reversed(self._open))
        for span in left:
            if since is None or any(outer is since for outer in outward(span._parent)):
                self.end(span, status="left_open")

    def close(self) -> None:
        """End what is still open and report what was not reported yet; called when the run ends."""
        if self._writer is None:
            return
        self.run_before_close()
        self.close_open()
        now_s = self.now()
        self.put(Call(self.aggregator, lambda: self.aggregator.finish(now_s)), must=True)
        self.forget()

    def run_before_close(self) -> None:
        """Let those who know of something that is not recorded yet tell it."""
        while self.before_close:
            with self.guarded("hearing last words"):
                self.before_close.pop()()

    def forget(self) -> None:
        """Record nothing any more."""
        self._writer = None
        self.is_closed = self.begins_short = True  # so that short spans look for another run as well
        self.buffer = deque(maxlen=0)
        self.base = self.root
        self._lock = threading.RLock()  # in a forked child, a thread of the parent may have held it
        self.ids.renew_lock()
        # So that what comes later looks for another run, also at places where one of these is the current span.
        for span in outward(current_span.get()):
            if span.recorder is self and span.stop_s is None:
                span.stop_s = self.now()
                span.more.status = "left_open"  # a short one looks there when it is left
        for left in (self.root, *self._open):
            left.stop_s = self.now()
        self._open.clear()
        self.detached.clear()


def _tell_fault(run: Run, place: str, fault: Exception) -> None:
    """Put a fault into the journal: it is never only a line in a log."""
    run.report_error("fault", "", f"{type(fault).__name__} while {place}: {fault!s:.300}")


def _is_no_error(error: BaseException) -> bool:
    """Tell whether an exception only says that a block is left: a generator is closed, or the program ends well."""
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))


def _error_fields(event: ErrorEvent) -> dict[str, Any]:
    said = event.attributes.to_json()
    return {
        "error_type": said.get("exception_type"),
        "error_message": said.get("exception_message") or said.get("error_message"),
        "traceback": said.get("exception_traceback"),
        "fatal": False,
        "where": said.get("error_message"),
    }


def _size_bytes(path: str | None) -> int | None:
    """Return the size of a file, or of everything in a folder."""
    if path is None or not os.path.exists(path):
        return None
    if os.path.isfile(path):
        return os.path.getsize(path)
    num_bytes = 0
    for folder, _, names in os.walk(path):
        for name in names[:10_000]:
            with contextlib.suppress(OSError):  # a link to nowhere, or a file that was just removed
                num_bytes += os.path.getsize(os.path.join(folder, name))
    return num_bytes
