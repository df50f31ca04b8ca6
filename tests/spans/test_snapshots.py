"""Whole journals compared with snapshots, one file per test.

Run ``UPDATE_SNAPSHOTS=1 pytest tests/spans/test_snapshots.py`` to accept the current output.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tachograph import (
    application,
    backward,
    checkpoint_load,
    checkpoint_save,
    data_loading,
    dataloader_init,
    distributed_init,
    forward,
    model_init,
    optimizer_init,
    optimizer_update,
    set_training_config,
    testing_loop,
    timed_span,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from tachograph.one_logger import (
    on_app_end,
    on_app_start,
    on_dataloader_init_end,
    on_dataloader_init_start,
    on_distributed_init_end,
    on_distributed_init_start,
    on_load_checkpoint_end,
    on_load_checkpoint_start,
    on_model_init_end,
    on_model_init_start,
    on_optimizer_init_end,
    on_optimizer_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    on_testing_end,
    on_testing_start,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    on_validation_end,
    on_validation_single_iteration_end,
    on_validation_single_iteration_start,
    on_validation_start,
)
from tachograph.spans import (
    Attributes,
    Event,
    ExportCustomizationMode,
    get_recorder,
)

FOLDER = Path(__file__).parent / "snapshots"
# Fields that differ between machines and versions.
PLACEHOLDERS = {"node_name": "NODE", "one_logger_training_telemetry_version": "VERSION", "traceback": "TRACEBACK"}


@pytest.fixture
def snapshot(request, tacho_run):
    """Compare all records of the test with its snapshot file when the test ends."""
    tick = tacho_run.clock.advance
    yield tick
    tacho_run.finish()
    records = [
        {name: PLACEHOLDERS.get(name, value) for name, value in record.items()} for record in tacho_run.records
    ]  # fmt: skip
    text = "".join(json.dumps(record) + "\n" for record in records)
    path = FOLDER / f"{request.node.name.removeprefix('test_')}.jsonl"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


PARAMETERS = {
    "perf_tag": "base",
    "global_batch_size": 8,
    "seq_length": 128,
    "flops_per_sample": 1e12,
    "peak_tflops_per_gpu": 64.0,
    "train_iterations_target": 5,
    "train_samples_target": 40,
    "log_every_n_train_iterations": 2,
    "custom_metadata": {"team": "x"},
}


def test_context_managers_record_whole_job(snapshot, tacho_run):
    tick = snapshot
    with application():
        with distributed_init():
            tick(0.5)
        with dataloader_init():
            tick(0.25)
        with checkpoint_load():
            tick(1)
        with model_init():
            tick(2)
        with optimizer_init():
            tick(0.125)
        set_training_config(**PARAMETERS)
        with training_loop(train_iterations_start=0) as loop:
            loop.add_attribute("schedule", "cosine")
            for step in range(5):
                with data_loading():
                    tick(0.0625)
                with training_iteration():
                    with forward():
                        tick(0.25)
                    with backward():
                        tick(0.5)
                    with optimizer_update():
                        tick(0.125)
                    tacho_run.log(train_loss=1 / (1 << step), step=step)
                if step == 3:
                    with validation_loop():
                        for _ in range(2):
                            with validation_iteration():
                                tick(0.5)
                    with checkpoint_save(global_step=step):
                        tick(2)
            with timed_span("export", Attributes({"format": "onnx"})) as span:
                span.add_event(Event.create("written", Attributes({"size_mb": 12.5})))
                tick(1)
        with testing_loop():
            tick(3)


def test_callbacks_record_whole_job(snapshot):
    tick = snapshot
    set_training_config(**PARAMETERS)
    on_app_start()
    for start, end in (
        (on_distributed_init_start, on_distributed_init_end),
        (on_dataloader_init_start, on_dataloader_init_end),
        (on_load_checkpoint_start, on_load_checkpoint_end),
        (on_model_init_start, on_model_init_end),
        (on_optimizer_init_start, on_optimizer_init_end),
    ):
        start()
        tick(0.5)
        end()
    on_train_start(train_iterations_start=2)
    for step in range(2, 5):
        on_training_single_iteration_start()
        tick(1)
        on_training_single_iteration_end()
        on_save_checkpoint_start(step)
        tick(0.25)
        on_save_checkpoint_success(step)
        on_save_checkpoint_end()
        on_validation_start()
        on_validation_single_iteration_start()
        tick(0.5)
        on_validation_single_iteration_end()
        on_validation_end()
    on_train_end()
    on_testing_start()
    on_testing_end()
    on_app_end()


def test_exception_marks_spans_as_failed(snapshot):
    tick = snapshot
    with pytest.raises(ZeroDivisionError), application(), training_loop(0):
        for step in range(3):
            with training_iteration():
                tick(1)
                if step == 2:
                    raise ZeroDivisionError("the loss scale is 0")


def test_export_all_spans_records_short_spans(snapshot):
    tick = snapshot
    get_recorder().customize_export(ExportCustomizationMode.EXPORT_ALL_SPANS)
    with application(), training_loop(0):
        for _ in range(2):
            with training_iteration():
                with forward():
                    tick(1)
                with backward():
                    tick(2)


def test_spans_left_open_are_closed_at_finish(snapshot):
    tick = snapshot
    on_app_start()
    on_train_start(0)
    on_training_single_iteration_start()
    tick(1)
    on_training_single_iteration_start()  # a `continue` skipped the end of the previous iteration
    tick(2)
    on_training_single_iteration_end()
    on_validation_start()
    tick(3)


def test_explicit_times_override_clock(snapshot, tacho_run):
    tick = snapshot
    tick(3600)
    now_ms = tacho_run.clock.wall_s() * 1000
    on_app_start(start_time_msec=now_ms - 3_000_000)  # fifty minutes ago
    on_model_init_start(start_time_msec=now_ms - 2_000_000)
    on_model_init_end(finish_time_msec=now_ms - 1_500_000)
    on_train_start(0, start_time_msec=now_ms - 1_000_000)
    for index in range(3):
        on_training_single_iteration_start(start_time_msec=now_ms - 900_000 + index * 250_000)
        on_training_single_iteration_end(finish_time_msec=now_ms - 900_000 + (index + 1) * 250_000)
    on_train_end(finish_time_msec=now_ms - 100_000)
    on_app_end(finish_time_msec=now_ms)
