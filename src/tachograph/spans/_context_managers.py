"""A context manager for every span of a training job; each is also a decorator."""

from __future__ import annotations

import operator
import os
import socket
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any

from tachograph._base import ranks
from tachograph._base.guard import reraise_from_signal_handler
from tachograph._base.version import __version__
from tachograph.exceptions import ConfigError
from tachograph.recorder import Run, latest_run, process_state
from tachograph.spans._attributes import Attributes
from tachograph.spans._current import active_recorder, get_recorder, recorder_of
from tachograph.spans._names import DEFAULT_SPANS_EXPORT_BLACKLIST, StandardSpanName, text_of
from tachograph.spans._names import StandardTrainingJobEventName as Events
from tachograph.spans._names import StandardTrainingJobSpanName as Names
from tachograph.spans._parameters import ParameterSource
from tachograph.spans._recorder import SpanRecorder
from tachograph.spans._scope import ShortSpanScope, SpanOptions, SpanScope
from tachograph.spans._span import DISABLED_SPAN, Span, SpanName

__all__ = [
    "ApplicationScope",
    "application",
    "backward",
    "checkpoint_finalization",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_scope",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "forward",
    "model_init",
    "optimizer_init",
    "optimizer_update",
    "set_training_config",
    "step_of",
    "stop_application",
    "testing_iteration",
    "testing_loop",
    "timed_span",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "zero_grad",
]

_SHORT_NAMES = frozenset(map(text_of, DEFAULT_SPANS_EXPORT_BLACKLIST))

# While the run is disabled, the functions of iterations and phases return one of these, which saves creating a scope. A
# scope that was kept until a run is recorded works like any other.
_ITERATION = ShortSpanScope(Names.TRAINING_SINGLE_ITERATION)
_VALIDATION_ITERATION = ShortSpanScope(Names.VALIDATION_SINGLE_ITERATION)
_TESTING_ITERATION = ShortSpanScope(Names.TESTING_SINGLE_ITERATION)
_DATA_LOADING = ShortSpanScope(Names.DATA_LOADING)
_FORWARD = ShortSpanScope(Names.MODEL_FORWARD)
_ZERO_GRAD = ShortSpanScope(Names.ZERO_GRAD)
_BACKWARD = ShortSpanScope(Names.MODEL_BACKWARD)
_OPTIMIZER_UPDATE = ShortSpanScope(Names.OPTIMIZER_UPDATE)


# The application -----------------------------------------------------------------------------------------------------


class ApplicationScope(SpanScope, eq=False):
    """The scope of the whole program. Starts a run if none is running, and finishes that run on exit."""

    run_name: str | None = None

    def start(
        self, recorder: SpanRecorder | None = None, start_s: float | None = None, parent: Span | None = None
    ) -> Span:
        """Start the span, and a run if none is running; `stop_application` stops it."""
        if recorder is None:
            recorder = self._find_recorder()
        if self.run_name is not None and not recorder.run.name.startswith(self.run_name):
            recorder.run.print_line(
                f"application({self.run_name!r}): run {recorder.run.name!r} is already running, name ignored"
            )
        span = SpanScope.start(self, recorder, start_s, parent)
        recorder.base = span
        if recorder.owns_run and recorder.run_span is None:
            recorder.run_span = span
        with recorder.guarded("opening an application"):
            run = recorder.run
            attributes: dict[str, Any] = {
                "world_size": recorder.configure({}, record="later").world_size,
                "one_logger_training_telemetry_version": __version__,
                "enable_for_current_rank": run.enabled,
                "session_tag": run.facts.get("session_tag") or "",
                "is_baseline_run": False,
                "summary_data_schema_version": "1.0.0",
                "node_name": socket.gethostname(),
                "rank": ranks.rank(),
                "application_name": run.name,
                **recorder.application_attributes,
            }
            fields = {"name": str(Events.ONE_LOGGER_INITIALIZATION), **attributes}
            recorder.add_span_record(span, "event", fields, span.start_s)
            recorder.use_parameters(recorder.parameters, record=True)
        return span

    def __enter__(self) -> Span:
        run = (self.options.run if self.options is not None else None) or latest_run()
        if process_state.is_disabled and run is not None and not run.enabled and run.status == "running":
            return DISABLED_SPAN
        return self._enter()  # if that run has ended, another one is started

    def start_at(self, start_time_msec: float | None) -> Span:
        """Start the span at a time in milliseconds since the epoch, or now."""
        recorder = self._find_recorder()
        return self.start(recorder, recorder.times.of_msec(start_time_msec, "start_time_msec"))

    def _find_recorder(self) -> SpanRecorder:
        run = self.options.run if self.options is not None else None
        return recorder_of(run) if run is not None else active_recorder(self.run_name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        span = self._exit_span()
        if span is not None and span.stop_s is None:
            stop_application(span, error=error)

    def _copy(self) -> SpanScope:
        return ApplicationScope(self.name, self.options, run_name=self.run_name)


def application(name: str | None = None, *, run: Run | None = None) -> ApplicationScope:
    """Mark the whole program: a context manager, or a decorator for its main function.

    Starts a run if none is running, and finishes it at the end.

    Args:
        name: the name of the run to start.
        run: the run, if it is not the current one.

    Example:
        >>> @application()
        ... def main(): ...
    """
    if callable(name):
        raise ConfigError("write @application() with parentheses, not @application")
    return ApplicationScope(StandardSpanName.APPLICATION, SpanOptions(run=run), run_name=name)


def stop_application(span: Span, stop_s: float | None = None, *, error: BaseException | None = None) -> None:
    """Stop an application span and the spans open in it, and finish the run if the application started it."""
    recorder = span.recorder
    if recorder is None:
        return
    recorder.close_open(span)
    recorder.close_span(span, stop_s, error=error)
    if recorder.run_span is span and recorder.run.status == "running":
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            recorder.run.finish()
        else:
            recorder.run._fail(error)


# The phases of a job -------------------------------------------------------------------------------------------------


def distributed_init() -> SpanScope:
    """Mark the setup of distributed training."""
    return SpanScope(Names.DIST_INIT)


def model_init() -> SpanScope:
    """Mark the construction of the model."""
    return SpanScope(Names.MODEL_INIT)


def dataloader_init() -> SpanScope:
    """Mark the construction of the data loader."""
    return SpanScope(Names.DATA_LOADER_INIT)


def optimizer_init() -> SpanScope:
    """Mark the construction of the optimizer."""
    return SpanScope(Names.OPTIMIZER_INIT)


def training_loop(
    train_iterations_start: int | None = None,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: int | Callable[[], int] | None = None,
    train_samples_target_or_fn: int | Callable[[], int] | None = None,
    *,
    run: Run | None = None,
) -> SpanScope:
    """Mark a training loop, around all its iterations.

    Args:
        train_iterations_start: the number of the first iteration; more than 0 after a resume. Without it, the loop
            continues where the previous one in this process stopped.
        train_samples_start: samples seen before; by default iterations times the global batch size.
        train_iterations_target_or_fn: the total number of iterations to reach.
        train_samples_target_or_fn: the total number of samples to reach.
        run: the run, if it is not the current one.

    Example:
        >>> with training_loop(train_iterations_start=0):
        ...     for batch in loader:
        ...         with training_iteration():
        ...             ...
    """
    if callable(train_iterations_start):
        raise ConfigError("write @training_loop() with parentheses, not @training_loop")
    start = _count("train_iterations_start", train_iterations_start)
    samples = _count("train_samples_start", train_samples_start)
    targets = {
        "train_iterations_target": train_iterations_target_or_fn,
        "train_samples_target": train_samples_target_or_fn,
    }
    ParameterSource().update(targets)  # raises if they are invalid

    def set_attributes(span: Span) -> None:
        parameters = span.recorder.configure(targets, record="later")
        batch, flops = parameters.global_batch_size, parameters.flops_to_count
        first = samples
        if first is None and start is not None and batch is not None:
            first = start * batch
        target = parameters.train_samples_target
        attributes = {
            "train_iterations_start": start,
            "train_samples_start": first,
            "train_iterations_target": parameters.train_iterations_target,
            "train_samples_target": target,
            "train_tokens_target": target * parameters.seq_length if target and parameters.seq_length else None,
            "completed_floating_point_operations_overall": round(first * flops)
            if flops and first is not None
            else None,
        }
        span.extras.attributes = Attributes({name: value for name, value in attributes.items() if value is not None})
        span.recorder.use_parameters(
            parameters, record=True
        )  # last, because this record may also write the start of the span

    return SpanScope(Names.TRAINING_LOOP, SpanOptions(on_start=set_attributes, run=run))


def training_iteration(*, num_samples: int | None = None, num_tokens: int | None = None) -> SpanScope:
    """Mark one iteration of a training loop. Costs about a microsecond.

    Args:
        num_samples: samples in the iteration, if that differs from the global batch size.
        num_tokens: tokens in the iteration, if that differs from samples times sequence length.
    """
    if num_samples is None and num_tokens is None:
        return _ITERATION if process_state.is_disabled else ShortSpanScope(_ITERATION.name)
    counts: dict[str, int] = {}
    for name, value in (("num_samples", num_samples), ("num_tokens", num_tokens)):
        try:
            number = _count(name, value)
        except ConfigError as error:  # training continues
            get_recorder().report_misuse(f"{error}; the iteration is counted without it")
            continue
        if number is not None:
            counts[name] = number
    return ShortSpanScope(_ITERATION.name, SpanOptions(attributes=counts))


def validation_loop() -> SpanScope:
    """Mark a pass over held-out data."""
    return SpanScope(Names.VALIDATION_LOOP)


def validation_iteration() -> SpanScope:
    """Mark one iteration of a validation loop."""
    return _VALIDATION_ITERATION if process_state.is_disabled else ShortSpanScope(_VALIDATION_ITERATION.name)


def testing_loop() -> SpanScope:
    """Mark a pass over test data."""
    return SpanScope(Names.TESTING_LOOP)


def testing_iteration() -> SpanScope:
    """Mark one iteration of a testing loop."""
    return _TESTING_ITERATION if process_state.is_disabled else ShortSpanScope(_TESTING_ITERATION.name)


for _function in (testing_loop, testing_iteration):
    vars(_function)["__test__"] = False  # pytest would collect them as tests


def data_loading() -> SpanScope:
    """Mark the wait for a batch."""
    return _DATA_LOADING if process_state.is_disabled else ShortSpanScope(_DATA_LOADING.name)


def forward() -> SpanScope:
    """Mark the forward pass."""
    return _FORWARD if process_state.is_disabled else ShortSpanScope(_FORWARD.name)


def zero_grad() -> SpanScope:
    """Mark the clearing of gradients."""
    return _ZERO_GRAD if process_state.is_disabled else ShortSpanScope(_ZERO_GRAD.name)


def backward() -> SpanScope:
    """Mark the backward pass."""
    return _BACKWARD if process_state.is_disabled else ShortSpanScope(_BACKWARD.name)


def optimizer_update() -> SpanScope:
    """Mark the step of the optimizer."""
    return _OPTIMIZER_UPDATE if process_state.is_disabled else ShortSpanScope(_OPTIMIZER_UPDATE.name)


# Checkpoints ---------------------------------------------------------------------------------------------------------


def checkpoint_load() -> SpanScope:
    """Mark the loading of a checkpoint."""
    return SpanScope(Names.CHECKPOINT_LOAD)


def checkpoint_save(global_step: int | None = None, *, path: str | os.PathLike[str] | None = None) -> SpanScope:
    """Mark the saving of a checkpoint. If the block raises no exception, the checkpoint counts as complete.

    With the strategy ``async``, it counts as complete when `on_save_checkpoint_success` is called.

    Args:
        global_step: the iteration of the checkpoint; the last completed one if not given.
        path: the file or folder of the checkpoint; its size is recorded as well.
    """

    def record_success(span: Span, error: BaseException | None, now_s: float) -> None:
        # A synchronous save that raised nothing is complete; an asynchronous one continues in the background.
        if error is None and span.name == Names.CHECKPOINT_SAVE_SYNC:
            span.recorder.add_checkpoint(global_step, span, path, now_s)

    return checkpoint_scope(global_step, path, on_stop=record_success)


def checkpoint_scope(
    global_step: int | None,
    path: str | os.PathLike[str] | None = None,
    on_stop: Callable[[Span, BaseException | None, float], None] | None = None,
) -> SpanScope:
    """Return the scope of a save, without deciding when the checkpoint is complete."""

    def set_attributes(span: Span) -> None:
        recorder = span.recorder
        strategy = recorder.parameters.save_checkpoint_strategy.value
        span.name = Names.CHECKPOINT_SAVE_ASYNC if strategy == "async" else Names.CHECKPOINT_SAVE_SYNC
        attributes = Attributes({"checkpoint_strategy": strategy})
        step = step_of(global_step, recorder)
        if step is not None:
            attributes.add("current_iteration", step)
        attributes.add("save_checkpoint_attempt_count", recorder.next_save())
        if path is not None:
            attributes.add("checkpoint_directory", os.fspath(path))
        span.extras.attributes = attributes

    return SpanScope(Names.CHECKPOINT_SAVE_SYNC, SpanOptions(on_start=set_attributes, on_stop=on_stop))


def checkpoint_finalization() -> SpanScope:
    """Mark the finalization of a checkpoint that was saved in the background."""
    return SpanScope(Names.CHECKPOINT_SAVE_FINALIZATION)


# Your own spans ------------------------------------------------------------------------------------------------------


def timed_span(
    name: SpanName,
    span_attributes: Attributes | Mapping[str, Any] | None = None,
    start_event_attributes: Attributes | None = None,
    *,
    run: Run | None = None,
) -> SpanScope:
    """Mark an interval of your own.

    Args:
        name: any string, or a standard name.
        span_attributes: its attributes.
        start_event_attributes: the attributes of its start event.
        run: the run, if it is not the current one.

    Example:
        >>> with timed_span("augment", {"num_crops": 4}) as span:
        ...     span.add_attribute("num_kept", 3)
    """
    if type(name) is str and name and span_attributes is None and start_event_attributes is None and run is None:
        return ShortSpanScope(name) if name in _SHORT_NAMES else SpanScope(name)
    if not isinstance(name, (str, Enum)) or not text_of(name):
        raise ConfigError(f"timed_span: expected a name, a string or a member of an enum, got {name!r}")
    kind = ShortSpanScope if text_of(name) in _SHORT_NAMES else SpanScope
    if span_attributes is None and start_event_attributes is None and run is None:
        return kind(name)  # without options, a short span stays on its fast path
    return kind(name, SpanOptions(span_attributes, start_event_attributes, run=run))


def set_training_config(*, run: Run | None = None, **parameters: Any) -> None:
    """Set parameters of the training job, at any time and again; they apply from then on.

    Args:
        run: the run, if it is not the current one.
        parameters: any of `perf_tag`, `world_size`, `global_batch_size`, `micro_batch_size`, `seq_length`,
            `flops_per_sample`, `peak_tflops_per_gpu`, `train_iterations_target`, `train_samples_target`,
            `log_every_n_train_iterations`, `save_checkpoint_strategy`, `custom_metadata`, `is_log_throughput_enabled`
            and the other ``is_…_enabled`` of `tachograph.one_logger.TrainingTelemetryConfig`; each a value, or a
            function that is called when a loop starts.

    Raises:
        ConfigError: for an unknown name or an invalid value.

    Example:
        >>> set_training_config(global_batch_size=64, seq_length=2048, flops_per_sample=6e12, peak_tflops_per_gpu=989)
    """
    recorder = recorder_of(run) if run is not None else get_recorder()
    recorder.configure(parameters)


def step_of(value: Any, recorder: SpanRecorder) -> int | None:
    """Return a step as an int; report the misuse and return None if it is not an integer."""
    if value is None:
        return None
    try:
        return _as_int(value)
    except Exception as error:  # noqa: BLE001 - a tensor's item() may raise anything
        reraise_from_signal_handler(error)
        recorder.report_misuse(f"global_step={value!r:.80} is not an integer; checkpoint recorded without a step")
        return None


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = _as_int(value)
    except Exception as error:  # noqa: BLE001 - a tensor's item() may raise anything
        reraise_from_signal_handler(error)
        raise ConfigError(f"{name}={value!r:.80}: expected an integer") from None
    if number < 0:
        raise ConfigError(f"{name}={number}: must not be negative")
    return number


def _as_int(value: Any) -> int:
    number = value.item() if hasattr(value, "item") else value
    return int(number) if isinstance(number, float) and number.is_integer() else operator.index(number)
