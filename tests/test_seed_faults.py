"""Regression tests for the thirteen faults of the predecessor of this package, in the order they were found."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import threading
import time

import pandas as pd
import pytest

import tachograph
from tachograph.cli._show import render, summary
from tachograph.exceptions import RunNameError
from tachograph.journal import RunFolder, RunState, write_requests
from tachograph.reader import read
from tests.conftest import HANG_S, lines_of, wait_for

QUICK = {"system_interval_s": 0, "git": False, "flush_interval_s": 0.05}


def test_01_log_interval_control_has_an_effect(logs):
    with tachograph.init("x", log_dir=str(logs), control_interval_s=0.05, **QUICK) as run:
        steps = itertools.count()
        for _ in range(5):
            run.log(train_loss=1.0, step=next(steps))
        write_requests(RunFolder(logs / "x"), {"log_every": 10}, source="dashboard")
        wait_for(lambda: run.log(train_loss=1.0, step=next(steps)) or run.log_every == 10)
        for _ in range(100):
            run.log(train_loss=1.0, step=next(steps))
    steps = read(logs / "x").series("train_loss").steps
    assert steps[1] - steps[0] == 1
    assert set((steps[-5:-1] - steps[-6:-2]).tolist()) == {10}


def test_02_log_interval_is_recorded_not_inferred(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        for step in range(20):
            run.log(train_loss=1.0, step=step)
    view = read(logs / "x").controls["log_every"]
    assert (view.value, view.min, view.max) == (1, 5, 2000)  # below the minimum of requests, but known


def test_03_reader_follows_a_running_run(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        history = None
        for step in range(30):
            run.log(train_loss=1.0, step=step)
            run.flush()
            history = history or read(logs / "x")
            history.refresh()
            assert history.state is RunState.RUNNING
            assert history.metrics["train_loss"].last_step == step  # up to date after every refresh


def test_04_gpu_memory_is_missing_without_a_gpu(logs):
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        run.log(train_loss=1.0, step=0)
    step = next(record for record in lines_of(logs / "x") if record["event"] == "step")
    assert "gpu_mem_allocated" not in step or step["gpu_mem_allocated"] is not None
    history = read(logs / "x")
    render(history)
    summary(history)


def test_05_speed_is_measured(logs):
    with tachograph.init(
        "x", log_dir=str(logs), config={"batch_size": 8, "gradient_accumulation_steps": 2}, **QUICK
    ) as run:
        began_s = time.perf_counter()
        for step in range(30):
            run.log(train_loss=1.0, step=step)
            time.sleep(0.01)
        took_s = time.perf_counter() - began_s
    history = read(logs / "x")
    seconds = history.series("sec_per_step").values
    samples = history.series("samples_per_sec").values
    assert statistics.median(seconds) > 0.009
    assert sum(seconds) < took_s
    assert samples == pytest.approx(16 / seconds)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which parses the journal as a browser does")
def test_06_browser_can_parse_non_finite_records(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        for step, value in enumerate([1.0, math.nan, math.inf, -math.inf]):
            run.log(train_loss=value, step=step)
    code = """
        const lines = require('fs').readFileSync(process.argv[1], 'utf8').trim().split('\\n').map(JSON.parse);
        const steps = lines.filter(r => r.event === 'step');
        console.log(JSON.stringify(steps.map(r => [String(Number(r.train_loss)), r.nan_inf_detected])));
    """
    path = str(logs / "x" / "metrics.jsonl")
    done = subprocess.run(["node", "-e", code, path], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["1", False], ["NaN", True], ["Infinity", True], ["-Infinity", True]]


def test_07_validation_loss_has_one_name_everywhere(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        run.log(train_loss=1.0, val_loss=0.9, step=0)
        run.log_validation({"loss": 0.8}, step=1)
        run.log_epoch(1, {"val_loss": 0.7}, step=2)
    series = read(logs / "x").series("val_loss")
    assert series.values.tolist() == [0.9, 0.8, 0.7]
    assert series.steps.tolist() == [0, 1, 2]


def test_08_windows_separate_noise_from_level(logs):
    with tachograph.init("x", log_dir=str(logs), log_every=50, **QUICK) as run:
        for step in range(201):
            run.log(train_loss=0.5 + 0.2 * (-1) ** step, step=step)
    history = read(logs / "x")
    assert history.series("train_loss/mean").values == pytest.approx([0.5] * 4)
    assert history.series("train_loss/min").values == pytest.approx([0.3] * 4)
    assert history.series("train_loss/max").values == pytest.approx([0.7] * 4)


def test_09_resume_truncates_nothing(logs, monkeypatch):
    monkeypatch.setattr("tachograph.recorder._writer._LAST_CATCH_UP_S", HANG_S)
    for attempt in range(3):
        with tachograph.init("x", log_dir=str(logs), config={"attempt": attempt}, resume=True, **QUICK) as run:
            run.log(train_loss=float(attempt), step=attempt)
    history = read(logs / "x")
    assert history.config == {"attempt": 2}  # the last start record is used
    assert len(history.attempts) == 3
    rows = pd.read_csv(logs / "x" / "metrics.csv")
    assert len(rows) == len(lines_of(logs / "x"))
    assert rows["train_loss"].dropna().tolist() == [0.0, 1.0, 2.0]


def test_10_nan_is_never_zero(logs, monkeypatch):
    monkeypatch.setattr("tachograph.recorder._writer._LAST_CATCH_UP_S", HANG_S)
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        run.log(train_loss=math.nan, step=0)
        run.log(lr=0.1, step=1)
    history = read(logs / "x")
    assert len(history.series("train_loss").values) == 1  # a missing value stays missing
    assert math.isnan(history.series("train_loss").values[0])
    text = (logs / "x" / "metrics.csv").read_text()
    cells = [line.split(",")[4] for line in text.splitlines() if line.startswith("step")]
    assert cells == ["NaN", ""]


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/io"), reason="needs Linux's per-thread I/O counters")
def test_11_training_thread_writes_nothing(logs):
    def num_writes():
        with open(f"/proc/self/task/{threading.get_native_id()}/io") as file:
            return int(dict(line.split(": ") for line in file)["syscw"])

    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        before = num_writes()
        for step in range(3000):
            run.log(train_loss=1.0, step=step)
        run.log_epoch(1, {"val_loss": 0.5})
        run.log_checkpoint("x.pt", step=1)
        assert num_writes() == before
        wait_for(lambda: (logs / "x" / "metrics.jsonl").stat().st_size > 100_000)


@pytest.mark.parametrize(
    "name", ["../../etc", "/etc/passwd", "..\\x", "a/../../b", "%2e%2e/x", "logs/../x", "\u2025/x"]
)
def test_12_run_name_cannot_leave_the_log_dir(logs, name):
    with pytest.raises(RunNameError):
        tachograph.init(name, log_dir=str(logs))
    assert not logs.exists()


def test_13_cost_of_a_step_is_bounded(logs):
    """Compare with the minimum: appending a timestamped tuple to a list. `make bench` measures it in detail."""
    metrics = {f"metric_{number}": number * 0.5 for number in range(10)}
    ratios = []
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        for step in range(200):
            run.log(metrics, step=step)
        for burst in range(40):
            run.flush()
            kept = []
            began = time.thread_time()
            for step in range(1000):
                kept.append((time.perf_counter(), step, metrics))
            between = time.thread_time()
            for step in range(1000):
                run.log(metrics, step=1000 * burst + step)
            ended = time.thread_time()
            ratios.append((ended - between) / (between - began))
    # Each burst is compared with its own minimum, because the speed of a shared machine changes. A burst during which
    # the writer thread takes over is more expensive, so the cheaper ones count.
    ratio = statistics.quantiles(ratios, n=4)[0]
    assert ratio < 6, f"log() costs {ratio:.1f} times the floor"
