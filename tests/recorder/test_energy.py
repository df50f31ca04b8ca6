"""Energy of a run, from the counters of a fake NVML and of a folder like that of the kernel."""

from __future__ import annotations

import itertools
import json
import os
import sys
import types

import msgspec
import pytest
from click.testing import CliRunner

import tachograph
from tachograph._base import nvml as nvml_module
from tachograph._base.nvml import GpuProbe
from tachograph._base.settings import Settings
from tachograph.cli._main import main
from tachograph.journal import RunFolder, read_heartbeat
from tachograph.reader import read
from tachograph.recorder.collectors import energy as energy_module
from tachograph.recorder.collectors.energy import EnergyMeter, energy_fields, read_rank_energy
from tests.conftest import HANG_S, wait_for

KWH_MJ = 3_600_000_000
KWH_UJ = 3_600_000_000_000


class FakeNvml(types.ModuleType):
    """Two GPUs with counters in millijoules, and one without."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.counters_mj = {0: 7 * KWH_MJ, 1: 9 * KWH_MJ, 2: None}

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.counters_mj)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-uuid-{handle}"

    def nvmlDeviceGetName(self, handle):
        return b"Fake"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if self.counters_mj[handle] is None:
            raise self.NVMLError("not supported")
        return self.counters_mj[handle]

    def __getattr__(self, name):
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def fail(*arguments):
            raise self.NVMLError("not supported")

        return fail


@pytest.fixture
def nvml(monkeypatch):
    module = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(nvml_module, "_driver_may_exist", lambda: True)
    return module


@pytest.fixture
def cuda(monkeypatch):
    """Replace torch by one that has allocated memory on the first GPU."""
    cuda = types.SimpleNamespace(
        devices=[0],
        is_initialized=lambda: True,
        device_count=lambda: 3,
        memory_stats_as_nested_dict=lambda index: {"num_alloc_retries": 0} if index in cuda.devices else {},
        get_device_properties=lambda index: types.SimpleNamespace(uuid=f"uuid-{index}"),
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    return cuda


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    """A folder of powercap: two packages with parts, one with memory, and domains that contain the packages."""
    folder = tmp_path / "powercap"
    names = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "psys"}
    for path, name in {**names, "intel-rapl:2": "package-1", "intel-rapl-mmio:0": "package-0"}.items():
        (folder / path).mkdir(parents=True)
        (folder / path / "name").write_text(f"{name}\n")
        (folder / path / "max_energy_range_uj").write_text(f"{KWH_UJ}\n")
        (folder / path / "energy_uj").write_text("1000000\n")
    monkeypatch.setattr(energy_module, "_POWERCAP", folder)
    return folder


def set_counter(powercap, domain, energy_uj):
    path = powercap / domain / "energy_uj"
    path.with_suffix(".new").write_text(f"{energy_uj}\n")
    os.replace(path.with_suffix(".new"), path)


def test_only_gpus_in_use_count_from_the_start(nvml, cuda, tmp_path):
    meter = EnergyMeter(GpuProbe(), tmp_path)
    nvml.counters_mj |= {0: 8 * KWH_MJ, 1: 19 * KWH_MJ}
    assert meter.read() == {"gpu:GPU-uuid-0": 1.0}
    cuda.devices = [0, 1, 2]
    nvml.counters_mj[1] += KWH_MJ
    assert meter.read() == {"gpu:GPU-uuid-0": 1.0, "gpu:GPU-uuid-1": 11.0}
    nvml.counters_mj[0] = KWH_MJ // 2  # the driver was loaded again
    assert meter.read()["gpu:GPU-uuid-0"] == 1.0
    nvml.counters_mj[0] += KWH_MJ
    assert meter.read()["gpu:GPU-uuid-0"] == 2.0
    nvml.counters_mj = dict.fromkeys(range(3))  # it fell off
    assert meter.read()["gpu:GPU-uuid-0"] == 2.0


def test_without_torch_the_driver_lists_processes(nvml, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(energy_module, "_INITIAL_PID_NAMESPACE", os.readlink("/proc/self/ns/pid"))
    users = {0: [1], 1: [os.getpid()], 2: []}
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: [types.SimpleNamespace(pid=pid) for pid in users[handle]]
    meter = EnergyMeter(GpuProbe(), tmp_path)
    nvml.counters_mj[1] += KWH_MJ
    assert meter.read() == {"gpu:GPU-uuid-1": 1.0}
    monkeypatch.setattr(energy_module, "_INITIAL_PID_NAMESPACE", "another")  # ids in a container are not those
    assert EnergyMeter(GpuProbe(), tmp_path).read() == {}


def test_processor_counters_wrap_around(powercap, monkeypatch):
    meter = EnergyMeter(GpuProbe(), powercap)
    assert len(meter.read()) == 3  # two packages and the memory of one
    set_counter(powercap, "intel-rapl:0", 1_000_000 + KWH_UJ // 4)
    set_counter(powercap, "intel-rapl:1", KWH_UJ // 2)
    assert sum(meter.read().values()) == pytest.approx(0.25)
    set_counter(powercap, "intel-rapl:0", 1_000_000 + KWH_UJ // 8)
    assert sum(meter.read().values()) == pytest.approx(1.125)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert EnergyMeter(GpuProbe(), powercap).read() == {}  # local rank 0 reads them


def test_gap_in_processor_counters_is_not_filled(powercap):
    meter = EnergyMeter(GpuProbe(), powercap)
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    assert len(meter.read()) == 2
    set_counter(powercap, "intel-rapl:0", 2_000_000)
    assert len(meter.read()) == 2  # it may have wrapped around in between
    for domain in ("intel-rapl:0:1", "intel-rapl:2"):
        (powercap / domain / "max_energy_range_uj").write_text("1\n")
    assert EnergyMeter(GpuProbe(), powercap).read().keys() != {}
    assert len(EnergyMeter(GpuProbe(), powercap).read()) == 1  # at this range it may have wrapped around already


def test_unreadable_counters_give_nothing(tmp_path, logs, monkeypatch):
    monkeypatch.setattr(energy_module, "_POWERCAP", tmp_path / "missing")
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0.05, git=False, code=False):
        wait_for(lambda: len(list(read(logs / "x").records("system"))) >= 2)
    history = read(logs / "x")
    assert history.energy is None and "energy" not in history.counts
    assert "energy  " not in CliRunner().invoke(main, ["show", str(logs / "x")]).output


def test_shared_counters_count_once():
    first = {"gpu:a": 1.0, "gpu:b": 2.0, "cpu:n1/intel-rapl:0": 0.5}
    second = {"gpu:b": 1.9, "gpu:c": 4.0, "cpu:n2/intel-rapl:0": 0.25, "cpu:n2/intel-rapl:1": 0.25}
    fields = energy_fields([first, second, {}], Settings())
    assert fields == {"gpu_kwh": 7.0, "num_gpus": 3, "cpu_kwh": 1.0, "num_hosts": 2}
    assert energy_fields([{}], Settings(energy_price_per_kwh=1.0)) == {}


def test_attempts_add_up(logs, nvml, cuda, powercap, monkeypatch):
    monkeypatch.setattr("tachograph.recorder.collectors.system._LAST_READING_S", HANG_S)
    options = {"energy_price_per_kwh": 0.5, "energy_currency": "EUR", "carbon_g_per_kwh": 100}
    for attempt in range(2):
        nvml.counters_mj[0] = attempt * 5  # after a restart of the machine
        run = tachograph.init(
            "x", log_dir=str(logs), system_interval_s=0.05, git=False, code=False, resume=bool(attempt), **options
        )
        wait_for(lambda before=2 * attempt: len(list(read(logs / "x").records("energy"))) > before)
        nvml.counters_mj[0] += 2 * KWH_MJ
        set_counter(powercap, "intel-rapl:2", 1_000_000 + KWH_UJ // 2)
        run.finish()  # reads the counters once more
        set_counter(powercap, "intel-rapl:2", 1_000_000)
    history = read(logs / "x")
    assert [round(attempt.energy.kwh, 6) for attempt in history.attempts] == [2.5, 2.5]
    energy = history.energy
    assert (energy.gpu_kwh, energy.cpu_kwh, energy.num_gpus, energy.gaps) == (4.0, 1.0, 1, [])
    assert energy.text == "5 kWh (GPU 4 kWh, processors 1 kWh), 2.50 EUR, 500 g CO2"
    assert energy.text in CliRunner().invoke(main, ["show", str(logs / "x")], terminal_width=200).output
    rows = CliRunner().invoke(main, ["ls", "--log-dir", str(logs), "--columns", "name,energy_kwh", "energy_kwh > 4"])
    assert "5" in rows.output, rows.output


def test_missing_parts_are_stated(logs):
    run = tachograph.init("x", log_dir=str(logs), system_interval_s=0, git=False, code=False)
    run.add_record("energy", {"gpu_kwh": 0.05, "num_gpus": 1, "num_ranks": 1, "price_per_kwh": 1.0})
    run.finish()
    assert read(logs / "x").energy.text == "50 Wh (GPU only), 0.05"
    for fields in ({}, {"gpu_kwh": 0.05, "cpu_kwh": 0.2}, {"gpu_kwh": "much"}, {"gpu_kwh": -1.0}):
        run = tachograph.init("x", log_dir=str(logs), resume=True, system_interval_s=0, git=False, code=False)
        run.add_record("energy", fields)
        run.finish()
    energy = read(logs / "x").energy
    assert energy.gaps == ["2 of 5 attempts", "processors in 1 of 5 attempts"]
    assert energy.cost is None  # no price in one of them
    assert energy.kwh == pytest.approx(0.3)


def test_rank_0_adds_the_counters_of_other_ranks(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0, git=False, code=False):
        folder = RunFolder(logs / "x")
        heartbeat = read_heartbeat(folder.heartbeat)
        for rank, job in itertools.product((1,), ("job", "earlier")):
            folder.rank_journal(rank).parent.mkdir(exist_ok=True)
            folder.rank_journal(rank).write_text(json.dumps({"event": "start", "time": 1.0}) + "\n")
            folder.rank_heartbeat(rank).parent.mkdir(parents=True, exist_ok=True)
            beat = msgspec.structs.replace(heartbeat, job=job, energy_kwh={"gpu:a": 1.5})
            folder.rank_heartbeat(rank).write_bytes(msgspec.json.encode(beat))
            assert read_rank_energy(folder, "job") == ([{"gpu:a": 1.5}] if job == "job" else [])
