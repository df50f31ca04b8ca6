"""The vocabulary of a training job: names of spans, events and attributes. It is One Logger's."""

from __future__ import annotations

from enum import Enum

__all__ = [
    "DEFAULT_SPANS_EXPORT_BLACKLIST",
    "ITERATION_LOOPS",
    "CheckPointStrategy",
    "NameEnum",
    "StandardEventAttributeName",
    "StandardEventName",
    "StandardSpanAttributeName",
    "StandardSpanName",
    "StandardTrainingJobEventName",
    "StandardTrainingJobSpanName",
    "text_of",
]


class NameEnum(str, Enum):
    """A string constant; equal to the plain string, and printed like it."""

    def __str__(self) -> str:
        return str(self.value)


class StandardSpanName(NameEnum):
    """The outermost span."""

    APPLICATION = "application"


class StandardTrainingJobSpanName(NameEnum):
    """The spans of a training job."""

    TRAINING_LOOP = "training_loop"
    VALIDATION_LOOP = "validation_loop"
    TESTING_LOOP = "testing_loop"
    DIST_INIT = "distributed_code_initialization"
    DATA_LOADER_INIT = "data_loader_initialization"
    MODEL_INIT = "model_initialization"
    OPTIMIZER_INIT = "optimizer_initialization"
    CHECKPOINT_LOAD = "checkpoint_load"
    CHECKPOINT_SAVE_SYNC = "checkpoint_save_sync"
    CHECKPOINT_SAVE_ASYNC = "checkpoint_save_async"
    CHECKPOINT_SAVE_FINALIZATION = "checkpoint_save_finalization"
    TRAINING_SINGLE_ITERATION = "training_single_iteration"
    VALIDATION_SINGLE_ITERATION = "validation_single_iteration"
    TESTING_SINGLE_ITERATION = "TESTING_SINGLE_ITERATION"  # in capitals wherever it is known
    DATA_LOADING = "data_loading"
    MODEL_FORWARD = "model_forward"
    ZERO_GRAD = "zero_grad"
    MODEL_BACKWARD = "model_backward"
    OPTIMIZER_UPDATE = "optimizer_update"


class StandardEventName(NameEnum):
    """Events of any span."""

    SPAN_START = "span_start"
    SPAN_STOP = "span_stop"
    ERROR = "error"
    TELEMETRY_DATA_ERROR = "telemetry_data_error"


class StandardTrainingJobEventName(NameEnum):
    """Events of a training job."""

    ONE_LOGGER_INITIALIZATION = "one_logger_initialization"
    UPDATE_TRAINING_TELEMETRY_CONFIG = "update_training_telemetry_config"
    TRAINING_METRICS_UPDATE = "training_metrics_update"
    VALIDATION_METRICS_UPDATE = "validation_metrics_update"
    TESTING_METRICS_UPDATE = "testing_metrics_update"
    SAVE_CHECKPOINT_SUCCESS = "save_checkpoint_success"
    SYNC_CHECKPOINT_METRICS_UPDATE = "sync_checkpoint_metrics_update"


class StandardEventAttributeName(NameEnum):
    """Attributes that are added to events automatically."""

    TIMESTAMP_MSEC = "timestamp_msec"
    ERROR_MESSAGE = "error_message"
    EXCEPTION_TYPE = "exception_type"
    EXCEPTION_MESSAGE = "exception_message"
    EXCEPTION_TRACEBACK = "exception_traceback"
    TELEMETRY_DATA_ERROR_TYPE = "telemetry_data_error_type"


class StandardSpanAttributeName(NameEnum):
    """Attributes that are added to spans automatically."""

    DURATION_MSEC = "duration_msec"
    NVTX_COLOR = "nvtx_color"


class CheckPointStrategy(NameEnum):
    """Whether training waits for a checkpoint to be saved."""

    SYNC = "sync"
    ASYNC = "async"


DEFAULT_SPANS_EXPORT_BLACKLIST = [
    StandardTrainingJobSpanName.TRAINING_SINGLE_ITERATION,
    StandardTrainingJobSpanName.VALIDATION_SINGLE_ITERATION,
    StandardTrainingJobSpanName.TESTING_SINGLE_ITERATION,
    StandardTrainingJobSpanName.DATA_LOADING,
    StandardTrainingJobSpanName.MODEL_FORWARD,
    StandardTrainingJobSpanName.ZERO_GRAD,
    StandardTrainingJobSpanName.MODEL_BACKWARD,
    StandardTrainingJobSpanName.OPTIMIZER_UPDATE,
]
"""Short and frequent spans: they are aggregated instead of recorded one by one."""


ITERATION_LOOPS = {
    StandardTrainingJobSpanName.TRAINING_SINGLE_ITERATION: StandardTrainingJobSpanName.TRAINING_LOOP,
    StandardTrainingJobSpanName.VALIDATION_SINGLE_ITERATION: StandardTrainingJobSpanName.VALIDATION_LOOP,
    StandardTrainingJobSpanName.TESTING_SINGLE_ITERATION: StandardTrainingJobSpanName.TESTING_LOOP,
}
"""The loops of iterations: in one thread, a loop has one iteration at a time."""


def text_of(name: object) -> str:
    """Return a name as a string; for a member of any enum, its value."""
    return str(name.value) if isinstance(name, Enum) else str(name)
