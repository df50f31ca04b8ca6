"""Spans that the script marks itself, with `training_iteration()` or callbacks: they must not be recorded twice."""

from __future__ import annotations

from collections.abc import Collection

from tachograph.integrations._common.integration_run import Names
from tachograph.recorder import Run
from tachograph.spans import SpanRecorder, current_span

__all__ = ["is_inside", "is_iteration_marked"]

_ITERATION = Names.TRAINING_SINGLE_ITERATION


def is_inside(names: Collection[Names]) -> bool:
    """Return whether the caller is inside an open span with one of these names."""
    span = current_span.get()
    while span is not None:
        if span.stop_s is None and span.name in names:
            return True
        span = span._parent
    return False


def is_iteration_marked(run: Run | None) -> bool:
    """Return whether the script marks the present iteration itself: with a span around it, or with callbacks."""
    span = current_span.get()
    while span is not None:  # not `is_inside`: this runs at every step
        if span.name is _ITERATION and span.stop_s is None:
            return True
        span = span._parent
    recorder = run.span_recorder if run is not None else None
    if not isinstance(recorder, SpanRecorder) or not recorder.callback_iterations:
        return False
    iteration = recorder.callback_iterations.get(str(_ITERATION))
    return iteration is not None and iteration.active
