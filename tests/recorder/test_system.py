"""The machine under the run."""

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


def test_samples_are_recorded_every_few_seconds(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0.1, git=False):
        wait_for(lambda: len(list(read(logs / "x").records("system"))) >= 3)
    first, second, *_ = read(logs / "x").records("system")
    assert first["cpu_mem_rss_mb"] > 5
    assert list(first) == list(second)  # rates from the first sample on: no column comes late
    for name in ("cpu_pct", "process_cpu_pct", "host_mem_used_pct", "host_mem_available_gb", "disk_free_gb"):
        assert second[name] >= 0


def test_sampling_can_be_turned_off(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0) as run:
        run.log(a=1.0)
    assert list(read(logs / "x").records("system")) == []


def test_step_records_carry_the_memory_about_once_a_second(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0) as run:
        for step in range(200):
            run.log(a=1.0, step=step)
    steps = list(read(logs / "x").records("step"))
    assert "cpu_mem_rss_mb" in steps[0]
    rss_mb = psutil.Process().memory_info().rss / (1 << 20)
    assert steps[0]["cpu_mem_rss_mb"] == pytest.approx(rss_mb, rel=0.5)
    assert sum("cpu_mem_rss_mb" in step for step in steps) <= 3


def test_torch_is_asked_only_if_it_uses_cuda(monkeypatch):
    """torch itself is not a dependency of the tests: what counts is which of its functions are called, and when."""
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
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # half imported
    assert "gpu_mem_allocated" not in memory_fields()


def test_without_a_driver_there_are_no_gpus():
    probe = GpuProbe()
    if probe.names():
        pytest.skip("this machine has GPUs")
    assert probe.sample() == {}


def test_gpus_are_read_where_there_are_some():
    probe = GpuProbe()
    if not probe.names():
        pytest.skip("this machine has no NVIDIA GPU")
    fields = probe.sample()
    assert fields["gpu/0/mem_total_gb"] > 1
    assert 0 <= fields["gpu/0/util_pct"] <= 100


def test_a_sampler_takes_a_folder_that_is_gone(tmp_path):
    sampler = SystemSampler(str(tmp_path), 1.0, lambda sample: None)
    assert sampler.sample()["disk_free_gb"] > 0
