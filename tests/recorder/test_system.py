"""System samples: host, process and GPU metrics."""

from __future__ import annotations

import sys
import types

import psutil
import pytest

import tachograph
from tachograph._base.nvml import GpuProbe
from tachograph.reader import read
from tachograph.recorder._system import SystemSampler, memory_fields
from tests.conftest import wait_for


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


def test_step_records_carry_memory_once_per_second(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0) as run:
        for step in range(200):
            run.log(a=1.0, step=step)
    steps = list(read(logs / "x").records("step"))
    assert "cpu_mem_rss_mb" in steps[0]
    rss_mb = psutil.Process().memory_info().rss / (1 << 20)
    assert steps[0]["cpu_mem_rss_mb"] == pytest.approx(rss_mb, rel=0.5)
    assert sum("cpu_mem_rss_mb" in step for step in steps) <= 3


def test_gpu_memory_is_read_only_if_cuda_is_initialized(monkeypatch):
    """torch is not a test dependency, so a stand-in records which of its functions are called."""
    calls = []

    def cuda(is_initialized: bool) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            is_initialized=lambda: is_initialized,
            memory_allocated=lambda: calls.append("allocated") or 2 << 30,
            memory_reserved=lambda: calls.append("reserved") or 3 << 30,
        )

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda(is_initialized=False)))
    assert "gpu_mem_allocated" not in memory_fields()
    assert calls == []
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda(is_initialized=True)))
    fields = memory_fields()
    assert (fields["gpu_mem_allocated"], fields["gpu_mem_reserved"]) == (2.0, 3.0)
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
