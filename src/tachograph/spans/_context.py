"""A context manager, which is also a decorator, for every span of a training job."""

from __future__ import annotations

import operator
import os
import socket
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar

from tachograph._base import ranks
from tachograph._version import __version__
from tachograph.exceptions import ConfigError
from tachograph.recorder import Run
from tachograph.spans._attribute_sets import OneLoggerInitializationAttributes
from tachograph.spans._attributes import Attributes
from tachograph.spans._current import fresh_recorder, get_recorder, recorder_of
from tachograph.spans._names import DEFAULT_SPANS_EXPORT_BLACKLIST, StandardSpanName, text_of
from tachograph.spans._names import StandardTrainingJobEventName as Events
from tachograph.spans._names import StandardTrainingJobSpanName as Names
from tachograph.spans._parameters import ParameterSource
from tachograph.spans._recorder import TrainingRecorder
from tachograph.spans._span import ShortSpan, Span, SpanName, enter_twin, entered_here, leave_twin, new_span

__all__ = [
    "application",
    "backward",
    "start_application",
    "checkpoint_finalization",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_span",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "stop_application",
    "forward",
    "model_init",
    "optimizer_init",
    "optimizer_update",
    "set_training_config",
    "testing_iteration",
    "testing_loop",
    "timed_span",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "zero_grad",
]

_Kind = TypeVar("_Kind", bound=Span)

_SHORT = frozenset(map(text_of, DEFAULT_SPANS_EXPORT_BLACKLIST))
_ITERATION = Names.TRAINING_SINGLE_ITERATION
_FORWARD = Names.MODEL_FORWARD
_BACKWARD = Names.MODEL_BACKWARD


# The application -----------------------------------------------------------------------------------------------------


class _ApplicationSpan(Span, eq=False):
    _run_name: str | None = None

    def __enter__(self) -> Span:
        if self.start_s is not None:
            return enter_twin(self)
        return start_application(self, self._run_name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        span = entered_here(self)
        if span.stop_s is None:
            stop_application(span, error=error)
        if span is not self:
            leave_twin(self, span)

    def _again(self) -> Span:
        twin = super()._again()
        twin._run_name = self._run_name  # type: ignore[attr-defined] # it is of this class
        return twin


def application(name: str | None = None, *, run: Run | None = None) -> Span:
    """Mark the whole program: a context manager, or a decorator for its main function.

    Without a run that goes on, it begins one, and ends it when it ends itself.

    Args:
        name: the name of the run, if one has to be begun.
        run: the run, if it is not the current one.

    Example:
        >>> @application()
        ... def main(): ...
    """
    if callable(name):
        raise ConfigError("write @application() with parentheses, not @application")
    recorder = recorder_of(run) if run is not None else None
    span = new_span(_ApplicationSpan, StandardSpanName.APPLICATION, recorder=recorder)
    span._run_name = name
    return span


def start_application(span: Span, run_name: str | None = None, start_time_msec: float | None = None) -> Span:
    """Begin an application's span, and a run if there is none that goes on."""
    recorder = span.recorder or fresh_recorder(run_name)
    if run_name is not None and not recorder.run.name.startswith(run_name):
        recorder.run.print_line(
            f"application({run_name!r}): the run {recorder.run.name!r} goes on; the name is not used"
        )
    recorder.begin(span, recorder.times.of_msec(start_time_msec, "start_time_msec"))
    recorder.base = span
    if recorder.owns_run and recorder.owner is None:
        recorder.owner = span
    with recorder.guarded("opening an application"):
        run = recorder.run
        known: dict[str, Any] = {
            "world_size": recorder.configure({}, tells="later").world_size,
            "one_logger_training_telemetry_version": __version__,
            "enable_for_current_rank": run.enabled,
            "session_tag": run.facts.get("session_tag") or "",
            "is_baseline_run": False,
            "summary_data_schema_version": "1.0.0",
            "node_name": socket.gethostname(),
            "rank": ranks.rank(),
            "application_name": run.name,
            **recorder.identity,
        }
        attributes = OneLoggerInitializationAttributes.create(**known).to_json()
        recorder._about(span, "event", {"name": str(Events.ONE_LOGGER_INITIALIZATION), **attributes}, span.start_s)
        recorder.use(recorder.parameters, tells=True)
    return span


def stop_application(span: Span, stop_s: float | None = None, *, error: BaseException | None = None) -> None:
    """End an application's span and all that is open in it, and the run if the application began it."""
    recorder = span.recorder
    if recorder is None:
        return
    recorder.close_open(span)
    recorder.end(span, stop_s, error=error)
    if recorder.owner is span and recorder.run.status == "running":
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            recorder.run.finish()
        else:
            recorder.run._fail(error)


# The phases of a job -------------------------------------------------------------------------------------------------


def distributed_init() -> Span:
    """Mark the set-up of distributed training."""
    return Span(Names.DIST_INIT)


def model_init() -> Span:
    """Mark the making of the model."""
    return Span(Names.MODEL_INIT)


def dataloader_init() -> Span:
    """Mark the making of the data loader."""
    return Span(Names.DATA_LOADER_INIT)


def optimizer_init() -> Span:
    """Mark the making of the optimizer."""
    return Span(Names.OPTIMIZER_INIT)


def training_loop(
    train_iterations_start: int | None = None,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: int | Callable[[], int] | None = None,
    train_samples_target_or_fn: int | Callable[[], int] | None = None,
    *,
    run: Run | None = None,
) -> Span:
    """Mark a training loop, around all its iterations.

    Args:
        train_iterations_start: the number of the first iteration; more than 0 after a resume. Without it, the loop goes
            on where the one before it in this process ended.
        train_samples_start: samples seen before; iterations times the global batch size if not given.
        train_iterations_target_or_fn: iterations to reach in all.
        train_samples_target_or_fn: samples to reach in all.
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
    ParameterSource({}).update(targets)  # raises if they make no sense

    def prepare(span: Span) -> None:
        recorder = span.recorder
        if recorder is None:
            return
        parameters = recorder.configure(targets)
        batch, flops = parameters.global_batch_size, parameters.flops_to_count
        first = samples
        if first is None and start is not None and batch is not None:
            first = start * batch
        target = parameters.train_samples_target
        known = {
            "train_iterations_start": start,
            "train_samples_start": first,
            "train_iterations_target": parameters.train_iterations_target,
            "train_samples_target": target,
            "train_tokens_target": target * parameters.seq_length if target and parameters.seq_length else None,
            "completed_floating_point_operations_overall": round(first * flops)
            if flops and first is not None
            else None,
        }
        span.more.attributes = Attributes({name: value for name, value in known.items() if value is not None})

    recorder = recorder_of(run) if run is not None else None
    return new_span(Span, Names.TRAINING_LOOP, prepare=prepare, recorder=recorder)


def training_iteration(*, num_samples: int | None = None, num_tokens: int | None = None) -> Span:
    """Mark one iteration of a training loop. Costs about a microsecond.

    Args:
        num_samples: samples in it, where that differs from the global batch size.
        num_tokens: tokens in it, where that differs from samples times sequence length.
    """
    if num_samples is None and num_tokens is None:
        return ShortSpan(_ITERATION)
    given: dict[str, int] = {}
    for name, value in (("num_samples", num_samples), ("num_tokens", num_tokens)):
        try:
            number = _count(name, value)
        except ConfigError as error:  # an iteration goes on
            get_recorder().report_misuse(f"{error}; the iteration is counted without it")
            continue
        if number is not None:
            given[name] = number
    return new_span(ShortSpan, _ITERATION, given)


def validation_loop() -> Span:
    """Mark a pass over held-out data."""
    return Span(Names.VALIDATION_LOOP)


def validation_iteration() -> Span:
    """Mark one iteration of a validation loop."""
    return ShortSpan(Names.VALIDATION_SINGLE_ITERATION)


def testing_loop() -> Span:
    """Mark a pass over test data."""
    return Span(Names.TESTING_LOOP)


def testing_iteration() -> Span:
    """Mark one iteration of a testing loop."""
    return ShortSpan(Names.TESTING_SINGLE_ITERATION)


for _function in (testing_loop, testing_iteration):
    vars(_function)["__test__"] = False  # pytest takes every function whose name begins so for a test


def data_loading() -> Span:
    """Mark the wait for a batch."""
    return ShortSpan(Names.DATA_LOADING)


def forward() -> Span:
    """Mark the forward pass."""
    return ShortSpan(_FORWARD)


def zero_grad() -> Span:
    """Mark the clearing of gradients."""
    return ShortSpan(Names.ZERO_GRAD)


def backward() -> Span:
    """Mark the backward pass."""
    return ShortSpan(_BACKWARD)


def optimizer_update() -> Span:
    """Mark the step of the optimizer."""
    return ShortSpan(Names.OPTIMIZER_UPDATE)


# Checkpoints ---------------------------------------------------------------------------------------------------------


class _CheckpointSpan(Span, eq=False):
    _path: str | os.PathLike[str] | None = None
    _step: int | None = None

    def before_end(self, error: BaseException | None, now_s: float) -> None:
        """A save that raised nothing is safe, unless it goes on elsewhere."""
        if error is None and self.name == Names.CHECKPOINT_SAVE_SYNC and self.recorder is not None:
            self.recorder.saved(self._step, self, self._path, now_s)

    def _again(self) -> Span:
        return checkpoint_save(self._step, path=self._path)


def checkpoint_load() -> Span:
    """Mark the loading of a checkpoint."""
    return Span(Names.CHECKPOINT_LOAD)


def checkpoint_save(global_step: int | None = None, *, path: str | os.PathLike[str] | None = None) -> Span:
    """Mark the saving of a checkpoint; when the block ends without an exception, the checkpoint counts as safe.

    With the strategy ``async``, it counts as safe when `on_save_checkpoint_success` says so.

    Args:
        global_step: the iteration it is of; the latest completed one if not given.
        path: the file or folder it goes to, whose size is then recorded as well.
    """
    span = checkpoint_span(_CheckpointSpan, global_step, path)
    span._step, span._path = global_step, path
    return span


def checkpoint_span(kind: type[_Kind], global_step: int | None, path: str | os.PathLike[str] | None = None) -> _Kind:
    """Return a span for saving a checkpoint that says which, and how."""

    def prepare(span: Span) -> None:
        recorder = span.recorder
        if recorder is None:
            return
        strategy = recorder.parameters.save_checkpoint_strategy.value
        span.name = Names.CHECKPOINT_SAVE_ASYNC if strategy == "async" else Names.CHECKPOINT_SAVE_SYNC
        attributes = Attributes({"checkpoint_strategy": strategy})
        step = step_of(global_step, recorder)
        if step is not None:
            attributes.add("current_iteration", step)
        attributes.add("save_checkpoint_attempt_count", recorder.next_save())
        if path is not None:
            attributes.add("checkpoint_directory", os.fspath(path))
        span.more.attributes = attributes

    return new_span(kind, Names.CHECKPOINT_SAVE_SYNC, prepare=prepare)


def checkpoint_finalization() -> Span:
    """Mark what is left to do for a checkpoint that was saved in the background."""
    return Span(Names.CHECKPOINT_SAVE_FINALIZATION)


# Your own ------------------------------------------------------------------------------------------------------------


def timed_span(
    name: SpanName,
    span_attributes: Attributes | Mapping[str, Any] | None = None,
    start_event_attributes: Attributes | None = None,
    *,
    run: Run | None = None,
) -> Span:
    """Mark a stretch of time of your own.

    Args:
        name: any text, or a standard name.
        span_attributes: what to say about it.
        start_event_attributes: what to say about its beginning.
        run: the run, if it is not the current one.

    Example:
        >>> with timed_span("augment", {"num_crops": 4}) as span:
        ...     span.add_attribute("num_kept", 3)
    """
    if not isinstance(name, (str, Enum)) or not text_of(name):
        raise ConfigError(f"timed_span: a name is expected, a text or a member of an enum, got {name!r}")
    kind = ShortSpan if text_of(name) in _SHORT else Span
    recorder = recorder_of(run) if run is not None else None
    return new_span(kind, name, span_attributes, start_event_attributes, recorder=recorder)


def set_training_config(*, run: Run | None = None, **parameters: Any) -> None:
    """Say what is known of the job. Anything may be said late, and again; it holds from then on.

    Args:
        run: the run, if it is not the current one.
        parameters: any of `perf_tag`, `world_size`, `global_batch_size`, `micro_batch_size`, `seq_length`,
            `flops_per_sample`, `peak_tflops_per_gpu`, `train_iterations_target`, `train_samples_target`,
            `log_every_n_train_iterations`, `save_checkpoint_strategy`, `custom_metadata`, `is_log_throughput_enabled`
            and the other ``is_…_enabled`` of `tachograph.one_logger.TrainingTelemetryConfig`; each a value, or a
            function that is asked when a loop begins.

    Raises:
        ConfigError: for a name that is not known or a value that makes no sense.

    Example:
        >>> set_training_config(global_batch_size=64, seq_length=2048, flops_per_sample=6e12, peak_tflops_per_gpu=989)
    """
    recorder = recorder_of(run) if run is not None else get_recorder()
    recorder.configure(parameters)


def step_of(value: Any, recorder: TrainingRecorder) -> int | None:
    """Return a step as a plain number, or None, with a complaint, if it is none."""
    if value is None:
        return None
    try:
        return _whole(value)
    except Exception:  # noqa: BLE001 - a tensor's item() may raise anything
        recorder.report_misuse(f"global_step={value!r:.80} is not an integer; checkpoint recorded without a step")
        return None


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = _whole(value)
    except Exception:  # noqa: BLE001 - a tensor's item() may raise anything
        raise ConfigError(f"{name}={value!r:.80}: a whole number is expected") from None
    if number < 0:
        raise ConfigError(f"{name}={number}: it cannot be negative")
    return number


def _whole(value: Any) -> int:
    number = value.item() if hasattr(value, "item") else value
    return int(number) if isinstance(number, float) and number.is_integer() else operator.index(number)
