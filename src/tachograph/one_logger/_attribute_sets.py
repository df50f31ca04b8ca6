"""`AttributeSet`, and the sets that belong to the standard spans and events.

A subclass lists its attributes: `_mandatory("int")` and `_optional("int")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from tachograph.exceptions import ConfigError, TachographError
from tachograph.spans import Attributes, CheckPointStrategy, metadata_texts
from tachograph.spans import StandardTrainingJobEventName as Events
from tachograph.spans import StandardTrainingJobSpanName as Names

__all__ = [
    "ATTRIBUTE_SETS",
    "AttributeSet",
    "CheckpointSaveSpanAttributes",
    "OneLoggerInitializationAttributes",
    "SaveCheckpointSuccessEventAttributes",
    "SyncCheckpointMetricsUpdateAttributes",
    "TestingMetricsUpdateAttributes",
    "TrainingLoopAttributes",
    "TrainingMetricsUpdateAttributes",
    "TrainingTelemetryAttributes",
    "ValidationMetricsUpdateAttributes",
]

_SetSelf = TypeVar("_SetSelf", bound="AttributeSet")


class AttributeField:
    """A known attribute of an `AttributeSet`; reading it gives the value, or None if it is optional and missing.

    Args:
        kind: the type of the value.
        is_mandatory: whether `create` requires it.
        may_be_unknown: whether events that are recorded may lack it although it is mandatory.
    """

    def __init__(self, kind: str | type[Enum], *, is_mandatory: bool = True, may_be_unknown: bool = False) -> None:
        self.kind = kind
        self.is_mandatory = is_mandatory
        self.may_be_unknown = may_be_unknown
        self.name = ""

    def __set_name__(self, _owner: type, name: str) -> None:
        self.name = name

    def __get__(self, attributes: Any, _owner: type | None = None) -> Any:
        if attributes is None:
            return self
        if self.name in attributes:
            value = attributes[self.name].value
            return self.kind(value) if isinstance(self.kind, type) and value in list(self.kind) else value
        if self.is_mandatory and not self.may_be_unknown:
            raise TachographError(f"{type(attributes).__name__}: {self.name} is required.")
        return None


class AttributeSet(Attributes):
    """Attributes with known names, listed in a subclass; `create` accepts them by position or by name."""

    @classmethod
    def fields(cls) -> dict[str, AttributeField]:
        """Return the known attributes, in the order in which `create` accepts them."""
        owners = reversed(cls.__mro__)
        return {
            name: field for owner in owners for name, field in vars(owner).items() if isinstance(field, AttributeField)
        }

    @classmethod
    def create(cls: type[_SetSelf], *values: Any, **values_by_name: Any) -> _SetSelf:
        """Create a set; an optional attribute that is None is left out, and a dict becomes a list of ``name:value``.

        Raises:
            ConfigError: if a required attribute is None.
            TypeError: if one is not passed, or one is passed that does not exist.
        """
        fields = cls.fields()
        if len(values) > len(fields):
            raise TypeError(f"{cls.__name__} takes at most {len(fields)} values, got {len(values)}")
        value_of = dict(zip(fields, values, strict=False))
        for name, value in values_by_name.items():
            if name not in fields or name in value_of:
                problem = "is given twice" if name in value_of else f"is not one of {', '.join(fields)}"
                raise TypeError(f"{cls.__name__}: {name!r} {problem}")
            value_of[name] = value
        missing = [name for name, field in fields.items() if field.is_mandatory and value_of.get(name) is None]
        if missing:
            kind = ConfigError if all(name in value_of for name in missing) else TypeError
            raise kind(f"{cls.__name__}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} required.")
        return cls.from_json({name: _flatten(value) for name, value in value_of.items() if value is not None})


def _flatten(value: Any) -> Any:
    return metadata_texts(value) if isinstance(value, Mapping) else value


_mandatory = AttributeField
_optional = partial(AttributeField, is_mandatory=False)
_unknown_without_batch_size = partial(AttributeField, may_be_unknown=True)


class TrainingLoopAttributes(AttributeSet):
    """The start and the target of a training loop."""

    train_iterations_start = _mandatory("int")
    train_samples_start = _unknown_without_batch_size("int")
    train_tokens_target = _optional("int")
    completed_floating_point_operations_overall = _optional("int")
    train_iterations_target = _optional("int")
    train_samples_target = _optional("int")


class CheckpointSaveSpanAttributes(AttributeSet):
    """The checkpoint that is being saved, and the strategy."""

    checkpoint_strategy = _mandatory(CheckPointStrategy)
    current_iteration = _mandatory("int")
    save_checkpoint_attempt_count = _mandatory("int")


class OneLoggerInitializationAttributes(AttributeSet):
    """The facts known when a job starts."""

    world_size = _mandatory("int")
    one_logger_training_telemetry_version = _mandatory("str")
    enable_for_current_rank = _mandatory("bool")
    session_tag = _mandatory("str")
    is_baseline_run = _mandatory("bool")
    summary_data_schema_version = _mandatory("str")
    node_name = _mandatory("str")
    rank = _mandatory("int")
    custom_metadata = _optional("list[str]")
    application_name = _optional("str")
    app_type = _optional("str")


class TrainingTelemetryAttributes(AttributeSet):
    """The parameters of the training, and which metrics are recorded."""

    perf_tag = _mandatory("str | list[str]", may_be_unknown=True)
    global_batch_size = _mandatory("int", may_be_unknown=True)
    log_every_n_train_iterations = _mandatory("int")
    micro_batch_size = _optional("int")
    seq_length = _optional("int")
    flops_per_sample = _optional("int")
    train_iterations_target = _optional("int")
    train_samples_target = _optional("int")
    checkpoint_strategy = _optional(CheckPointStrategy)
    is_train_iterations_enabled = _optional("bool")
    is_validation_iterations_enabled = _optional("bool")
    is_test_iterations_enabled = _optional("bool")
    is_save_checkpoint_enabled = _optional("bool")
    is_log_throughput_enabled = _optional("bool")
    custom_metadata = _optional("list[str]")
    app_type = _optional("str")
    world_size = _optional("int")
    peak_tflops_per_gpu = _optional("float")


class TrainingMetricsUpdateAttributes(AttributeSet):
    """Progress and speed of a training loop: of the whole job, and (``window_``) since the previous update."""

    train_iterations_start = _mandatory("int")
    current_iteration = _mandatory("int")
    num_iterations = _mandatory("int")
    train_samples_start = _unknown_without_batch_size("int")
    num_train_samples = _unknown_without_batch_size("int")
    interval = _mandatory("int")
    avg_iteration_time_sec = _mandatory("float")
    min_iteration_time_sec = _mandatory("float")
    max_iteration_time_sec = _mandatory("float")
    total_iteration_time_sec = _mandatory("float")
    avg_forward_time_sec = _optional("float")
    avg_backward_time_sec = _optional("float")
    avg_dataloader_time_sec = _optional("float")
    avg_tflops = _optional("float")
    train_tokens = _optional("int")
    avg_tokens_per_second = _optional("float")
    latest_loss = _optional("float")
    avg_batch_size = _optional("int")
    completed_floating_point_operations_overall = _optional("int")
    total_flops = _optional("int")
    train_throughput_per_gpu = _optional("float")
    train_throughput_per_gpu_max = _optional("float")
    train_throughput_per_gpu_min = _optional("float")
    first_logged_train_iterations_finish_timestamp_sec = _optional("float")
    last_logged_train_iterations_finish_timestamp_sec = _optional("float")


class _EvaluationMetricsUpdateAttributes(AttributeSet):
    current_iteration = _mandatory("int")
    interval = _mandatory("int")
    avg_iteration_time_sec = _optional("float")
    min_iteration_time_sec = _optional("float")
    max_iteration_time_sec = _optional("float")
    total_iteration_time_sec = _optional("float")


class ValidationMetricsUpdateAttributes(_EvaluationMetricsUpdateAttributes):
    """The iteration of the validation, and the durations of all validation iterations so far."""


class TestingMetricsUpdateAttributes(_EvaluationMetricsUpdateAttributes):
    """The iteration of the testing, and the durations of all testing iterations so far."""

    __test__ = False  # pytest takes every class whose name begins so


class SaveCheckpointSuccessEventAttributes(AttributeSet):
    """A checkpoint is complete: the progress that would survive if the job died now."""

    checkpoint_strategy = _mandatory(CheckPointStrategy)
    current_iteration = _mandatory("int")
    first_successful_save_checkpoint_timestamp_sec = _mandatory("float")
    latest_successful_save_checkpoint_timestamp_sec = _mandatory("float")
    save_checkpoint_success_count = _mandatory("int")
    productive_train_iterations = _mandatory("int")
    productive_train_samples = _unknown_without_batch_size("int")
    productive_train_iterations_sec = _mandatory("float")
    productive_validation_iterations_sec = _mandatory("float")
    productive_train_tflops = _optional("float")
    checkpoint_size = _optional("int")
    checkpoint_directory = _optional("str")
    training_start_timestamp_sec = _optional("float")


class SyncCheckpointMetricsUpdateAttributes(AttributeSet):
    """The time that training waited for checkpoints, over all saves."""

    save_checkpoint_sync_time_total_sec = _mandatory("float")
    save_checkpoint_sync_time_min_sec = _mandatory("float")
    save_checkpoint_sync_time_max_sec = _mandatory("float")


ATTRIBUTE_SETS: dict[str, type[AttributeSet]] = {
    Names.TRAINING_LOOP: TrainingLoopAttributes,
    Names.CHECKPOINT_SAVE_SYNC: CheckpointSaveSpanAttributes,
    Names.CHECKPOINT_SAVE_ASYNC: CheckpointSaveSpanAttributes,
    Events.ONE_LOGGER_INITIALIZATION: OneLoggerInitializationAttributes,
    Events.UPDATE_TRAINING_TELEMETRY_CONFIG: TrainingTelemetryAttributes,
    Events.TRAINING_METRICS_UPDATE: TrainingMetricsUpdateAttributes,
    Events.VALIDATION_METRICS_UPDATE: ValidationMetricsUpdateAttributes,
    Events.TESTING_METRICS_UPDATE: TestingMetricsUpdateAttributes,
    Events.SAVE_CHECKPOINT_SUCCESS: SaveCheckpointSuccessEventAttributes,
    Events.SYNC_CHECKPOINT_METRICS_UPDATE: SyncCheckpointMetricsUpdateAttributes,
}
"""The attributes of the standard spans and events, by the name of the span or event."""
