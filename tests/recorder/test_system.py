"""System samples: host, process and GPU metrics."""

from __future__ import annotations

import csv
import math
import sys
import time
import types

import psutil
import pytest

import tachograph
from tachograph._base.nvml import GpuProbe
from tachograph.reader import read
from tachograph.recorder.collectors.system import SystemSampler, memory_fields
from tests.conftest import HANG_S, wait_for


def test_system_samples_are_recorded_at_interval(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0.1, git=False):
        wait_for(lambda: len(list(read(logs / "x").records("system"))) >= 3)
    first, second, *_ = read(logs / "x").records("system")
    assert first["cpu_mem_rss_mb"] > 5
    assert list(first) == list(second)  # the first sample has rates too, so no CSV column appears late
    for name in ("cpu_pct", "process_cpu_pct", "host_mem_used_pct", "host_mem_available_gb", "disk_free_gb"):
        assert second[name] >= 0


def test_zero_interval_disables_sampling(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0) as run:
        run.log(a=1.0)
    assert list(read(logs / "x").records("system")) == []


@pytest.fixture
def cuda(monkeypatch):
    """Replace torch, which is not a test dependency, by one that uses two of three GPUs and counts the readings."""
    in_use = [{}, {"allocated": 2 << 30, "reserved": 3 << 30}, {"allocated": 1 << 29, "reserved": 1 << 30}]

    def memory_stats_as_nested_dict(index):
        cuda.num_readings += 1
        sizes = {f"{name}_bytes": {"all": {"current": size, "peak": 2 * size}} for name, size in in_use[index].items()}
        return {**sizes, "num_alloc_retries": index} if sizes else {}

    cuda = types.SimpleNamespace(
        num_readings=0,
        is_initialized=lambda: True,
        device_count=lambda: len(in_use),
        memory_stats_as_nested_dict=memory_stats_as_nested_dict,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    return cuda


def test_every_step_record_has_memory(logs, cuda):
    rss_mb = psutil.Process().memory_info().rss / (1 << 20)
    began_s = time.monotonic()
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0, git=False) as run:
        for step in range(3_000):
            run.log({"train_loss": 1.0, "lr": 0.1} if step % 1_000 else {"train_loss": math.nan}, step=step)
    took_s = time.monotonic() - began_s
    steps = list(read(logs / "x").records("step"))
    assert len(steps) == 3_000
    assert {(step["gpu_mem_allocated"], step["gpu_mem_reserved"]) for step in steps} == {(2.5, 4.0)}
    assert all(step["cpu_mem_rss_mb"] == pytest.approx(rss_mb, rel=0.5) for step in steps)
    assert cuda.num_readings / 3 <= took_s + 2  # about once a second, not for each record
    assert [step["nan_inf_detected"] for step in steps[::1_000]] == [True] * 3


def test_windows_and_spans_have_memory(logs, cuda):
    with tachograph.init("x", log_dir=str(logs), log_every=10, system_interval_s=0, git=False) as run:
        with tachograph.training_loop():
            for step in range(50):
                with tachograph.training_iteration():
                    run.log(train_loss=1.0, step=step)
    steps = list(read(logs / "x").records("step"))
    assert {"window/iterations" in step for step in steps} == {True, False}
    assert all(step["gpu_mem_allocated"] == 2.5 and step["cpu_mem_rss_mb"] > 5 for step in steps)


def test_logged_memory_is_not_replaced(logs, cuda):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0, git=False) as run:
        for step in range(50):
            run.log(gpu_mem_allocated=float(step), step=step)
    steps = list(read(logs / "x").records("step"))
    assert [step["gpu_mem_allocated"] for step in steps] == [float(step) for step in range(50)]
    assert {step["gpu_mem_reserved"] for step in steps} == {4.0}


def test_memory_is_in_every_row_of_the_csv(logs, cuda, monkeypatch):
    monkeypatch.setattr("tachograph.recorder._writer._LAST_CATCH_UP_S", HANG_S)
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0, git=False) as run:
        for step in range(50):
            run.log(train_loss=1.0, step=step)
    lines = (logs / "x" / "metrics.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(lines) if row["event"] == "step"]
    assert len(rows) == 50
    assert {(row["gpu_mem_allocated"], row["gpu_mem_reserved"]) for row in rows} == {("2.5", "4.0")}
    assert all(float(row["cpu_mem_rss_mb"]) > 5 for row in rows)


def test_gpu_memory_is_read_only_if_cuda_is_initialized(monkeypatch, cuda, tmp_path):
    fields = memory_fields()
    assert (fields["gpu_mem_allocated"], fields["gpu_mem_reserved"]) == (2.5, 4.0)
    sample = SystemSampler(str(tmp_path), 1.0, lambda sample: None).sample()
    assert sample["gpu_alloc_retries"] == 3
    assert (sample["gpu_mem_peak_allocated"], sample["gpu_mem_peak_reserved"]) == (5.0, 8.0)
    cuda.is_initialized = lambda: False
    num_readings = cuda.num_readings
    assert "gpu_mem_allocated" not in memory_fields()
    assert cuda.num_readings == num_readings
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # a partially imported torch has no `cuda`
    assert "gpu_mem_allocated" not in memory_fields()


def test_gpu_probe_without_driver_returns_nothing():
    probe = GpuProbe()
    if probe.names():
        pytest.skip("this machine has GPUs")
    assert probe.sample() == {}


def test_gpu_probe_samples_memory_and_utilisation():
    probe = GpuProbe()
    if not probe.names():
        pytest.skip("this machine has no NVIDIA GPU")
    fields = probe.sample()
    assert fields["gpu/0/mem_total_gb"] > 1
    assert 0 <= fields["gpu/0/util_pct"] <= 100


def test_sampler_reports_free_disk_space(tmp_path):
    sampler = SystemSampler(str(tmp_path), 1.0, lambda sample: None)
    assert sampler.sample()["disk_free_gb"] > 0


def test_sampler_survives_deleted_folder(tmp_path):
    folder = tmp_path / "deleted"
    folder.mkdir()
    sampler = SystemSampler(str(folder), 1.0, lambda sample: None)
    folder.rmdir()
    assert "disk_free_gb" not in sampler.sample()
