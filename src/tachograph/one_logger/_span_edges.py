"""Starts and stops the spans of a training job where their start and their end are separate calls.

An end stops the innermost open span of its name: in the current thread or task, else in the run.
"""

from __future__ import annotations

from tachograph.spans import (
    CheckPointStrategy,
    Span,
    SpanName,
    SpanRecorder,
    SpanScope,
    overlap_text,
    text_of,
)
from tachograph.spans import StandardTrainingJobSpanName as Names

__all__ = [
    "SAVES",
    "close_overlapping_iteration",
    "close_overlapping_loop",
    "end_span",
    "find_open",
    "find_save",
    "start_span",
]

SAVES = (Names.CHECKPOINT_SAVE_SYNC, Names.CHECKPOINT_SAVE_ASYNC)


def start_span(recorder: SpanRecorder, scope: SpanScope, start_s: float | None) -> Span:
    """Start a span. One of the same name that is still open in this thread or task lacks its end."""
    if recorder.find_open(scope.name, inside=Names.TRAINING_SINGLE_ITERATION) is not None:
        name = text_of(scope.name)
        recorder.report_misuse(f"Cannot start span {name} while one with the same name is already active: call its end")
    return scope.start(recorder, start_s)


def end_span(recorder: SpanRecorder, stop_s: float | None, *names: SpanName) -> None:
    """Stop the innermost open span that has one of the names."""
    span = find_open(recorder, *names)
    if span is not None:
        recorder.close_span(span, stop_s)


def find_open(recorder: SpanRecorder, *names: SpanName) -> Span | None:
    """Return the innermost open span that has one of the names; report the misuse if there is none."""
    for name in names:
        span = recorder.find_open(name)
        if span is not None:
            return span
    name = text_of(names[0])
    recorder.report_misuse(f"Expected to have one and only one span named {name} but found 0: call its start first")
    return None


def find_save(recorder: SpanRecorder) -> Span | None:
    """Return the open span of a synchronous save; report the misuse if saves are synchronous and none is open."""
    span = recorder.find_open(Names.CHECKPOINT_SAVE_SYNC)
    if span is None and recorder.parameters.save_checkpoint_strategy == CheckPointStrategy.SYNC:
        find_open(recorder, *SAVES)
    return span


def close_overlapping_iteration(recorder: SpanRecorder, name: SpanName, loop: SpanName) -> None:
    """Report and stop an iteration of the same loop that a `continue` or an exception left open."""
    open_iteration = recorder.find_open(name, inside=loop)
    if open_iteration is not None:
        recorder.report_misuse(overlap_text(open_iteration))
        recorder.close_span(open_iteration, status="left_open")


def close_overlapping_loop(recorder: SpanRecorder) -> None:
    """Report and stop a training loop that is still open, unless the next one is inside of its iteration."""
    open_loop = recorder.find_open(Names.TRAINING_LOOP, inside=Names.TRAINING_SINGLE_ITERATION)
    if open_loop is not None:
        recorder.report_misuse("on_train_start was called again before on_train_end; the open loop is stopped")
        recorder.close_span(open_loop, status="left_open")
