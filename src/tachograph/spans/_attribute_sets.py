"""The attributes of the standard spans and events. ``Field("int")`` must be there; `_maybe("int")` may be missing."""

from __future__ import annotations

from functools import partial

from tachograph.spans._attributes import AttributeSet, Field

__all__ = [
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

_maybe = partial(Field, required=False)


class TrainingLoopAttributes(AttributeSet):
    """What a training loop starts from and aims at."""

    train_iterations_start = Field("int")
    train_samples_start = _maybe("int")
    train_tokens_target = _maybe("int")
    completed_floating_point_operations_overall = _maybe("int")
    train_iterations_target = _maybe("int")
    train_samples_target = _maybe("int")


class CheckpointSaveSpanAttributes(AttributeSet):
    """Which checkpoint is being saved, and how."""

    checkpoint_strategy = Field("str")
    current_iteration = Field("int")
    save_checkpoint_attempt_count = Field("int")


class OneLoggerInitializationAttributes(AttributeSet):
    """What is known of a job when it starts."""

    world_size = Field("int")
    one_logger_training_telemetry_version = Field("str")
    enable_for_current_rank = Field("bool")
    session_tag = Field("str")
    is_baseline_run = Field("bool")
    summary_data_schema_version = Field("str")
    node_name = Field("str")
    rank = Field("int")
    custom_metadata = _maybe("list[str]")
    application_name = _maybe("str")
    app_type = _maybe("str")


class TrainingTelemetryAttributes(AttributeSet):
    """What is known of the training, and which of it is recorded."""

    perf_tag = _maybe("str | list[str]")
    global_batch_size = _maybe("int")
    log_every_n_train_iterations = Field("int")
    micro_batch_size = _maybe("int")
    seq_length = _maybe("int")
    flops_per_sample = _maybe("int")
    train_iterations_target = _maybe("int")
    train_samples_target = _maybe("int")
    checkpoint_strategy = _maybe("str")
    is_train_iterations_enabled = _maybe("bool")
    is_validation_iterations_enabled = _maybe("bool")
    is_test_iterations_enabled = _maybe("bool")
    is_save_checkpoint_enabled = _maybe("bool")
    is_log_throughput_enabled = _maybe("bool")
    custom_metadata = _maybe("list[str]")
    app_type = _maybe("str")
    world_size = _maybe("int")
    peak_tflops_per_gpu = _maybe("float")


class TrainingMetricsUpdateAttributes(AttributeSet):
    """Progress and speed of a training loop: of the job so far, and (``window_``) since the update before."""

    train_iterations_start = Field("int")
    current_iteration = Field("int")
    num_iterations = Field("int")
    train_samples_start = _maybe("int")
    num_train_samples = _maybe("int")
    interval = Field("int")
    avg_iteration_time_sec = Field("float")
    min_iteration_time_sec = Field("float")
    max_iteration_time_sec = Field("float")
    total_iteration_time_sec = Field("float")
    avg_forward_time_sec = _maybe("float")
    avg_backward_time_sec = _maybe("float")
    avg_dataloader_time_sec = _maybe("float")
    avg_tflops = _maybe("float")
    train_tokens = _maybe("int")
    avg_tokens_per_second = _maybe("float")
    latest_loss = _maybe("float")
    avg_batch_size = _maybe("int")
    completed_floating_point_operations_overall = _maybe("int")
    total_flops = _maybe("int")
    train_throughput_per_gpu = _maybe("float")
    train_throughput_per_gpu_max = _maybe("float")
    train_throughput_per_gpu_min = _maybe("float")
    first_logged_train_iterations_finish_timestamp_sec = _maybe("float")
    last_logged_train_iterations_finish_timestamp_sec = _maybe("float")


class ValidationMetricsUpdateAttributes(AttributeSet):
    """When validation took place, and how long its iterations took in the job so far."""

    current_iteration = Field("int")
    interval = Field("int")
    avg_iteration_time_sec = _maybe("float")
    min_iteration_time_sec = _maybe("float")
    max_iteration_time_sec = _maybe("float")
    total_iteration_time_sec = _maybe("float")


class TestingMetricsUpdateAttributes(AttributeSet):
    """When testing took place, and how long its iterations took in the job so far."""

    __test__ = False  # pytest takes every class whose name begins so

    current_iteration = Field("int")
    interval = Field("int")
    avg_iteration_time_sec = _maybe("float")
    min_iteration_time_sec = _maybe("float")
    max_iteration_time_sec = _maybe("float")
    total_iteration_time_sec = _maybe("float")


class SaveCheckpointSuccessEventAttributes(AttributeSet):
    """A checkpoint is safe: what would not be lost if the job died now."""

    checkpoint_strategy = Field("str")
    current_iteration = Field("int")
    first_successful_save_checkpoint_timestamp_sec = Field("float")
    latest_successful_save_checkpoint_timestamp_sec = Field("float")
    save_checkpoint_success_count = Field("int")
    productive_train_iterations = Field("int")
    productive_train_samples = _maybe("int")
    productive_train_iterations_sec = Field("float")
    productive_validation_iterations_sec = Field("float")
    productive_train_tflops = _maybe("float")
    checkpoint_size = _maybe("int")
    checkpoint_directory = _maybe("str")
    training_start_timestamp_sec = _maybe("float")


class SyncCheckpointMetricsUpdateAttributes(AttributeSet):
    """How long training waited for checkpoints, over all saves."""

    save_checkpoint_sync_time_total_sec = Field("float")
    save_checkpoint_sync_time_min_sec = Field("float")
    save_checkpoint_sync_time_max_sec = Field("float")
