"""Exporters: their output format, and that a failing exporter harms neither the run nor later records."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time

import pytest

from tachograph.one_logger import (
    Attributes,
    CheckPointStrategy,
    Event,
    ExportCustomizationMode,
    Exporter,
    ExportError,
    FileExporter,
    LoggerExporter,
    Span,
    TrainingTelemetryConfig,
    UnreachableError,
    application,
    checkpoint_save,
    get_recorder,
    timed_span,
    training_iteration,
    training_loop,
)
from tachograph.one_logger import StandardTrainingJobSpanName as Names
from tachograph.one_logger._relay import ExporterSink
from tests.conftest import HANG_S, wait_for
from tests.one_logger.conftest import exported, journal


class CollectingExporter(Exporter):
    """Collects calls in memory and can be made to fail.

    Args:
        fails: called with the number of the call and the name of the span or event; whether the call raises.
    """

    def __init__(self, fails=lambda number, name: False) -> None:
        self.fails = fails
        self.num_calls = 0
        self.calls: list[tuple[str, str]] = []
        self.num_initialized = self.num_closed = 0

    def _add(self, kind: str, name: str) -> None:
        self.num_calls += 1
        if self.fails(self.num_calls, name):
            raise ConnectionError("the backend is down")
        self.calls.append((kind, name))

    def initialize(self) -> None:
        self.num_initialized += 1

    def export_start(self, span: Span) -> None:
        self._add("start", span.name_str)

    def export_stop(self, span: Span) -> None:
        assert span.stop_event is not None
        self._add("stop", span.name_str)

    def export_event(self, event: Event, span: Span) -> None:
        self._add("event", event.name_str)

    def export_error(self, event: Event, span: Span) -> None:
        self._add("error", event.name_str)

    def export_telemetry_data_error(self, error: Event) -> None:
        self._add("data_error", error.name_str)

    def close(self) -> None:
        self.num_closed += 1


def test_file_exporter_writes_documented_format(configure):
    provider = configure(
        telemetry_config=TrainingTelemetryConfig(
            perf_tag_or_fn="p", global_batch_size_or_fn=4, log_every_n_train_iterations=2
        )
    )
    with pytest.raises(ValueError), application():
        with training_loop(0) as loop, timed_span("alone"):
            loop.add_attribute("late", 1)
        with training_loop(2):
            for _ in range(2):
                with training_iteration():
                    pass
        with timed_span("broken"):
            raise ValueError("bad data")
    assert provider.recorder.run.status == "failed"
    records = exported()
    assert [record["type"] for record in records][:4] == ["start", "event", "event", "start"]
    names = [record.get("name") or record.get("event", {}).get("name") for record in records]
    assert names[:4] == [
        "application", "one_logger_initialization", "update_training_telemetry_config", "training_loop",
    ]  # fmt: skip
    assert [record["count"] for record in records] == list(range(1, len(records) + 1))
    app = records[0]
    assert [key for key in app if key != "attributes"] == ["type", "id", "name", "start_event", "count", "pid"]
    assert app["start_event"]["name"] == "span_start"
    assert list(app["start_event"]["attributes"]) == ["timestamp_msec"]
    loop_record = records[3]
    assert loop_record["parent_id"] == app["id"]
    alone = next(record for record in records if record.get("name") == "alone")
    assert (alone["type"], alone["attributes"].keys()) == ("complete", {"duration_msec"})
    assert {"start_event", "stop_event", "parent_id"} <= set(alone)
    event = next(record for record in records if record.get("event", {}).get("name") == "training_metrics_update")
    assert list(event) == ["type", "span_id", "event", "count", "pid"]
    assert list(event["event"]["attributes"])[-1] == "timestamp_msec"
    assert "global_step" not in event["event"]["attributes"]
    error = next(record for record in records if record["type"] == "application_error")
    assert error["event"]["attributes"]["error_message"] == "Error in broken: "
    assert error["event"]["attributes"]["exception_type"] == "ValueError"
    assert "bad data" in error["event"]["attributes"]["exception_traceback"]
    stop = records[-1]
    assert (stop["type"], stop["name"], stop["id"]) == ("stop", "application", app["id"])
    assert type(stop["attributes"]["duration_msec"]) is int


def test_restart_appends_without_repeating_records(configure):
    for index in range(3):
        configure(FileExporter("out.jsonl"))
        with application(), timed_span(f"work {index}"):
            pass
    names = [record["name"] for record in exported() if record.get("name", "").startswith("work")]
    assert names == ["work 0", "work 1", "work 2"]


def test_new_exporter_skips_earlier_records(configure):
    for path in ("one.jsonl", "two.jsonl"):
        configure(FileExporter(path))
        with application(), timed_span(path):
            pass
    assert [record["name"] for record in exported("two.jsonl") if record["type"] == "complete"] == ["two.jsonl"]


@pytest.mark.parametrize("every", [2, 10])
def test_occasional_failures_lose_no_record(configure, every):
    exporter = CollectingExporter(lambda number, name: number % every == 0)
    configure(exporter)
    with application():
        for index in range(100):
            with timed_span(f"s{index}"):
                pass
    stopped = [name for kind, name in exporter.calls if kind == "stop" and name.startswith("s")]
    assert stopped == [f"s{index}" for index in range(100)]
    assert exporter.num_closed == 1


def test_record_that_always_fails_is_skipped(configure):
    exporter = CollectingExporter(lambda number, name: name == "poison")
    configure(exporter)
    with application() as app:
        with timed_span("poison"):
            pass
        with timed_span("after"):
            pass
        run = app.recorder.run
        wait_for(lambda: ("stop", "after") in exporter.calls, what="the span after the poison")
        wait_for(lambda: run.flush() and any(record.get("kind") == "incomplete_telemetry_data" for record in journal()))
    error = next(record for record in journal() if record.get("kind") == "incomplete_telemetry_data")
    assert "1 lost so far" in error["reason"] and "ConnectionError" in error["reason"]
    assert ("stop", "application") in exporter.calls


def test_exporter_resumes_after_outage(configure):
    is_down = threading.Event()
    is_down.set()
    exporter = CollectingExporter(lambda number, name: is_down.is_set())
    configure(exporter)
    with application():
        with timed_span("during"):
            pass
        wait_for(lambda: exporter.num_calls)
        is_down.clear()
        with timed_span("after"):
            pass
    assert ("stop", "during") in exporter.calls and ("stop", "after") in exporter.calls


def test_hanging_exporter_does_not_block_exit(configure, monkeypatch):
    monkeypatch.setenv("TACHO_EXIT_TIMEOUT_S", "0.5")
    configure(CollectingExporter(lambda number, name: time.sleep(HANG_S)), FileExporter("out.jsonl"))
    started_s = time.monotonic()
    with application():
        for _ in range(1000):
            with training_iteration():
                pass
    assert time.monotonic() - started_s < HANG_S / 2
    wait_for(lambda: [record["name"] for record in exported()[-1:]] == ["application"])


def test_unwritable_file_raises_at_configuration(configure, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="file_path=.*cannot be written"):
        configure(FileExporter(tmp_path / "file" / "inside"))
    assert not (tmp_path / "logs").exists()  # no run was started


def test_special_values_and_reserved_names_are_exported(configure):
    configure()
    with application() as app:
        with timed_span("x", {"nan": float("nan"), "list": [1, 2.5], "deep": {"a": {"b": 1}}, "text": 'quo"te | = .'}):
            pass
        app.add_event(Event.create("named", Attributes({"name": "mine", "span_id": "theirs", "global_step": 5})))
    record = next(record for record in exported() if record.get("name") == "x")
    assert record["attributes"]["list"] == [1, 2.5]
    event = next(record["event"] for record in exported() if record["type"] == "event" and "mine" in str(record))
    assert event["name"] == "named"
    values = {name: event["attributes"][name] for name in ("name", "span_id", "global_step")}
    assert values == {"name": "mine", "span_id": "theirs", "global_step": 5}


def test_many_spans_keep_their_parent_ids(configure):
    configure()
    with application(), training_loop(0):
        for _ in range(3000):
            with timed_span("augment"):
                pass
    parents = {record.get("parent_id") for record in exported() if record.get("name") == "augment"}
    loop = next(record for record in exported() if record.get("name") == "training_loop")
    assert parents == {loop["id"]}
    assert exported()[-2]["name"] == "training_loop" and "parent_id" in exported()[-2]


def test_logger_exporter_lines_can_be_parsed(configure, caplog):
    logger = logging.getLogger("telemetry")
    logger.setLevel(logging.INFO)
    with caplog.at_level(logging.INFO, logger="telemetry"):
        configure(LoggerExporter(logger), FileExporter("out.jsonl"))
        with application(), timed_span("x", {"a.b": 1, "text": 'pipe | equals = quote " ]', "c=d\\": [1, 2]}):
            pass
    lines = [record.getMessage() for record in caplog.records if record.name == "telemetry"]
    assert lines[0].startswith('[type="start" | start_event.name="span_start"')
    assert [LoggerExporter.deserialize_log(line) for line in lines] == exported()
    with pytest.raises(ExportError, match="Log string must be enclosed in square brackets"):
        LoggerExporter.deserialize_log("[type=")


def test_standalone_exporter_checks_its_state(tmp_path):
    exporter = FileExporter(tmp_path / "deep" / "by_hand.jsonl")
    span = Span.create("x")
    with pytest.raises(ExportError, match=r"Exporter not initialized\. Call initialize first"):
        exporter.export_start(span)
    exporter.initialize()
    exporter.export_start(span)
    with pytest.raises(ExportError, match="has not stopped"):
        exporter.export_stop(span)
    span.stop()
    exporter.export_stop(span)
    exporter.close()
    assert exporter.closed and not exporter.ready
    with pytest.raises(ExportError, match="Exporter is closed and cannot be used anymore"):
        exporter.export_start(span)
    records = [json.loads(line) for line in (tmp_path / "deep" / "by_hand.jsonl").read_text().splitlines()]
    assert [record["type"] for record in records] == ["start", "stop"]


def test_telemetry_errors_reach_exporters(configure):
    exporter = CollectingExporter()
    configure(exporter)
    with application():
        get_recorder().telemetry_data_error("something is missing", Attributes({"what": "loss"}))
    assert ("data_error", "telemetry_data_error") in exporter.calls


def test_failed_exporter_receives_missed_records_later(configure, monkeypatch):
    def fail(self, json_dict):
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(FileExporter, "_write", fail)
        configure(FileExporter("out.jsonl"))
        with application(), timed_span("first job"):
            pass
    configure(FileExporter("out.jsonl"))
    with application(), timed_span("second job"):
        pass
    names = [record["name"] for record in exported() if record["type"] == "complete"]
    assert names == ["first job", "second job"]


def events_of(span_name: str) -> list[str]:
    """Return the names of the exported events of a span."""
    ids = {record["id"] for record in exported() if record.get("name") == span_name}
    return [record["event"]["name"] for record in exported() if record.get("span_id") in ids]


def test_config_set_before_application_is_exported_in_it(configure):
    provider = configure()
    provider.set_training_telemetry_config(
        TrainingTelemetryConfig(perf_tag_or_fn="fast", global_batch_size_or_fn=4, log_every_n_train_iterations=1)
    )
    with application(), training_loop(0), training_iteration():
        pass
    assert events_of("application") == ["one_logger_initialization", "update_training_telemetry_config"]
    (update,) = [record["event"] for record in exported() if "perf_tag" in str(record)]
    assert update["attributes"]["perf_tag"] == "fast"


@pytest.mark.parametrize("has_loop", [True, False])
def test_config_is_exported_without_application(configure, has_loop):
    provider = configure()
    provider.set_training_telemetry_config(TrainingTelemetryConfig(perf_tag_or_fn="p", global_batch_size_or_fn=4))
    with training_loop(0) if has_loop else contextlib.nullcontext(), training_iteration():
        pass
    provider.reset()
    updates = ["update_training_telemetry_config", "training_metrics_update"]
    assert events_of("training_loop" if has_loop else "run") == updates


def test_config_is_exported_even_if_nothing_follows(configure):
    provider = configure()
    provider.set_training_telemetry_config(TrainingTelemetryConfig(perf_tag_or_fn="p", global_batch_size_or_fn=4))
    provider.reset()
    assert events_of("run") == ["update_training_telemetry_config"]


def test_events_outside_spans_belong_to_the_run(configure):
    recorder = configure().recorder
    recorder.event(Event.create("before"))
    recorder.error(recorder.current, "wrong", ValueError("v"))
    with application():
        pass
    names = [(record["type"], record.get("name")) for record in exported()]
    assert names[0] == ("start", "run") and names[-1] == ("stop", "run")
    assert events_of("run") == ["before", "error"]
    assert "parent_id" not in next(record for record in exported() if record.get("name") == "application")


def test_uncaught_error_outside_spans_is_exported_once(configure):
    run = configure().recorder.run
    with pytest.raises(ValueError), run:
        raise ValueError("bad data")
    (error,) = [record for record in exported() if record["type"] == "application_error"]
    assert error["event"]["attributes"]["exception_message"] == "bad data"


def test_iterations_without_loop_report_in_application(configure):
    configure()
    with application(), training_iteration():
        pass
    assert events_of("application")[-1] == "training_metrics_update"
    assert exported()[-1]["name"] == "application"


def losses() -> list[str]:
    """Return the reported losses of exporters, in order."""
    return [record["reason"] for record in journal() if "telemetry_data" in str(record.get("kind"))]


def test_events_of_excluded_spans_are_not_exported(configure, provider):
    provider.with_export_customization(ExportCustomizationMode.WHITELIST_SPANS, [Names.TRAINING_LOOP, "seen"])
    exporter = CollectingExporter()
    configure(exporter)
    with application(), training_loop(0), timed_span("hidden") as hidden:
        get_recorder().event(hidden, Event.create("inside", {"span_name": "mine"}))
        get_recorder().error(hidden, "reported", ValueError("x"))
        with timed_span("seen") as seen:
            get_recorder().event(seen, Event.create("shown"))
        with contextlib.suppress(OSError), timed_span("failing"):
            raise OSError("an exception is exported, whatever it ends")
    assert exporter.calls == [
        ("start", "training_loop"),
        ("start", "seen"),
        ("event", "shown"),
        ("stop", "seen"),
        ("error", "error"),
        ("stop", "training_loop"),
    ]
    (inside,) = [record for record in journal() if record.get("name") == "inside"]
    assert (inside["span_name"], inside["span_name_"]) == ("hidden", "mine")
    assert "one_logger_initialization" in [record.get("name") for record in journal()]


def test_metrics_follow_the_start_of_their_iteration(configure, provider):
    provider.with_export_customization(ExportCustomizationMode.EXPORT_ALL_SPANS)
    exporter = CollectingExporter()
    config = TrainingTelemetryConfig(perf_tag_or_fn="p", global_batch_size_or_fn=4, log_every_n_train_iterations=1)
    configure(exporter, telemetry_config=config)
    with application(), training_loop(0):
        for _ in range(20):
            with training_iteration():
                pass
    iteration = [
        ("start", "training_single_iteration"),
        ("event", "training_metrics_update"),
        ("stop", "training_single_iteration"),
    ]
    calls = exporter.calls[exporter.calls.index(("start", "training_loop")) + 1 :]
    assert calls == [*(iteration * 20), ("stop", "training_loop"), ("stop", "application")]


@pytest.mark.parametrize("in_loop", [False, True])
def test_checkpoint_before_the_first_iteration_has_progress(configure, in_loop):
    config = TrainingTelemetryConfig(
        perf_tag_or_fn="p",
        global_batch_size_or_fn=4,
        flops_per_sample_or_fn=5e11,
        is_log_throughput_enabled_or_fn=True,
    )
    configure(telemetry_config=config)
    with application(), training_loop(3) if in_loop else contextlib.nullcontext(), checkpoint_save(0):
        pass
    (event,) = [record["event"] for record in exported() if "save_checkpoint_success" in str(record)]
    progress = {name: value for name, value in event["attributes"].items() if name.startswith("productive")}
    assert progress == {
        "productive_train_iterations": 3 if in_loop else 0,
        "productive_train_samples": 12 if in_loop else 0,
        "productive_train_iterations_sec": 0.0,
        "productive_validation_iterations_sec": 0.0,
        "productive_train_tflops": 6.0 if in_loop else 0.0,
    }


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipe_needs_a_reader(configure, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ExportError, match="no process reads from this named pipe"):
        configure(FileExporter(tmp_path / "pipe"))
    with os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
        configure(FileExporter(tmp_path / "pipe"))
        with application():
            pass
        lines = (reader.read() or b"").splitlines()
    assert [json.loads(line)["type"] for line in lines][-1] == "stop"


def test_refused_record_is_not_repeated(configure):
    class Refusing(CollectingExporter):
        def export_start(self, span):
            self.num_calls += 1
            if span.name_str == "poison":
                raise ExportError("invalid name", may_retry=False)

    exporter = Refusing()
    configure(exporter)
    with application(), timed_span("poison"):
        get_recorder().event(Event.create("inside"))
    assert exporter.num_calls == len(exporter.calls) + 2  # both starts, once
    (reason,) = losses()
    assert "dropped a span_start record: ExportError: invalid name; 1 lost so far" in reason


def test_failure_to_close_is_reported(configure):
    class FailsToClose(CollectingExporter):
        def close(self):
            raise ConnectionError("upload failed")

    configure(FailsToClose())
    with application():
        pass
    (reason,) = losses()
    assert "FailsToClose.close failed: ConnectionError: upload failed" in reason


def test_records_wait_for_an_unreachable_receiver():
    class Unreachable(CollectingExporter):
        def export_start(self, span):
            if self.num_calls < 20:
                self.num_calls += 1
                raise UnreachableError("no route")
            super().export_start(span)

    exporter, reports = Unreachable(), []
    sink = ExporterSink(exporter, "exporter-x", lambda *report: reports.append(report))
    records = [{"event": "span_start", "time": 2e9, "span_id": name, "name": name} for name in ("first", "second")]
    for _ in range(20):
        with pytest.raises(UnreachableError):
            sink.write(records)
    sink.write(records)
    assert exporter.calls == [("start", "first"), ("start", "second")]
    assert (sink.num_lost, reports) == (0, [])


def test_loss_of_the_last_record_is_reported(configure):
    exporter = CollectingExporter(lambda number, name: name == "application" and number > 2)
    configure(exporter)
    with application():
        pass
    (reason,) = losses()
    assert "dropped a span_stop record" in reason and "1 lost so far" in reason
    assert exporter.calls[-1] == ("data_error", "telemetry_data_error")


def test_exporter_that_always_fails_leaves_an_error(configure):
    exporter = CollectingExporter(lambda number, name: True)
    configure(exporter)
    with application(), timed_span("work"):
        pass
    assert [record["kind"] for record in journal() if "telemetry_data" in str(record.get("kind"))][-1:] == [
        "no_telemetry_data"
    ]
    assert "the run ended before" in losses()[-1] and "ConnectionError" in losses()[-1]
    assert exporter.num_closed == 1


def test_exporter_learns_of_losses_when_it_works_again(configure):
    is_down = threading.Event()
    is_down.set()
    exporter = CollectingExporter(lambda number, name: is_down.is_set())
    configure(exporter)
    with application() as app:
        run = app.recorder.run
        wait_for(lambda: run.flush() and losses(), what="the report of a lost record")
        is_down.clear()
        wait_for(lambda: exporter.calls, what="a call that succeeds")
    assert exporter.calls.count(("data_error", "telemetry_data_error")) == 1


class TypedExporter(CollectingExporter):
    """Keeps the attributes that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: dict[str, Attributes] = {}
        self.updated: dict[str, set[str]] = {}

    def export_stop(self, span: Span) -> None:
        self.attributes[span.name_str] = span.attributes
        self.updated[span.name_str] = set(span.updated_attributes)

    def export_event(self, event: Event, span: Span) -> None:
        self.attributes[event.name_str] = event.attributes


def test_exporters_receive_typed_attributes(configure):
    exporter = TypedExporter()
    configure(exporter, telemetry_config=TrainingTelemetryConfig(perf_tag_or_fn="p", global_batch_size_or_fn=4))
    with application(), training_loop(3), training_iteration():
        with checkpoint_save(3), timed_span("own", {"a": 1}):
            pass
    found = exporter.attributes
    assert found["training_loop"].train_iterations_start == 3
    assert found["update_training_telemetry_config"].perf_tag == "p"
    assert found["save_checkpoint_success"].checkpoint_strategy is CheckPointStrategy.SYNC
    assert found["checkpoint_save_sync"].save_checkpoint_attempt_count == 1
    assert found["own"]["a"].value == 1


def test_exported_spans_tell_initial_from_added_attributes(configure):
    exporter = TypedExporter()
    provider = configure(exporter)
    with timed_span("long", {"a": 1, "b": 1}) as span:
        provider.recorder.run.flush()  # the start is exported by itself
        span.add_attributes(Attributes({"b": 2, "c": 3}))
        with checkpoint_save(3):
            pass
    provider.recorder.run.flush()
    wait_for(lambda: "long" in exporter.updated)
    assert exporter.updated["long"] == {"b", "c", "duration_msec"}
    assert exporter.updated["checkpoint_save_sync"] == {"duration_msec"}


def test_events_of_the_recorder_itself_are_not_exported(configure):
    exporter = CollectingExporter()
    provider = configure(exporter)
    for name in ("baseline_speed", "collectives", "rank_mesh"):
        provider.recorder.run.add_record("event", {"name": name})
    provider.recorder.run.add_record("event", {"name": "mine"})
    provider.reset()
    assert [name for kind, name in exporter.calls if kind == "event"] == ["mine"]
