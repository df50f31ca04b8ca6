"""Whole journals compared with snapshots, one file per test; see `tests/span_snapshots.py`."""

from __future__ import annotations

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
from tachograph.spans import Attributes, Event, ExportCustomizationMode, get_recorder
from tests.span_snapshots import PARAMETERS, snapshot

__all__ = ["snapshot"]


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
