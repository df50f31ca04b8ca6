"""`SpanRecorder`: records the spans of one run, on the training thread.

The training thread only builds spans and appends them to the run's buffer. Everything else happens on the writer
thread, in `SpanAggregator`, which is registered with the writer as the handler of span items.

Callers are the scopes, the methods of a span that its user calls (`add_event`, `stop`), and integrations. The recorder
itself only reads and sets the fields of spans; it calls none of these methods, so a span takes one straight path.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import Any, Literal

from tachograph._base.guard import guard, suppress, warn
from tachograph._base.paths import absolute_path
from tachograph.exceptions import TachographError
from tachograph.recorder import BACKPRESSURE_SIZE, BufferItem, RankRun, Run, error_fields, error_message, error_type
from tachograph.records import LazyValue
from tachograph.spans._aggregator import PAUSES, PHASE_OF, AggregatorTask, SpanAggregator, overlap_text
from tachograph.spans._attributes import Attributes, attributes_of
from tachograph.spans._event import Event
from tachograph.spans._filter import ExportCustomizationMode, SpanFilter
from tachograph.spans._names import ITERATION_LOOPS, text_of
from tachograph.spans._parameters import Parameters, ParameterSource
from tachograph.spans._span import ObservedIteration, ShortSpan, Span, SpanName, ancestors, current_span, skip_stopped
from tachograph.spans._span_ids import SpanIds
from tachograph.spans._time_converter import TimeConverter

__all__ = ["SpanRecorder"]

_RECORDED_MARK = "__tachograph_recorded__"
_MAX_OPEN = 10_000
_MAX_MISUSES = 100


class SpanRecorder:
    """Records the spans, events and training metrics of one run.

    Attributes:
        run: the run it records into.
        base: the outermost open span: the application, or the root.
        root: the span that stands for the run; it has no name and is not recorded.
        application_attributes: attributes for the event that opens an application, instead of the default ones.
    """

    latest_short_span: Span | None = None
    """The iteration or phase that was entered last; it may have ended."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._propagates_exceptions = False
        self.application_attributes: dict[str, Any] = {}
        self.owns_run = False
        self.iteration_marker: str | None = None
        """The name of the integration that marks the iterations; no other one may."""
        self.row_step: Callable[[], int | None] | None = None
        """Returns the step of the loop that an integration observes, for a row that something else logs now.

        None before the first step. An `ObservedStep` if the integration also records the pace of the loop.
        """
        self.before_close: list[Callable[[], None]] = []
        """Called once, before the open spans are stopped, by integrations that still have something to record."""
        self.run_span: Span | None = None
        """The application span that started the run and finishes it."""
        self.times = TimeConverter(run, self.report_misuse)
        self.now = self.times.now
        self.ids = SpanIds(run.id, is_recorded=run.folder is not None)
        backend = self._backend = run.backend if run.status == "running" and not run._is_forked else None
        self.buffer: deque[BufferItem] = self._backend.buffer if self._backend is not None else deque(maxlen=0)
        self.root = Span("", self, self.now())
        self.base = self.root
        self.filter = SpanFilter()
        self.records_short_spans = False
        """Whether short spans take the slow path, because some are recorded one by one or because of strict checks."""
        self.is_closed = False
        """Whether recording has stopped, because the run has ended or belongs to a parent process."""
        self.aggregator = SpanAggregator(
            self.ids,
            wall_s=self.times.wall_s,
            log_every=lambda: run.log_every,
            add_loss=self.add_loss,
            log_misuse=self._log_misuse,
            records_ranks=run.settings.ranks != "off",
            is_main_rank=not isinstance(run, RankRun),
            collective_wait=lambda: None if backend is None else backend.collective_wait,
        )
        if self._backend is not None:
            short = (ShortSpan, ObservedIteration)
            self._backend.add_handler(SpanAggregator.ITEM_TYPES, self.aggregator, deferrable=short)
            self._backend.loop_position = self._loop_position
        self.callback_iterations: dict[str, Span] = {}
        """The last iteration that a callback started, by name; another thread or task may stop it."""
        self._open_spans: dict[Span, None] = {}  # without a lock: each operation on it is atomic
        self.next_save: Callable[[], int] = itertools.count(1).__next__
        """Numbers the attempts to save a checkpoint."""
        self._misuses: set[str] = set()
        facts = run.facts
        batch_size = facts.get("effective_batch_size", facts.get("batch_size"))
        world_size = facts.get("world_size") or 1
        self._parameter_source = ParameterSource()
        with suppress(TachographError, TypeError):  # values from a config, which may be anything
            self._parameter_source.update({"world_size": world_size})
            self._parameter_source.update({"global_batch_size": batch_size * world_size})
        with suppress(TachographError):
            self._parameter_source.update({"train_iterations_target": facts.get("max_steps")})
        with suppress(TachographError):
            self._parameter_source.update({"perf_tag": facts.get("perf_tag") or None})
        self.parameters = self._parameter_source.resolve(lambda reason: None)
        """The last resolved parameters of the job."""
        self.aggregator.set_initial(self.parameters)

    # Faults --------------------------------------------------------------------------------------------------------

    @property
    def propagate_exceptions(self) -> bool:
        """Whether faults of telemetry and mistakes in its use are raised, as with One Logger's PROPAGATE_EXCEPTIONS.

        Iterations then take the slow path, which can tell that they overlap before they start.
        """
        return self._propagates_exceptions

    @propagate_exceptions.setter
    def propagate_exceptions(self, propagates: bool) -> None:
        self._propagates_exceptions = propagates
        self._choose_path()

    def _choose_path(self) -> None:
        self.records_short_spans = self.is_closed or self._propagates_exceptions or self.filter.keeps_short

    def guarded(self, activity: str) -> contextlib.AbstractContextManager[None]:
        """Return a guard that keeps faults from the training code, unless they are to propagate."""
        if self.propagate_exceptions:
            return _record_and_raise(self.run, activity)
        return guard(activity, functools.partial(_report_fault, self.run))

    def report_misuse(self, problem: str) -> None:
        """Record a mistake in the use of spans, once, and log it; raise it instead if faults propagate."""
        if self._log_misuse(problem):
            self.run.report_error("span_misused", "", problem)
        if self.propagate_exceptions:
            raise TachographError(problem)

    def _log_misuse(self, problem: str) -> bool:
        """Log a mistake in the use of spans, unless it is raised; return False if that was done before."""
        if problem in self._misuses or len(self._misuses) >= _MAX_MISUSES:
            return False
        self._misuses.add(problem)
        if not self.propagate_exceptions:
            warn("%s", problem)
        return True

    def check_run(self) -> None:
        """Report that the run has ended, so that nothing is recorded. A disabled or a parent's run is no mistake."""
        run = self.run
        if self.is_closed and run.enabled and run.status != "running" and not run._is_forked:
            self.report_misuse(f"run {run.name!r} has ended: its spans and events are no longer recorded")

    def _loop_position(self) -> tuple[int | None, str]:
        """Return how many iterations are complete, and the phase of an open span. Called by the writer thread."""
        pauses = [PHASE_OF[span.name_str] for span in list(self._open_spans) if span.name_str in PAUSES]
        open_phases = (
            PHASE_OF[span.name_str]
            for span in ancestors(self.latest_short_span)
            if span.stop_s is None and span.name_str in PHASE_OF
        )
        return self.aggregator.num_iterations, pauses[-1] if pauses else next(open_phases, "")

    # Finding spans -------------------------------------------------------------------------------------------------

    def open_spans(self, span_name: SpanName) -> list[Span]:
        """Return the open spans of a name, oldest first."""
        name = text_of(span_name)
        return [span for span in list(self._open_spans) if span.name_str == name]

    def find_open(self, span_name: SpanName, inside: SpanName | None = None) -> Span | None:
        """Return the innermost open span of a name: in the current context, else in the run.

        Args:
            span_name: the name.
            inside: the name of a span that ends the search; spans outside of it are not found.
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
        iteration = self.callback_iterations.get(text_of(span_name))
        if iteration is not None and iteration.active:
            return iteration
        spans = self.open_spans(span_name)
        return spans[-1] if spans else None

    @property
    def current(self) -> Span:
        """The innermost open span of this run in the current context."""
        span = current_span.get()
        while span is not None and (span.stop_s is not None or span.recorder is not self):
            span = span._parent
        return span if span is not None and span.name else self.base

    # Starting and stopping spans -----------------------------------------------------------------------------------

    def open_span(
        self,
        span: Span,
        start_s: float | None = None,
        *,
        attributes: Attributes | Mapping[str, Any] | None = None,
        start_attributes: Attributes | Mapping[str, Any] | None = None,
        on_start: Callable[[Span], None] | None = None,
        on_stop: Callable[[Span, BaseException | None, float], None] | None = None,
    ) -> None:
        """Start a span, which becomes the current one.

        Args:
            span: a span that has not started.
            start_s: when it started, on the steady clock; now if not given.
            attributes: its attributes.
            start_attributes: the attributes of its start event.
            on_start: called with the span before it is recorded.
            on_stop: called before the span stops, with the span, the exception that stops it, and the time.
        """
        if self.is_closed:
            self.check_run()
        if self._propagates_exceptions and span.name in ITERATION_LOOPS:
            open_iteration = self.find_open(span.name, inside=ITERATION_LOOPS[span.name])
            if open_iteration is not None:
                self.report_misuse(overlap_text(open_iteration))
        span.recorder = self
        span.start_s = self.now() if start_s is None else start_s
        if span._parent is None:
            span._parent = self.current
        skip_stopped(span._parent, self.root)
        current_span.set(span)
        extras = span.extras  # created here: on exit, a short span with extras takes the slow path
        extras.on_stop = on_stop
        self._open_spans[span] = None
        if len(self._open_spans) > _MAX_OPEN:
            self._close_oldest(span.name)
        try:
            with self.guarded("preparing a span"):
                if attributes:
                    extras.attributes = self._attributes_of(span, attributes)
                if start_attributes:
                    extras.start_attributes = self._attributes_of(span, start_attributes)
                if on_start is not None:
                    on_start(span)
        except BaseException:  # faults propagate: then the block is never entered, and nothing else stops the span
            span.stop_s = span.start_s
            self._remove(span)
            raise
        if type(span) is not ShortSpan or self.filter.keeps(span.name_str):
            extras.is_queued = True  # set first, because the writer may handle the item at once
            if not self.put(span, count_loss=False):
                extras.is_queued = False  # the stop record will stand for both

    def close_span(
        self,
        span: Span,
        stop_s: float | None = None,
        *,
        error: BaseException | None = None,
        stop_attributes: Attributes | None = None,
        status: str = "ok",
    ) -> None:
        """Stop a span: now, or at a time on the steady clock, or because of an exception."""
        with self.guarded("stopping a span"):
            now_s = self.now() if stop_s is None else stop_s
            if span.start_s is None or span.stop_s is not None:
                state = "has not started" if span.start_s is None else "has already stopped"
                is_known = span.extras.status == "left_open"  # stopped together with the application
                if error is None and self._backend is not None and not is_known:
                    self.report_misuse(f"Span {span.name_str!r} not found: it {state}")
                return
            extras = span.extras
            extras.status = status if error is None else "left" if _is_clean_exit(error) else "error"
            extras.stop_attributes = stop_attributes
            try:
                if extras.status == "error" and error is not None:
                    self._record_exception(span, error, now_s)
                if extras.on_stop is not None:
                    extras.on_stop(span, error, now_s)
            finally:
                span.stop_s = max(now_s, span.start_s)
                self._remove(span)
                self.put(span, force=extras.is_queued)  # bounded, because the start was accepted

    def _attributes_of(self, span: Span, values: Attributes | Mapping[str, Any]) -> Attributes:
        return attributes_of(values, lambda problem: self.report_misuse(f"span {span.name_str!r}: {problem}"))

    def _close_oldest(self, name: SpanName) -> None:
        """Stop one of the oldest spans: the caller starts spans and never stops them."""
        spans = list(itertools.islice(self._open_spans, _MAX_OPEN // 10))
        index = next((index for index, span in enumerate(spans) if span.name == name), len(spans) - 1)
        self.report_misuse(f"more than {_MAX_OPEN} spans are open, such as {text_of(name)!r}; stopping the oldest")
        self.close_span(spans[index], status="left_open")
        for span in spans[index + 1 : index + 3]:
            skip_stopped(span, self.root)  # or a chain of stopped spans would grow

    def _remove(self, span: Span) -> None:
        self._open_spans.pop(span, None)
        if self.base is span:
            outer = (outer for outer in ancestors(span._parent) if outer.stop_s is None and outer.name == span.name)
            self.base = next(outer, self.root)

    # Events and errors of spans ------------------------------------------------------------------------------------

    def event(self, span: Span | Event | None, event: Event | None = None) -> Event:
        """Record an event of a span, or of the current span if only the event is given."""
        if isinstance(span, Event):
            return self.event(self.current, span)
        if not isinstance(event, Event):
            self.report_misuse(f"expected an event, such as Event.create('name'), got {event or span!r:.80}")
            return Event.create(str(event or span))
        if not isinstance(span, Span):
            self.report_misuse(f"No span to add event to: expected a span, got {span!r:.80}")
            return event
        with self.guarded("recording an event"):
            self.check_run()
            if span.stop_s is not None and span.name:
                self.report_misuse(
                    f"Cannot add an event to a span that is not running: {event.name_str!r} to {span.name_str!r}"
                )
            span.keep_event(event)
            steady_s = self.times.of_timestamp(event.timestamp, f"the time of event {event.name_str!r}")
            kind, fields = event.to_record()
            self.add_span_record(span, kind, fields, steady_s)
        return event

    def _record_exception(self, span: Span, error: BaseException, now_s: float) -> None:
        """Record an exception in the innermost span it leaves; outer spans only get an `error` attribute."""
        span.updated_attributes.add("error", f"{error_type(error)}: {error_message(error)}"[:500])
        if not isinstance(error, Exception) or getattr(error, _RECORDED_MARK, None) == self.run.id:
            return
        with suppress(Exception):  # an exception that takes no attributes is recorded again further out
            setattr(error, _RECORDED_MARK, self.run.id)
        self.add_span_record(span, "error", error_fields(error, fatal=False, where=f"span {span.name_str}"), now_s)

    def add_span_record(self, span: Span, event: str, fields: Mapping[str, Any], steady_s: float | None = None) -> None:
        """Record something that belongs to a span."""
        at_s = self.now() if steady_s is None else steady_s
        self.put(AggregatorTask(lambda: self.aggregator.records.build(span, at_s, event, fields)))

    # Iterations and phases that integrations observe ---------------------------------------------------------------

    def add_short_span(self, span: Span) -> None:
        """Record a short span that has stopped."""
        if len(self.buffer) > BACKPRESSURE_SIZE:
            self.add_under_pressure(span)
        else:
            self.buffer.append(span)

    def close_short_span(self, span: Span) -> None:
        """Stop a short span now."""
        if span._extras is not None:
            self.close_span(span)
            return
        span.stop_s = self.now()
        self.add_short_span(span)

    def add_finished_span(self, name: SpanName, start_s: float, stop_s: float, parent: Span) -> None:
        """Record a short span that has stopped, by its times."""
        self.add_short_span(ShortSpan(name, self, start_s, stop_s, parent))

    def add_under_pressure(self, span: Span) -> None:
        """Queue a short span while the buffer is filling up."""
        if self._backend is None:
            return
        with self.guarded("recording an iteration"):
            self.put(span)

    def add_loss(self, reason: str) -> None:
        """Count a lost record."""
        if self.run.backend is not None:  # also after the end, while the writer still works
            self.run.backend.losses.add(reason)

    def put(self, item: BufferItem, *, force: bool = False, count_loss: bool = True) -> bool:
        """Queue an item for the writer; return whether it was accepted.

        Args:
            item: the item.
            force: accept it even if the buffer is full.
            count_loss: whether to count a rejected item as a loss.
        """
        backend = self._backend  # once: a signal handler may end the run
        if backend is None:
            return False
        is_accepted = backend.put(item, force=force)
        if count_loss and not is_accepted:
            self.add_loss("the buffer was full")
        return is_accepted

    # Parameters of the job --------------------------------------------------------------------------------------

    def configure(
        self, parameters: Mapping[str, Any], *, record: Literal["now", "later", "never"] = "now"
    ) -> Parameters:
        """Set parameters of the job, at any time; they apply from then on. See `set_training_config`.

        Args:
            parameters: names and values, or functions that return values.
            record: when to record them: `later` is with the next change, with the start of an application or a training
                loop, or with the first metrics; `never` is for values that are recorded elsewhere.
        """
        self._parameter_source.update(parameters)
        resolved_parameters = self.parameters = self._parameter_source.resolve(self.report_misuse)
        if record == "never":
            self.put(AggregatorTask(lambda: self.aggregator.set_initial(resolved_parameters)), force=True)
        else:
            self.use_parameters(resolved_parameters, record=record == "now")
        return resolved_parameters

    def use_parameters(self, parameters: Parameters, *, record: bool) -> None:
        """Use parameters from now on, and record them if asked to and they have changed since the last record."""
        owner, now_s = self.base if self.base.name else self.current, self.now()
        self.put(AggregatorTask(lambda: self.aggregator.change(parameters, owner, now_s, record=record)), force=True)

    def customize_export(self, mode: ExportCustomizationMode, names: Collection[Enum | str] | None = None) -> None:
        """Set which spans are recorded one by one from now on."""
        span_filter = self.filter = SpanFilter(mode, names)
        self._choose_path()
        self.put(AggregatorTask(lambda: self.aggregator.use_filter(span_filter)), force=True)

    def add_checkpoint(
        self,
        step: int | None,
        span: Span | None = None,
        path: str | os.PathLike[str] | None = None,
        at_s: float | None = None,
    ) -> None:
        """Record that the checkpoint of a step is complete."""
        base, now_s = self.base, self.now() if at_s is None else at_s
        target = absolute_path(path) if path is not None else None
        size = LazyValue(lambda: _size_bytes(target)) if target is not None else None
        text = os.fspath(path) if path is not None else None
        if target is not None and self.run is not None:
            self.run.stamp_checkpoint(target, step)
        self.put(AggregatorTask(lambda: self.aggregator.add_checkpoint(span, base, step, now_s, text, size)))

    # The end -------------------------------------------------------------------------------------------------------

    def close_open(self, since: Span | None = None) -> None:
        """Stop the spans that were left open, the latest first, with the status `left_open`.

        Args:
            since: stop only the spans inside this one.
        """
        spans = list(reversed(self._open_spans))
        for span in spans:
            # A signal handler may get here while its own thread is stopping a span.
            if span.stop_s is None and (since is None or any(outer is since for outer in ancestors(span._parent))):
                self.close_span(span, status="left_open")

    def close(self) -> None:
        """Stop the open spans and report the rest; called when the run ends."""
        if self._backend is None:
            return
        self.run_before_close()
        self.close_open()
        now_s = self.now()
        self.put(AggregatorTask(lambda: self.aggregator.close(now_s)), force=True)
        self.forget()

    def run_before_close(self) -> None:
        """Call the functions in `before_close`, once."""
        while self.before_close:
            with self.guarded("calling a before-close function"):
                self.before_close.pop()()

    def forget(self) -> None:
        """Stop recording: the run has ended, or belongs to the parent of a forked process."""
        self._backend = None
        self.is_closed = self.records_short_spans = True  # so that short spans look for another run, too
        self.latest_short_span = None  # the garbage collector does not see short spans, and they refer to the recorder
        self.buffer = deque(maxlen=0)
        self.base = self.root
        # Stop them, so that new spans look for another run even where one of these is the current span.
        for span in ancestors(current_span.get()):
            if span.recorder is self and span.stop_s is None:
                span.stop_s = self.now()
                span.extras.status = "left_open"  # read when the scope of a short span exits
        for span in (self.root, *self._open_spans):
            span.stop_s = self.now()
        self._open_spans.clear()
        self.callback_iterations.clear()


@contextlib.contextmanager
def _record_and_raise(run: Run, activity: str) -> Iterator[None]:
    """Record a fault before it propagates; a mistake of the caller was recorded where it was found."""
    try:
        yield
    except TachographError:
        raise
    except Exception as fault:
        _report_fault(run, activity, fault)
        raise


def _report_fault(run: Run, activity: str, fault: Exception) -> None:
    """Record a fault in the journal, so that it is not only a line in a log."""
    run.report_error("fault", "", f"{type(fault).__name__} while {activity}: {fault!s:.300}")


def _is_clean_exit(error: BaseException) -> bool:
    """Return whether an exception is not an error: a generator is closed, or the program exits with code 0."""
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))


def _size_bytes(path: str | None) -> int | None:
    """Return the size of a file, or of everything in a folder; None if it was already replaced by a later one."""
    if path is None:
        return None
    if not os.path.isdir(path):
        with suppress(OSError):
            return os.path.getsize(path)
        return None
    num_bytes = 0
    for folder, _, names in os.walk(path):
        for name in names[:10_000]:
            with suppress(OSError):  # a broken link, or a file that was just removed
                num_bytes += os.path.getsize(os.path.join(folder, name))
    return num_bytes
