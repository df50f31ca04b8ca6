"""Names, fields and signatures that must match One Logger, because other tools read and call them."""

from __future__ import annotations

import inspect
import math

import pytest

from tachograph import one_logger
from tachograph.one_logger import (
    Attribute,
    Attributes,
    ErrorEvent,
    Event,
    OneLoggerError,
    Span,
    TelemetryDataError,
    Timer,
    TracingTimestamp,
)

ENUM_VALUES = {
    "StandardSpanName": {"APPLICATION": "application"},
    "StandardTrainingJobSpanName": {
        "TRAINING_LOOP": "training_loop", "VALIDATION_LOOP": "validation_loop", "TESTING_LOOP": "testing_loop",
        "DIST_INIT": "distributed_code_initialization", "DATA_LOADER_INIT": "data_loader_initialization",
        "MODEL_INIT": "model_initialization", "OPTIMIZER_INIT": "optimizer_initialization",
        "CHECKPOINT_LOAD": "checkpoint_load", "CHECKPOINT_SAVE_SYNC": "checkpoint_save_sync",
        "CHECKPOINT_SAVE_ASYNC": "checkpoint_save_async",
        "CHECKPOINT_SAVE_FINALIZATION": "checkpoint_save_finalization",
        "TRAINING_SINGLE_ITERATION": "training_single_iteration",
        "VALIDATION_SINGLE_ITERATION": "validation_single_iteration",
        "TESTING_SINGLE_ITERATION": "TESTING_SINGLE_ITERATION", "DATA_LOADING": "data_loading",
        "MODEL_FORWARD": "model_forward", "ZERO_GRAD": "zero_grad", "MODEL_BACKWARD": "model_backward",
        "OPTIMIZER_UPDATE": "optimizer_update",
    },
    "StandardTrainingJobEventName": {
        "ONE_LOGGER_INITIALIZATION": "one_logger_initialization",
        "UPDATE_TRAINING_TELEMETRY_CONFIG": "update_training_telemetry_config",
        "TRAINING_METRICS_UPDATE": "training_metrics_update",
        "VALIDATION_METRICS_UPDATE": "validation_metrics_update",
        "TESTING_METRICS_UPDATE": "testing_metrics_update", "SAVE_CHECKPOINT_SUCCESS": "save_checkpoint_success",
        "SYNC_CHECKPOINT_METRICS_UPDATE": "sync_checkpoint_metrics_update",
    },
    "StandardEventName": {
        "SPAN_START": "span_start", "SPAN_STOP": "span_stop", "ERROR": "error",
        "TELEMETRY_DATA_ERROR": "telemetry_data_error",
    },
    "StandardEventAttributeName": {
        "TIMESTAMP_MSEC": "timestamp_msec", "ERROR_MESSAGE": "error_message", "EXCEPTION_TYPE": "exception_type",
        "EXCEPTION_MESSAGE": "exception_message", "EXCEPTION_TRACEBACK": "exception_traceback",
        "TELEMETRY_DATA_ERROR_TYPE": "telemetry_data_error_type",
    },
    "StandardSpanAttributeName": {"DURATION_MSEC": "duration_msec", "NVTX_COLOR": "nvtx_color"},
    "CheckPointStrategy": {"SYNC": "sync", "ASYNC": "async"},
    "CheckPointType": {"GLOBAL": "global", "LOCAL": "local"},
}  # fmt: skip

ATTRIBUTE_FIELDS = {
    "TrainingLoopAttributes": "train_iterations_start train_samples_start train_tokens_target "
    "completed_floating_point_operations_overall train_iterations_target train_samples_target",
    "CheckpointSaveSpanAttributes": "checkpoint_strategy current_iteration save_checkpoint_attempt_count",
    "OneLoggerInitializationAttributes": "world_size one_logger_training_telemetry_version enable_for_current_rank "
    "session_tag is_baseline_run summary_data_schema_version node_name rank custom_metadata",
    "TrainingTelemetryAttributes": "perf_tag global_batch_size log_every_n_train_iterations micro_batch_size "
    "seq_length flops_per_sample "
    "train_iterations_target train_samples_target checkpoint_strategy is_train_iterations_enabled "
    "is_validation_iterations_enabled is_test_iterations_enabled is_save_checkpoint_enabled is_log_throughput_enabled "
    "custom_metadata",
    "TrainingMetricsUpdateAttributes": "train_iterations_start current_iteration num_iterations train_samples_start "
    "num_train_samples interval avg_iteration_time_sec min_iteration_time_sec max_iteration_time_sec "
    "total_iteration_time_sec avg_forward_time_sec avg_backward_time_sec avg_dataloader_time_sec avg_tflops "
    "train_tokens avg_tokens_per_second latest_loss avg_batch_size completed_floating_point_operations_overall "
    "total_flops train_throughput_per_gpu train_throughput_per_gpu_max train_throughput_per_gpu_min "
    "first_logged_train_iterations_finish_timestamp_sec last_logged_train_iterations_finish_timestamp_sec",
    "ValidationMetricsUpdateAttributes": "current_iteration interval avg_iteration_time_sec min_iteration_time_sec "
    "max_iteration_time_sec total_iteration_time_sec",
    "TestingMetricsUpdateAttributes": "current_iteration interval",
    "SaveCheckpointSuccessEventAttributes": "checkpoint_strategy current_iteration "
    "first_successful_save_checkpoint_timestamp_sec latest_successful_save_checkpoint_timestamp_sec "
    "save_checkpoint_success_count productive_train_iterations productive_train_samples "
    "productive_train_iterations_sec productive_validation_iterations_sec productive_train_tflops checkpoint_size "
    "checkpoint_directory training_start_timestamp_sec",
    "SyncCheckpointMetricsUpdateAttributes": "save_checkpoint_sync_time_total_sec save_checkpoint_sync_time_min_sec "
    "save_checkpoint_sync_time_max_sec",
}

CALLBACKS = {
    **{
        f"on_{phase}_{edge}": ["start_time_msec" if edge == "start" else "finish_time_msec"]
        for phase in (
            "app", "distributed_init", "model_init", "dataloader_init", "load_checkpoint", "optimizer_init",
            "training_single_iteration", "validation", "validation_single_iteration", "testing",
        )
        for edge in ("start", "end")
    },
    "on_train_start": [
        "train_iterations_start", "train_samples_start", "train_iterations_target_or_fn",
        "train_samples_target_or_fn", "start_time_msec",
    ],
    "on_train_end": ["finish_time_msec"],
    "on_save_checkpoint_start": ["global_step", "start_time_msec"],
    "on_save_checkpoint_success": ["global_step", "time_msec"],
    "on_save_checkpoint_end": ["finish_time_msec"],
}  # fmt: skip


@pytest.mark.parametrize("enum", ENUM_VALUES)
def test_enum_values_match_names_on_disk(enum):
    kind = getattr(one_logger, enum)
    assert {member.name: member.value for member in kind} == ENUM_VALUES[enum]
    assert all(member == member.value == str(member) == f"{member}" for member in kind)


@pytest.mark.parametrize("name", ATTRIBUTE_FIELDS)
def test_attributes_have_documented_field_order(name):
    kind, fields = getattr(one_logger, name), ATTRIBUTE_FIELDS[name].split()
    assert list(kind.fields())[: len(fields)] == fields
    created = kind.create(*range(1, len(fields) + 1))
    assert created.to_json() == {field: position for position, field in enumerate(fields, 1)}
    assert [getattr(created, field) for field in fields] == list(range(1, len(fields) + 1))
    assert kind.create(**dict.fromkeys(fields, 7)).to_json() == dict.fromkeys(fields, 7)
    with pytest.raises(TypeError, match="required"):
        kind.create()
    with pytest.raises(OneLoggerError, match="required"):
        kind.create(*[None] * len(fields))
    with pytest.raises(TypeError, match="is not one of"):
        kind.create(*range(len(fields)), nonsense=1)
    with pytest.raises(OneLoggerError, match="is required"):
        getattr(
            kind(),
            next(name for name, field in kind.fields().items() if field.is_mandatory and not field.may_be_unknown),
        )


def test_methods_have_documented_parameters():
    parameters = {
        "Attributes.add_attributes": "self other_attributes",
        "Attributes.get_int_value": "self attribute_name",
        "Attributes.get_str_value": "self attribute_name",
        "Attributes.merge": "attributes other",
        "ExporterConfigManager.create_exporters_from_config": "exporters_config training_telemetry_config",
        "ExporterConfigManager.generate_export_config": "direct_config config_file_path",
        "TrainingTelemetryProvider.with_base_config": "self one_logger_config",
        "TrainingTelemetryProvider.with_config_override": "self partial_config",
        "TrainingTelemetryProvider.with_config_override_from_json_file": "self file_path",
        "TrainingTelemetryProvider.with_config_override_from_config_server": "self config_server_url",
    }
    for path, names in parameters.items():
        kind, method = path.split(".")
        signature = inspect.signature(getattr(getattr(one_logger, kind), method))
        assert list(signature.parameters) == names.split(), path


def test_attributes_without_batch_size_may_be_read_but_not_created():
    with pytest.raises(OneLoggerError, match="train_samples_start is required"):
        one_logger.TrainingLoopAttributes.create(train_iterations_start=0, train_samples_start=None)
    assert one_logger.TrainingLoopAttributes().train_samples_start is None


def test_span_without_recorder_keeps_the_wall_time_of_its_stop():
    span = Span.create("x", start_time=TracingTimestamp(1_000.0, 5.0))
    span.stop(stop_time=TracingTimestamp(1_100.0, 6.0))
    assert (span.duration_msec(), span.stop_event.timestamp.seconds_since_epoch) == (1000, 1_100.0)
    assert Span.from_json(span.to_json()).stop_event == span.stop_event


def test_callbacks_have_documented_parameters():
    assert len(CALLBACKS) == 25
    for name, parameters in CALLBACKS.items():
        assert list(inspect.signature(getattr(one_logger, name)).parameters) == parameters


def test_all_lists_existing_names():
    assert one_logger.__all__ == sorted(one_logger.__all__)
    for name in one_logger.__all__:
        assert getattr(one_logger, name) is not None


def test_attributes_convert_merge_and_check_types():
    attributes = Attributes({"a": 1, "b": "x"}).add("c", [1.0, 2.0])
    attributes.add_attributes(Attributes({"d": True}))
    assert attributes.to_json() == {"a": 1, "b": "x", "c": [1.0, 2.0], "d": True}
    assert Attributes.from_json(attributes.to_json()) == attributes
    assert Attributes.merge(attributes, Attributes({"a": 2})).get_int_value("a") == 2
    assert (attributes.get_float_value("a"), attributes.get_str_value("b"), attributes.get_bool_value("d")) == (
        1, "x", True,
    )  # fmt: skip
    assert attributes.get_int_value("nothing") is None
    with pytest.raises(OneLoggerError, match="Attribute b must be an integer. Got x."):
        attributes.get_int_value("b")
    with pytest.raises(OneLoggerError, match="All elements of a list attribute must be of primitive type"):
        Attribute("mixed", [1, "x"])


def test_timestamps_convert_and_reject_invalid_times():
    now = TracingTimestamp.now()
    assert now == TracingTimestamp.from_json(now.to_json()) and len({now, now}) == 1
    assert now.milliseconds_since_epoch == int(now.seconds_since_epoch * 1000)
    hours_ago = TracingTimestamp.for_timestamp(now.seconds_since_epoch - 36_000)
    assert hours_ago.perf_counter_seconds == pytest.approx(now.perf_counter_seconds - 36_000, abs=1.0)
    for bad in (now.seconds_since_epoch + 86_400, 12.0, math.nan, "yesterday"):
        with pytest.raises(OneLoggerError, match="timestamp is"):
            TracingTimestamp.for_timestamp(bad)


def test_events_round_trip_through_json():
    shared = Attributes({"a": 1})
    event = Event.create("happened", shared)
    assert event.attributes.to_json() == {"a": 1, "timestamp_msec": event.timestamp.milliseconds_since_epoch}
    assert shared.to_json() == {"a": 1}  # the passed attributes are not modified
    assert Event.from_json(event.to_json()) == event and len({event, event}) == 1
    try:
        raise ValueError("bad")
    except ValueError as error:
        failed = ErrorEvent.create("it broke", error)
    assert (failed.exception_type, failed.exception_message) == ("ValueError", "bad")
    assert "test_vocabulary" in failed.exception_traceback
    assert Event.from_json(failed.to_json()) == failed
    assert list(failed.attributes)[-1] == "timestamp_msec"
    with pytest.raises(OneLoggerError, match="exception_message"):
        ErrorEvent(event.timestamp, "m", "ValueError")
    missing = TelemetryDataError.create(TelemetryDataError.ErrorType.NO_TELEMETRY_DATA, "gone")
    assert missing.to_json()["error_type"] == "no_telemetry_data"


def test_timer_rejects_double_start_and_stop():
    timer = Timer()
    timer.start()
    assert timer.running
    first = timer.stop()
    timer.start()
    assert timer.stop() >= first >= 0
    for call in (timer.stop, lambda: (timer.start(), timer.start())):
        with pytest.raises(OneLoggerError, match="running"):
            call()
    timer.reset(start=True)
    assert timer.running


def test_invalid_json_raises():
    span = {"name": "x", "id": "1"}
    for kind, data, message in (
        (Event, None, "Event data must be a dictionary"),
        (Event, {}, "Event data must be a dictionary"),
        (Event, {"name": "x"}, "Event must have a name and a timestamp"),
        (Event, {"name": "x", "timestamp": {"seconds_since_epoch": 5.0}}, "must have seconds_since_epoch and perf"),
        (Span, None, "Span data must be a dictionary"),
        (Span, {"name": "x"}, "Span must have a name and an id"),
        (Span, span, "Span must have a start event"),
        (Span, {**span, "events": 5}, "Span must have a start event"),
        (Span, {**Span.create("x").to_json(), "id": "7"}, "must be a UUID, got '7'"),
        (TracingTimestamp, None, "must have seconds_since_epoch and perf"),
    ):
        with pytest.raises(OneLoggerError, match=message):
            kind.from_json(data)
