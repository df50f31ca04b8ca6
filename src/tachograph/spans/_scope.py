"""`SpanScope`: starts a span on entry and stops it on exit. A context manager and a decorator.

The functions of `_context_managers` return scopes. A scope is not a span: it holds a name and the options for the spans
that it will start, and each entry starts a span of its own. So a scope may be kept and entered again, inside itself, or
by several threads. (If two threads enter the same scope for the first time at the same instant, one of their short
spans may be lost; use a scope per thread where every iteration must count.) While the run is disabled, an entry starts
nothing and returns `DISABLED_SPAN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import msgspec

from tachograph._base.decorator import wrap_calls
from tachograph.recorder import Run, process_state
from tachograph.spans._attributes import Attributes
from tachograph.spans._current import find_parent, get_recorder, recorder_of
from tachograph.spans._recorder import SpanRecorder
from tachograph.spans._span import DISABLED_SPAN, ShortSpan, Span, ancestors, current_span, skip_stopped

__all__ = ["ShortSpanScope", "SpanOptions", "SpanScope"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_get_current = current_span.get
_set_current = current_span.set


class SpanOptions(NamedTuple):
    """Options for the spans of a scope."""

    attributes: Attributes | Mapping[str, Any] | None = None
    start_attributes: Attributes | Mapping[str, Any] | None = None
    on_start: Callable[[Span], None] | None = None
    """Called when a span starts, before it is recorded; may set its attributes."""
    on_stop: Callable[[Span, BaseException | None, float], None] | None = None
    """Called when a span is about to stop, with the exception that stops it and the time."""
    run: Run | None = None
    """The run to record into, if it is not the current one."""


class SpanScope(msgspec.Struct, eq=False):
    """Starts a span on entry and stops it on exit; `with scope as span` gives the span.

    As a decorator, each call of the function is a span.
    """

    name: Any
    options: SpanOptions | None = None
    _spans: list[Span] | None = None
    """The spans that were entered and not exited."""

    def start(
        self, recorder: SpanRecorder | None = None, start_s: float | None = None, parent: Span | None = None
    ) -> Span:
        """Start a span, for callers that stop it themselves with `SpanRecorder.close_span`.

        Args:
            recorder: the recorder; if not given, the recorder of the scope's run or of the current span.
            start_s: when it started, on the steady clock; now if not given.
            parent: the enclosing span; the current one if not given.
        """
        options = self.options
        if recorder is None:
            recorder = self._find_recorder()
        span = self._new_span()
        span._parent = parent
        if options is None:
            recorder.open_span(span, start_s)
        else:
            recorder.open_span(
                span,
                start_s,
                attributes=options.attributes,
                start_attributes=options.start_attributes,
                on_start=options.on_start,
                on_stop=options.on_stop,
            )
        return span

    def _find_recorder(self) -> SpanRecorder:
        run = self.options.run if self.options is not None else None
        return recorder_of(run) if run is not None else get_recorder()

    def _new_span(self) -> Span:
        return Span(self.name)

    def __enter__(self) -> Span:
        if process_state.is_disabled:
            run = self.options.run if self.options is not None else None
            if run is None or not run.enabled:
                return DISABLED_SPAN
        return self._enter()

    def _enter(self) -> Span:
        span = self.start()
        if self._spans is None:
            self._spans = []
        self._spans.append(span)  # atomic: other threads may enter the same scope
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._spans:
            span = self._exit_span()
            if span is not None:
                span.recorder.close_span(span, error=error)

    def _exit_span(self) -> Span | None:
        """Return the span to stop, which is the innermost one that this scope started in the current context."""
        spans = self._spans
        if not spans:
            return None
        if len(spans) == 1:
            return spans.pop(0)  # not the last: another thread may have entered since
        for span in ancestors(_get_current()):
            if span in spans:
                spans.remove(span)
                return span
        return spans.pop()

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function: each call is a span of its own."""
        return wrap_calls(function, lambda _args: self._copy())

    def _copy(self) -> SpanScope:
        return type(self)(self.name, self.options)


class ShortSpanScope(SpanScope, eq=False, gc=False):
    """The scope of an iteration or a phase: the hot path of spans.

    Without options, the span is created here and goes into the buffer when it stops. Its parent, its recorder and the
    clock come from the current span. Everything else falls back to `SpanScope`.
    """

    _span: Span | None = None

    def _new_span(self) -> Span:
        return ShortSpan(self.name)

    # Creating the scope, `__enter__` and `__exit__` are the hot path, which is why these are structs.
    def __enter__(self) -> Span:
        if process_state.is_disabled and self.options is None:
            self._span = None
            return DISABLED_SPAN
        if self._span is not None or self.options is not None:
            return self._enter_slow()
        parent = _get_current()
        while parent is not None and parent.stop_s is not None:
            parent = parent._parent
        outer = parent._parent if parent is not None else None
        if parent is None or outer is None or outer.stop_s is not None:
            parent = find_parent()
            skip_stopped(parent, parent.recorder.root)
        recorder: SpanRecorder = parent.recorder
        if recorder.records_short_spans:
            return SpanScope.__enter__(self)
        span = self._span = recorder.latest_short_span = ShortSpan(self.name, recorder, recorder.now(), None, parent)
        _set_current(span)
        return span

    def _enter_slow(self) -> Span:
        """Enter a scope that has options or was entered before."""
        span = self._span
        if span is not None and span.stop_s is None:
            # It is open, possibly in another thread. From now on, this scope tracks its spans in a list. The list comes
            # first: a thread that exits meanwhile finds the span in one place or the other.
            self._spans = [span]
            self.options = SpanOptions()
            self._span = None
        elif self.options is None:
            self._span = None
            return self.__enter__()
        return SpanScope.__enter__(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        span = self._span
        if span is None:
            if self._spans:
                SpanScope.__exit__(self, kind, error, trace)
            return
        recorder = span.recorder
        stop_s = recorder.now()
        if error is not None or span._extras is not None:  # a span that something else stopped has extras, too
            recorder.close_span(span, error=error)
            return
        span.stop_s = stop_s
        buffer = recorder.buffer
        if len(buffer) > 4096:  # BACKPRESSURE_SIZE
            recorder.add_under_pressure(span)
        else:
            buffer.append(span)
