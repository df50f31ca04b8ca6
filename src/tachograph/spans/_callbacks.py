"""The same spans for programs that are told when something starts and ends, as callbacks of a framework are.

Times are in milliseconds since the epoch; without one, it is now. A callback that ends something ends the innermost
open span of that name: of this thread or task, else of the run.
"""

from __future__ import annotations

from collections.abc import Callable

from tachograph.spans._context import (
    application,
    checkpoint_span,
    start_application,
    step_of,
    stop_application,
    training_loop,
)
from tachograph.spans._current import get_recorder
from tachograph.spans._names import StandardSpanName, text_of
from tachograph.spans._names import StandardTrainingJobSpanName as Names
from tachograph.spans._recorder import TrainingRecorder
from tachograph.spans._span import ShortSpan, Span, SpanName

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

_SAVES = (Names.CHECKPOINT_SAVE_SYNC, Names.CHECKPOINT_SAVE_ASYNC)


def _start(span: Span, start_time_msec: float | None) -> Span:
    recorder = get_recorder()
    recorder.begin(span, recorder.times.of_msec(start_time_msec, "start_time_msec"))
    return span


def _start_iteration(name: Names, loop: Names, start_time_msec: float | None) -> Span:
    """Begin an iteration; one of the same loop that is still open was left by a `continue` or an exception."""
    recorder = get_recorder()
    forgotten = recorder.find_open(name, inside=loop)
    if forgotten is not None:
        recorder.end(forgotten, status="left_open")
    span = ShortSpan(name)
    if start_time_msec is not None:
        return _start(span, start_time_msec)
    recorder.detached[name] = span
    return span.__enter__()


def _end_iteration(name: Names, finish_time_msec: float | None) -> None:
    recorder = get_recorder()
    span = _open(recorder, name)
    recorder.detached.pop(name, None)
    if span is not None and finish_time_msec is None:
        span.__exit__(None, None, None)
    elif span is not None:
        recorder.end(span, recorder.times.of_msec(finish_time_msec, "finish_time_msec"))


def _end(finish_time_msec: float | None, *names: SpanName) -> None:
    recorder = get_recorder()
    span = _open(recorder, *names)
    if span is not None:
        recorder.end(span, recorder.times.of_msec(finish_time_msec, "finish_time_msec"))


def _open(recorder: TrainingRecorder, *names: SpanName) -> Span | None:
    for name in names:
        span = recorder.find_open(name)
        if span is not None:
            return span
    recorder.report_misuse(f"no open span {text_of(names[0])!r} to end; was its start callback called?")
    return None


def on_app_start(start_time_msec: float | None = None) -> Span:
    """The program begins. Begins a run as well if there is none that goes on."""
    return start_application(application(), start_time_msec=start_time_msec)


def on_app_end(finish_time_msec: float | None = None) -> None:
    """The program ends: what is still open is ended and marked, and so is the run if `on_app_start` began it."""
    recorder = get_recorder()
    span = _open(recorder, StandardSpanName.APPLICATION)
    if span is not None:
        stop_application(span, recorder.times.of_msec(finish_time_msec, "finish_time_msec"))


def on_distributed_init_start(start_time_msec: float | None = None) -> Span:
    """Distributed training is being set up."""
    return _start(Span(Names.DIST_INIT), start_time_msec)


def on_distributed_init_end(finish_time_msec: float | None = None) -> None:
    """Distributed training is set up."""
    _end(finish_time_msec, Names.DIST_INIT)


def on_model_init_start(start_time_msec: float | None = None) -> Span:
    """The model is being made."""
    return _start(Span(Names.MODEL_INIT), start_time_msec)


def on_model_init_end(finish_time_msec: float | None = None) -> None:
    """The model is made."""
    _end(finish_time_msec, Names.MODEL_INIT)


def on_dataloader_init_start(start_time_msec: float | None = None) -> Span:
    """The data loader is being made."""
    return _start(Span(Names.DATA_LOADER_INIT), start_time_msec)


def on_dataloader_init_end(finish_time_msec: float | None = None) -> None:
    """The data loader is made."""
    _end(finish_time_msec, Names.DATA_LOADER_INIT)


def on_load_checkpoint_start(start_time_msec: float | None = None) -> Span:
    """A checkpoint is being loaded."""
    return _start(Span(Names.CHECKPOINT_LOAD), start_time_msec)


def on_load_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """A checkpoint is loaded."""
    _end(finish_time_msec, Names.CHECKPOINT_LOAD)


def on_optimizer_init_start(start_time_msec: float | None = None) -> Span:
    """The optimizer is being made."""
    return _start(Span(Names.OPTIMIZER_INIT), start_time_msec)


def on_optimizer_init_end(finish_time_msec: float | None = None) -> None:
    """The optimizer is made."""
    _end(finish_time_msec, Names.OPTIMIZER_INIT)


def on_train_start(
    train_iterations_start: int | None = None,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: int | Callable[[], int] | None = None,
    train_samples_target_or_fn: int | Callable[[], int] | None = None,
    start_time_msec: float | None = None,
) -> Span:
    """A training loop begins; see `training_loop`. One that is still open, outside of an iteration, is ended."""
    recorder = get_recorder()
    forgotten = recorder.find_open(Names.TRAINING_LOOP, inside=Names.TRAINING_SINGLE_ITERATION)
    if forgotten is not None:
        recorder.end(forgotten, status="left_open")
    span = training_loop(
        train_iterations_start, train_samples_start, train_iterations_target_or_fn, train_samples_target_or_fn
    )
    return _start(span, start_time_msec)


def on_train_end(finish_time_msec: float | None = None) -> None:
    """A training loop ends; the iterations not reported yet are."""
    _end(finish_time_msec, Names.TRAINING_LOOP)


def on_training_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """An iteration of the training loop begins."""
    return _start_iteration(Names.TRAINING_SINGLE_ITERATION, Names.TRAINING_LOOP, start_time_msec)


def on_training_single_iteration_end(finish_time_msec: float | None = None) -> None:
    """An iteration of the training loop is completed."""
    _end_iteration(Names.TRAINING_SINGLE_ITERATION, finish_time_msec)


def on_validation_start(start_time_msec: float | None = None) -> Span:
    """A pass over held-out data begins."""
    return _start(Span(Names.VALIDATION_LOOP), start_time_msec)


def on_validation_end(finish_time_msec: float | None = None) -> None:
    """A pass over held-out data ends."""
    _end(finish_time_msec, Names.VALIDATION_LOOP)


def on_validation_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """An iteration of the validation loop begins."""
    return _start_iteration(Names.VALIDATION_SINGLE_ITERATION, Names.VALIDATION_LOOP, start_time_msec)


def on_validation_single_iteration_end(finish_time_msec: float | None = None) -> None:
    """An iteration of the validation loop is completed."""
    _end_iteration(Names.VALIDATION_SINGLE_ITERATION, finish_time_msec)


def on_testing_start(start_time_msec: float | None = None) -> Span:
    """A pass over test data begins."""
    return _start(Span(Names.TESTING_LOOP), start_time_msec)


def on_testing_end(finish_time_msec: float | None = None) -> None:
    """A pass over test data ends."""
    _end(finish_time_msec, Names.TESTING_LOOP)


def on_save_checkpoint_start(global_step: int | None = None, start_time_msec: float | None = None) -> Span:
    """A checkpoint is being saved."""
    return _start(checkpoint_span(Span, global_step), start_time_msec)


def on_save_checkpoint_success(global_step: int | None = None, time_msec: float | None = None) -> None:
    """A checkpoint is safe: with the strategy ``sync`` before `on_save_checkpoint_end`, with ``async`` at any time."""
    recorder = get_recorder()
    span = recorder.find_open(Names.CHECKPOINT_SAVE_SYNC)
    recorder.saved(step_of(global_step, recorder), span, at_s=recorder.times.of_msec(time_msec, "time_msec"))


def on_save_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """Training goes on after a checkpoint was saved, or handed to the background."""
    _end(finish_time_msec, *_SAVES)
