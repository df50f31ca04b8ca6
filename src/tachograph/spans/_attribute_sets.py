"""The attributes of the standard spans and events: `_required("int")` and `_optional("int")`."""

from __future__ import annotations

from functools import partial

from tachograph.spans._attributes import AttributeField, AttributeSet
from tachograph.spans._names import CheckPointStrategy
from tachograph.spans._names import StandardTrainingJobEventName as Events
from tachograph.spans._names import StandardTrainingJobSpanName as Names

__all__ = [
    "ATTRIBUTE_SETS",
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

_required = AttributeField
_optional = partial(AttributeField, required=False)


class TrainingLoopAttributes(AttributeSet):
    """The start and the target of a training loop."""

    train_iterations_start = _required("int")
    train_samples_start = _optional("int")
    train_tokens_target = _optional("int")
    completed_floating_point_operations_overall = _optional("int")
    train_iterations_target = _optional("int")
    train_samples_target = _optional("int")


class CheckpointSaveSpanAttributes(AttributeSet):
    """The checkpoint that is being saved, and the strategy."""

    checkpoint_strategy = _required(CheckPointStrategy)
    current_iteration = _required("int")
    save_checkpoint_attempt_count = _required("int")


class OneLoggerInitializationAttributes(AttributeSet):
    """The facts known when a job starts."""

    world_size = _required("int")
    one_logger_training_telemetry_version = _required("str")
    enable_for_current_rank = _required("bool")
    session_tag = _required("str")
    is_baseline_run = _required("bool")
    summary_data_schema_version = _required("str")
    node_name = _required("str")
    rank = _required("int")
    custom_metadata = _optional("list[str]")
    application_name = _optional("str")
    app_type = _optional("str")


class TrainingTelemetryAttributes(AttributeSet):
    """The parameters of the training, and which metrics are recorded."""

    perf_tag = _optional("str | list[str]")
    global_batch_size = _optional("int")
    log_every_n_train_iterations = _required("int")
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

    train_iterations_start = _required("int")
    current_iteration = _required("int")
    num_iterations = _required("int")
    train_samples_start = _optional("int")
    num_train_samples = _optional("int")
    interval = _required("int")
    avg_iteration_time_sec = _required("float")
    min_iteration_time_sec = _required("float")
    max_iteration_time_sec = _required("float")
    total_iteration_time_sec = _required("float")
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


class ValidationMetricsUpdateAttributes(AttributeSet):
    """The iteration of the validation, and the durations of all validation iterations so far."""

    current_iteration = _required("int")
    interval = _required("int")
    avg_iteration_time_sec = _optional("float")
    min_iteration_time_sec = _optional("float")
    max_iteration_time_sec = _optional("float")
    total_iteration_time_sec = _optional("float")


class TestingMetricsUpdateAttributes(AttributeSet):
    """The iteration of the testing, and the durations of all testing iterations so far."""

    __test__ = False  # pytest takes every class whose name begins so

    current_iteration = _required("int")
    interval = _required("int")
    avg_iteration_time_sec = _optional("float")
    min_iteration_time_sec = _optional("float")
    max_iteration_time_sec = _optional("float")
    total_iteration_time_sec = _optional("float")


class SaveCheckpointSuccessEventAttributes(AttributeSet):
    """A checkpoint is complete: the progress that would survive if the job died now."""

    checkpoint_strategy = _required(CheckPointStrategy)
    current_iteration = _required("int")
    first_successful_save_checkpoint_timestamp_sec = _required("float")
    latest_successful_save_checkpoint_timestamp_sec = _required("float")
    save_checkpoint_success_count = _required("int")
    productive_train_iterations = _required("int")
    productive_train_samples = _optional("int")
    productive_train_iterations_sec = _required("float")
    productive_validation_iterations_sec = _required("float")
    productive_train_tflops = _optional("float")
    checkpoint_size = _optional("int")
    checkpoint_directory = _optional("str")
    training_start_timestamp_sec = _optional("float")


class SyncCheckpointMetricsUpdateAttributes(AttributeSet):
    """The time that training waited for checkpoints, over all saves."""

    save_checkpoint_sync_time_total_sec = _required("float")
    save_checkpoint_sync_time_min_sec = _required("float")
    save_checkpoint_sync_time_max_sec = _required("float")


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
