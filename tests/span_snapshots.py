"""The fixture `snapshot`: all records of a test, compared with a file in the folder `snapshots` beside the test.

Run the tests with `UPDATE_SNAPSHOTS=1` to write the files.
"""

from __future__ import annotations

import json
import os

import pytest

__all__ = ["PARAMETERS", "snapshot"]

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
    path = request.path.parent / "snapshots" / f"{request.node.name.removeprefix('test_')}.jsonl"
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
