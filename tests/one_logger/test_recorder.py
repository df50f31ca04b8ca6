"""One Logger's recorders, on top of the span recorder of a run."""

from __future__ import annotations

import pytest

import tachograph
from tachograph import one_logger
from tachograph.one_logger import (
    DefaultRecorder,
    Event,
    ExportCustomizationMode,
    OneLoggerError,
    TracingTimestamp,
    get_recorder,
)
from tachograph.one_logger._attribute_sets import ATTRIBUTE_SETS
from tests.conftest import HANG_S, lines_of
from tests.one_logger.test_exporters import CollectingExporter


def test_timestamp_objects_set_start_and_stop(logs):
    with tachograph.init("x", log_dir=str(logs)):
        recorder = get_recorder()
        now = TracingTimestamp.now()
        wall_only = TracingTimestamp(now.seconds_since_epoch - 5, 0.0)
        span = recorder.start("x", start_time=wall_only)
        recorder.stop(span, stop_time=now)
        assert span.duration_msec() == pytest.approx(5000, abs=100)
        recorder.event(recorder.current, Event.create("e", {"a": 1}, wall_only))
    assert [record["a"] for record in lines_of(logs / "x") if record.get("name") == "e"] == [1]


@pytest.mark.expects_faults
@pytest.mark.parametrize("bad", [5.0, "now", TracingTimestamp(float("nan"), float("nan"))])
def test_invalid_start_time_is_reported_and_ignored(logs, bad):
    with tachograph.init("x", log_dir=str(logs)):
        span = get_recorder().start("x", start_time=bad)
        get_recorder().stop(span)
    assert span.duration_msec() < HANG_S * 1000
    assert [record["event"] for record in lines_of(logs / "x")].count("telemetry_error") == 1


def test_span_gets_the_parent_and_attributes_of_start(tacho_run):
    recorder = get_recorder()
    outer, _sibling = recorder.start("outer"), recorder.start("sibling")
    inner = recorder.start("inner", one_logger.Attributes({"a": 1}), one_logger.Attributes({"b": 2}), None, outer)
    assert inner.parent_span is outer
    assert [span.name for span in recorder.get_active_spans_by_name("inner")] == ["inner"]
    recorder.stop(inner, one_logger.Attributes({"c": 3}))
    assert recorder.get_active_spans_by_name("inner") == []
    records = [record for record in tacho_run.records if record.get("name") == "inner"]
    assert [record.get("start_attributes") for record in records if record["event"] != "span_stop"] == [{"b": 2}]
    assert (records[-1]["attributes"], records[-1]["stop_attributes"]) == ({"a": 1}, {"c": 3})


@pytest.mark.parametrize("has_run", [False, True])
def test_default_recorder_exports_without_a_provider(provider, monkeypatch, tmp_path, has_run):
    del provider  # it is not configured
    run = tachograph.init("x", log_dir=str(tmp_path / "logs")) if has_run else None
    exporter = CollectingExporter()
    recorder = DefaultRecorder([exporter], ExportCustomizationMode.BLACKLIST_SPANS, ["hidden"])
    recorder.close()  # nothing to close yet
    assert exporter.num_initialized == 0
    outer = recorder.start("outer")
    recorder.stop(recorder.start("hidden"))
    recorder.event(outer, Event.create("inside"))
    recorder.error(outer, "bad", ValueError("x"))
    recorder.start("left_open")
    recorder.close()
    assert exporter.calls == [
        ("start", "outer"),
        ("event", "inside"),
        ("error", "error"),
        ("start", "left_open"),
        ("stop", "left_open"),
        ("stop", "outer"),
    ]
    recorder.stop(recorder.start("too late"))  # neither starts a run nor reaches an exporter
    assert len(exporter.calls) == 6
    assert (exporter.num_initialized, exporter.num_closed) == (1, 1)
    folders = list((tmp_path / "logs").iterdir())
    assert len(folders) == 1
    if run is not None:
        assert run.status == "running"
        run.finish()
        errors = [record for record in lines_of(folders[0]) if record["event"] == "telemetry_error"]
        assert [error["reason"] for error in errors] == [
            "Recorder is already closed: its exporters receive nothing more"
        ]


def train(calls: object, loop: str) -> None:
    """Run a job with the callbacks of a module or of a recorder."""

    def call(name: str, *arguments: object) -> None:
        getattr(calls, f"on_{name}")(*arguments)

    call("app_start")
    for phase in ("distributed_init", "model_init", "dataloader_init", "load_checkpoint", "optimizer_init"):
        call(f"{phase}_start")
        call(f"{phase}_end")
    call(f"{loop}_start", 0)
    for step in range(3):
        call("training_single_iteration_start")
        call("training_single_iteration_end")
        call("save_checkpoint_start", step)
        call("save_checkpoint_success", step)
        call("save_checkpoint_end")
    call(f"{loop}_end")
    for phase in ("validation", "testing"):
        call(f"{phase}_start")
        if phase == "validation":
            call("validation_single_iteration_start")
            call("validation_single_iteration_end")
        call(f"{phase}_end")
    call("app_end")


def test_recorder_has_the_callbacks_as_methods(configure):
    shapes = []
    for calls, loop in ((one_logger, "train"), (get_recorder, "training_loop")):
        exporter = CollectingExporter()
        provider = configure(exporter)
        train(calls() if callable(calls) else calls, loop)
        shapes.append(exporter.calls)
        provider.reset()
    assert shapes[0] == shapes[1]
    assert ("event", "save_checkpoint_success") in shapes[1] and ("event", "validation_metrics_update") in shapes[1]
    configure(CollectingExporter(), enable_for_current_rank=False)
    train(get_recorder(), "training_loop")


def test_recorder_methods_use_timestamps(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        now = TracingTimestamp.now()
        minute_ago = TracingTimestamp.for_timestamp(now.seconds_since_epoch - 60)
        span = get_recorder().on_training_loop_start(5, 20, train_tokens_target=9, start_time=minute_ago)
        get_recorder().on_training_loop_end(now)
        assert span.duration_msec() == pytest.approx(60_000, abs=1000)
        assert span.attributes.get_int_value("train_tokens_target") == 9
        assert run.status == "running"


@pytest.mark.parametrize("has_provider", [False, True])
def test_training_recorder_is_created_with_config_and_exporters(provider, has_provider):
    training = one_logger.TrainingTelemetryConfig(perf_tag_or_fn="p", global_batch_size_or_fn=4)
    config = one_logger.OneLoggerConfig(
        application_name="app", session_tag_or_fn="session", world_size_or_fn=1, telemetry_config=training
    )
    exporter = CollectingExporter()
    recorder = one_logger.TrainingRecorder(config, [exporter])
    if has_provider:
        provider.configure(config, recorder)
    recorder.on_app_start()
    recorder.on_training_loop_start(3)
    recorder.on_training_single_iteration_start()
    recorder.on_training_single_iteration_end()
    (loop,) = recorder.get_active_spans_by_name("training_loop")
    assert loop.attributes.get_int_value("train_samples_start") == 12
    recorder.on_training_loop_end()
    recorder.on_app_end()
    assert exporter.calls == [
        ("start", "application"),
        ("event", "one_logger_initialization"),
        ("event", "update_training_telemetry_config"),
        ("start", "training_loop"),
        ("event", "training_metrics_update"),
        ("stop", "training_loop"),
        ("stop", "application"),
    ]
    assert (exporter.num_initialized, exporter.num_closed) == (1, 1)


def test_default_recorder_rejects_other_objects():
    with pytest.raises(OneLoggerError, match="DefaultRecorder expects an Exporter, got str"):
        DefaultRecorder(["file"])


def test_standard_events_have_the_attributes_of_their_sets(tacho_run):
    """`spans` writes the events and `one_logger` types their attributes; the two must not drift apart."""
    tachograph.set_training_config(
        global_batch_size=4, seq_length=8, flops_per_sample=1e9, custom_metadata={"team": "x"}, perf_tag=["a", "b"]
    )
    with tachograph.application(), tachograph.training_loop(0, train_iterations_target_or_fn=10):
        for step in range(3):
            with tachograph.training_iteration(), tachograph.forward():
                tacho_run.clock.advance(1.0)
            with tachograph.checkpoint_save(step):
                tacho_run.clock.advance(1.0)
        for loop, iteration in (
            (tachograph.validation_loop, tachograph.validation_iteration),
            (tachograph.testing_loop, tachograph.testing_iteration),
        ):
            with loop(), iteration():
                tacho_run.clock.advance(1.0)
    events = {record["name"]: record for record in tacho_run.records if record["event"] == "event"}
    kinds = {str(name): kind for name, kind in ATTRIBUTE_SETS.items() if str(name) in events}
    assert len(kinds) == len(events) == 7
    own = {"event", "time", "name", "span_id", "global_step"}
    for name, kind in kinds.items():
        attributes = {field for field in events[name] if field not in own and not field.startswith("window_")}
        mandatory = {field for field, known in kind.fields().items() if known.is_mandatory}
        assert mandatory <= attributes <= set(kind.fields()), name
    assert events["update_training_telemetry_config"]["custom_metadata"] == ["team:x"]
