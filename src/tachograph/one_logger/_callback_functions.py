"""Callbacks that start and stop the spans of a training job, for programs and frameworks that receive events.

Times are in milliseconds since the epoch; the default is now. An `_end` callback stops the innermost open span of its
name: in the current thread or task, else in the run.
"""

from __future__ import annotations

from collections.abc import Callable

from tachograph.one_logger._span_edges import (
    SAVES,
    close_overlapping_iteration,
    close_overlapping_loop,
    end_span,
    find_open,
    find_save,
    start_span,
)
from tachograph.recorder import process_state
from tachograph.spans import (
    DISABLED_SPAN,
    Span,
    SpanName,
    SpanScope,
    StandardSpanName,
    active_recorder,
    application,
    checkpoint_load,
    checkpoint_scope,
    dataloader_init,
    distributed_init,
    get_recorder,
    model_init,
    optimizer_init,
    step_of,
    stop_application,
    testing_loop,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from tachograph.spans import StandardTrainingJobSpanName as Names

__all__ = [
    "on_app_end",
    "on_app_start",
    "on_dataloader_init_end",
    "on_dataloader_init_start",
    "on_distributed_init_end",
    "on_distributed_init_start",
    "on_load_checkpoint_end",
    "on_load_checkpoint_start",
    "on_model_init_end",
    "on_model_init_start",
    "on_optimizer_init_end",
    "on_optimizer_init_start",
    "on_save_checkpoint_end",
    "on_save_checkpoint_start",
    "on_save_checkpoint_success",
    "on_testing_end",
    "on_testing_start",
    "on_train_end",
    "on_train_start",
    "on_training_single_iteration_end",
    "on_training_single_iteration_start",
    "on_validation_end",
    "on_validation_single_iteration_end",
    "on_validation_single_iteration_start",
    "on_validation_start",
]


def _start(make_scope: Callable[[], SpanScope], start_time_msec: float | None) -> Span:
    if process_state.is_disabled:
        return DISABLED_SPAN
    scope = make_scope()
    recorder = get_recorder()
    return start_span(recorder, scope, recorder.times.of_msec(start_time_msec, "start_time_msec"))


def _end(finish_time_msec: float | None, *names: SpanName) -> None:
    if process_state.is_disabled:
        return
    recorder = get_recorder()
    end_span(recorder, recorder.times.of_msec(finish_time_msec, "finish_time_msec"), *names)


def _start_iteration(scope: SpanScope, loop: Names, start_time_msec: float | None) -> Span:
    recorder = get_recorder()
    close_overlapping_iteration(recorder, scope.name, loop)
    if start_time_msec is not None:
        return scope.start(recorder, recorder.times.of_msec(start_time_msec, "start_time_msec"))
    span = recorder.callback_iterations[scope.name] = scope.__enter__()
    return span


def _end_iteration(name: Names, finish_time_msec: float | None) -> None:
    recorder = get_recorder()
    span = find_open(recorder, name)
    recorder.callback_iterations.pop(name, None)
    if span is None:
        return
    stop_s = recorder.times.of_msec(finish_time_msec, "finish_time_msec")
    if stop_s is None:
        recorder.close_short_span(span)
    else:
        recorder.close_span(span, stop_s)


def on_app_start(start_time_msec: float | None = None) -> Span:
    """Start the application span, and a run if none is running."""
    recorder = active_recorder(None)
    return start_span(recorder, application(), recorder.times.of_msec(start_time_msec, "start_time_msec"))


def on_app_end(finish_time_msec: float | None = None) -> None:
    """Stop the application span and all open spans, and finish the run if `on_app_start` started it."""
    recorder = get_recorder()
    span = find_open(recorder, StandardSpanName.APPLICATION)
    if span is not None:
        stop_application(span, recorder.times.of_msec(finish_time_msec, "finish_time_msec"))


def on_distributed_init_start(start_time_msec: float | None = None) -> Span:
    """Start the span of the distributed setup."""
    return _start(distributed_init, start_time_msec)


def on_distributed_init_end(finish_time_msec: float | None = None) -> None:
    """Stop the span of the distributed setup."""
    _end(finish_time_msec, Names.DIST_INIT)


def on_model_init_start(start_time_msec: float | None = None) -> Span:
    """Start the span of the model construction."""
    return _start(model_init, start_time_msec)


def on_model_init_end(finish_time_msec: float | None = None) -> None:
    """Stop the span of the model construction."""
    _end(finish_time_msec, Names.MODEL_INIT)


def on_dataloader_init_start(start_time_msec: float | None = None) -> Span:
    """Start the span of the data loader construction."""
    return _start(dataloader_init, start_time_msec)


def on_dataloader_init_end(finish_time_msec: float | None = None) -> None:
    """Stop the span of the data loader construction."""
    _end(finish_time_msec, Names.DATA_LOADER_INIT)


def on_load_checkpoint_start(start_time_msec: float | None = None) -> Span:
    """Start the span of loading a checkpoint."""
    return _start(checkpoint_load, start_time_msec)


def on_load_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """Stop the span of loading a checkpoint."""
    _end(finish_time_msec, Names.CHECKPOINT_LOAD)


def on_optimizer_init_start(start_time_msec: float | None = None) -> Span:
    """Start the span of the optimizer construction."""
    return _start(optimizer_init, start_time_msec)


def on_optimizer_init_end(finish_time_msec: float | None = None) -> None:
    """Stop the span of the optimizer construction."""
    _end(finish_time_msec, Names.OPTIMIZER_INIT)


def on_train_start(
    train_iterations_start: int | None = None,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: int | Callable[[], int] | None = None,
    train_samples_target_or_fn: int | Callable[[], int] | None = None,
    start_time_msec: float | None = None,
) -> Span:
    """Start a training loop; see `training_loop`. Stops a loop that is still open, unless it is inside an iteration."""
    scope = training_loop(
        train_iterations_start, train_samples_start, train_iterations_target_or_fn, train_samples_target_or_fn
    )
    if process_state.is_disabled:
        return DISABLED_SPAN
    close_overlapping_loop(get_recorder())
    return _start(lambda: scope, start_time_msec)


def on_train_end(finish_time_msec: float | None = None) -> None:
    """Stop the training loop and report its last iterations."""
    _end(finish_time_msec, Names.TRAINING_LOOP)


def on_training_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """Start an iteration of the training loop."""
    if process_state.is_disabled:
        return DISABLED_SPAN
    return _start_iteration(training_iteration(), Names.TRAINING_LOOP, start_time_msec)


def on_training_single_iteration_end(finish_time_msec: float | None = None) -> None:
    """Complete an iteration of the training loop."""
    if not process_state.is_disabled:
        _end_iteration(Names.TRAINING_SINGLE_ITERATION, finish_time_msec)


def on_validation_start(start_time_msec: float | None = None) -> Span:
    """Start a validation loop."""
    return _start(validation_loop, start_time_msec)


def on_validation_end(finish_time_msec: float | None = None) -> None:
    """Stop the validation loop."""
    _end(finish_time_msec, Names.VALIDATION_LOOP)


def on_validation_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """Start an iteration of the validation loop."""
    if process_state.is_disabled:
        return DISABLED_SPAN
    return _start_iteration(validation_iteration(), Names.VALIDATION_LOOP, start_time_msec)


def on_validation_single_iteration_end(finish_time_msec: float | None = None) -> None:
    """Complete an iteration of the validation loop."""
    if not process_state.is_disabled:
        _end_iteration(Names.VALIDATION_SINGLE_ITERATION, finish_time_msec)


def on_testing_start(start_time_msec: float | None = None) -> Span:
    """Start a testing loop."""
    return _start(testing_loop, start_time_msec)


def on_testing_end(finish_time_msec: float | None = None) -> None:
    """Stop the testing loop."""
    _end(finish_time_msec, Names.TESTING_LOOP)


def on_save_checkpoint_start(global_step: int | None = None, start_time_msec: float | None = None) -> Span:
    """Start the span of saving a checkpoint."""
    return _start(lambda: checkpoint_scope(global_step), start_time_msec)


def on_save_checkpoint_success(global_step: int | None = None, time_msec: float | None = None) -> None:
    """Record that a checkpoint is complete.

    Call it before `on_save_checkpoint_end` with the strategy ``sync``, at any time with ``async``.
    """
    if process_state.is_disabled:
        return
    recorder = get_recorder()
    span = find_save(recorder)
    at_s = recorder.times.of_msec(time_msec, "time_msec")
    recorder.add_checkpoint(step_of(global_step, recorder), span, at_s=at_s)


def on_save_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """Stop the span of saving a checkpoint: training continues."""
    _end(finish_time_msec, *SAVES)
