"""Known faults of One Logger 2.3.1, one test per fault. The number is the one in our notes on One Logger."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from enum import Enum
from pathlib import Path

import pytest

import tachograph
from tachograph.one_logger import (
    ErrorEvent,
    Event,
    ExportCustomizationMode,
    FileExporter,
    StandardTrainingJobSpanName,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    checkpoint_save,
    on_app_end,
    on_app_start,
    on_model_init_end,
    on_model_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    timed_span,
    training_iteration,
    training_loop,
    validation_loop,
)
from tachograph.testing import MemoryRun
from tests.conftest import HANG_S
from tests.one_logger.conftest import exported, journal
from tests.one_logger.test_exporters import CollectingExporter

TRAINING = {"perf_tag_or_fn": "perf", "global_batch_size_or_fn": 32}


def test_b01_import_needs_no_one_logger():
    result = subprocess.run(
        [sys.executable, "-c", "import tachograph.one_logger, sys; print('nv_one_logger' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout.strip() == "False"


def test_b02_span_name_may_be_any_text(configure):
    configure()
    with application(), timed_span("any string"):
        pass
    assert "any string" in [record.get("name") for record in exported()]


def test_b03_disabled_rank_returns_working_spans(configure):
    configure(enable_for_current_rank=False)
    with application() as app, training_loop(0) as loop, timed_span("x") as span:
        for item in (app, loop, span):
            item.add_attribute("a", 1)
            item.add_event(Event.create("e"))
        with training_iteration() as iteration, checkpoint_save(1):
            iteration.add_attribute("b", 2)
    assert on_model_init_start() is not None
    on_model_init_end()
    assert not Path("logs").exists()


def test_b04_all_spans_are_exported_on_request(configure, provider):
    for names in (None, []):
        provider.with_export_customization(ExportCustomizationMode.EXPORT_ALL_SPANS, names)
        configure(FileExporter(f"{names}.jsonl"))
        with application(), training_loop(0), training_iteration():
            pass
        assert "training_single_iteration" in [record.get("name") for record in exported(f"{names}.jsonl")]


def test_b05_throughput_needs_no_targets(configure):
    configure(
        telemetry_config=TrainingTelemetryConfig(
            is_log_throughput_enabled_or_fn=True, flops_per_sample_or_fn=100, **TRAINING
        )
    )
    with application(), training_loop(train_iterations_start=0), training_iteration():
        time.sleep(0.001)
    update = next(record for record in journal() if record.get("name") == "training_metrics_update")
    assert update["total_flops"] == 3200 and update["train_throughput_per_gpu"] > 0


def test_b06_save_works_with_checkpoint_metrics_disabled(configure):
    configure(telemetry_config=TrainingTelemetryConfig(is_save_checkpoint_enabled_or_fn=False, **TRAINING))
    with application(), checkpoint_save(1):
        pass
    on_app_start()
    on_save_checkpoint_start(2)
    on_save_checkpoint_end()
    on_app_end()
    assert [record for record in journal() if record["event"] == "telemetry_error"] == []


def test_b07_child_of_filtered_span_has_exported_parent(configure):
    configure()
    with application(), training_loop(0), training_iteration(), timed_span("inner"):
        pass
    loop = next(record for record in exported() if record.get("name") == "training_loop")
    inner = next(record for record in exported() if record.get("name") == "inner")
    assert inner["parent_id"] == loop["id"]


@pytest.mark.parametrize("ago_s", [660, 36_000, 30 * 86_400])
def test_b08_start_time_may_be_long_ago(configure, ago_s):
    configure()
    span = on_app_start(start_time_msec=(time.time() - ago_s) * 1000)
    on_app_end()
    assert span.duration_msec() == pytest.approx(ago_s * 1000, abs=60_000)
    assert tachograph.read("logs/app-session").goodput is None


@pytest.mark.expects_faults
@pytest.mark.parametrize("bad", [float("nan"), -5.0, 1.7e9, 9e12, "noon"], ids=str)
def test_b08_invalid_start_time_is_reported(configure, bad):
    configure()
    span = on_app_start(start_time_msec=bad)
    on_app_end()
    assert span.duration_msec() < 60_000
    (reason,) = [record["reason"] for record in journal() if record["event"] == "telemetry_error"]
    assert reason.startswith("start_time_msec is ") and "using the current time" in reason


def test_b09_iteration_cost_stays_constant(configure):
    configure(telemetry_config=TrainingTelemetryConfig(log_every_n_train_iterations=10, **TRAINING))
    costs_s = []
    with application(), training_loop(0) as loop:
        for _ in range(20):
            started_s = time.thread_time()
            for _ in range(1000):
                with training_iteration():
                    pass
            costs_s.append(time.thread_time() - started_s)
            loop.recorder.run.flush()  # outside the measurement, so that the caller never does the work of the writer
        assert len(loop.events) < 110
    first, last = sorted(costs_s[1:6])[2], sorted(costs_s[-5:])[2]
    assert last < 10 * first  # a growing list of events made it thirty times slower


def test_b10_disabled_rank_logs_nothing(configure, caplog):
    configure(enable_for_current_rank=False)
    with application(), training_loop(0):
        for _ in range(100):
            with training_iteration(), timed_span("x"):
                pass
    assert caplog.text == ""


def test_b11_process_may_have_several_runs(configure, provider):
    configure()
    for _ in range(2):
        on_app_start()
        on_app_end()
    configure(session_tag_or_fn="other")
    on_app_start()
    on_app_end()
    assert len(tachograph.read("logs/app-session").attempts) == 2
    assert tachograph.read("logs/app-other").state == "finished"


def test_b12_spans_work_without_provider(provider):
    on_app_start()
    with training_loop(0), training_iteration(), timed_span("x"), validation_loop():
        pass
    with checkpoint_save(1):
        pass
    TrainingTelemetryProvider.instance().recorder.event(Event.create("e"))
    on_app_end()
    (run,) = Path("logs").iterdir()
    assert {"x", "checkpoint_save_sync"} <= {span.name for span in tachograph.read(run).spans()}


def test_b13_threads_may_iterate_concurrently(configure):
    configure(telemetry_config=TrainingTelemetryConfig(log_every_n_train_iterations=100, **TRAINING))

    def work() -> None:
        for _ in range(500):
            with training_iteration():
                on_model_init_start()
                on_model_init_end()

    with application(), training_loop(0):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    updates = [record for record in journal() if record.get("name") == "training_metrics_update"]
    assert updates[-1]["num_iterations"] == 1000
    assert [record for record in journal() if record["event"] == "telemetry_error"] == []


def test_b14_restart_keeps_earlier_export(configure):
    Path("out.jsonl").write_text('{"earlier": true}\n')
    configure()
    with application():
        pass
    assert exported()[0] == {"earlier": True}
    assert exported()[-1]["name"] == "application"


def test_b15_occasional_failures_do_not_disable_exporter(configure):
    exporter = CollectingExporter(lambda number, name: number % 10 == 0)
    configure(exporter)
    with application() as app:
        for index in range(202):
            app.add_event(Event.create(f"e{index}"))
    assert [name for _, name in exporter.calls if name.startswith("e")] == [f"e{index}" for index in range(202)]


def test_b17_updates_cover_windows_and_tail():
    run = MemoryRun()
    tachograph.set_training_config(run=run, log_every_n_train_iterations=10, global_batch_size=1)
    with training_loop(0, run=run):
        for index in range(25):
            with training_iteration():
                run.clock.advance(1.0 if index < 20 else 4.0)
    updates = [record for record in run.records if record.get("name") == "training_metrics_update"]
    assert [(update["interval"], update["window_iteration_sec_mean"]) for update in updates] == [
        (10, 1.0), (10, 1.0), (5, 4.0),  # a late slow-down is visible
    ]  # fmt: skip
    assert all("total_flops" not in update for update in updates)  # unknown values are omitted, not 0
    run.finish()


def test_b18_failed_iteration_is_recorded_but_not_counted(configure):
    configure()
    with pytest.raises(RuntimeError), application(), training_loop(0):
        for index in range(3):
            with training_iteration():
                if index == 2:
                    raise RuntimeError("out of memory")
    update = [record for record in journal() if record.get("name") == "training_metrics_update"][-1]
    assert update["num_iterations"] == 2
    (error,) = [record for record in exported() if record["type"] == "application_error"]
    assert error["event"]["attributes"]["exception_message"] == "out of memory"


def test_b19_callbacks_handle_edge_cases(configure, provider):
    configure()
    start_ms = (time.time() - 60) * 1000

    class Stage(Enum):
        WARMUP = "warm-up"

    with application(), training_loop(0):
        span = on_save_checkpoint_start(1, start_time_msec=start_ms)  # the given time is used
        on_save_checkpoint_end()
        assert 60_000 <= span.duration_msec() + 1 < 60_000 + 1_000 * HANG_S
        on_save_checkpoint_start(2)  # a save without end does not block the next one
        on_save_checkpoint_start(3)
        on_save_checkpoint_end()
        on_save_checkpoint_end()
        with timed_span(Stage.WARMUP) as named:
            assert named.name_str == "warm-up" == Event.create(Stage.WARMUP).name_str
        on_training_single_iteration_start()
        on_training_single_iteration_end()
        with timed_span(StandardTrainingJobSpanName.TRAINING_SINGLE_ITERATION):
            pass
    update = [record for record in journal() if record.get("name") == "training_metrics_update"][-1]
    assert update["num_iterations"] == 2
    assert not list(Path().glob("onelogger*"))


def test_b20_documented_recorder_calls_work(configure):
    configure()
    with application():
        TrainingTelemetryProvider.instance().recorder.event(Event.create("without a span"))
        TrainingTelemetryProvider.instance().recorder.error(
            TrainingTelemetryProvider.instance().recorder.current, "with a span", ValueError("v")
        )
    assert [record["event"]["name"] for record in exported() if record["type"] == "event"][-1] == "without a span"
    assert isinstance(ErrorEvent.create("x"), Event)
