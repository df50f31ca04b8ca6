"""Hardware errors of GPUs, from the counters of a fake NVML."""

from __future__ import annotations

import sys
import types

import pytest

from tachograph._base import nvml as nvml_module
from tachograph._base.nvml import GpuProbe
from tachograph.black_box import DumpWriter, GpuErrors, read_dumps
from tachograph.journal import RunFolder


class NvmlError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


@pytest.fixture
def nvml(monkeypatch):
    """Two GPUs; the second has no ECC."""

    def count_errors(handle, kind, counter):
        if nvml.lost == handle:
            raise NvmlError(15)
        if handle == 1:
            raise NvmlError(3)
        return nvml.num_errors[kind]

    nvml = types.ModuleType("pynvml")
    nvml.num_errors = [40, 1]
    nvml.lost = None
    nvml.NVMLError = NvmlError
    nvml.NVML_ERROR_GPU_IS_LOST = 15
    nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC = 0, 1, 1
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetTotalEccErrors = count_errors
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x44
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(nvml_module, "_driver_may_exist", lambda: True)
    return nvml


@pytest.fixture
def writer(tmp_path):
    return DumpWriter(lambda: RunFolder(tmp_path), lambda event, fields: None)


def test_errors_before_the_start_are_no_errors(nvml, writer, tmp_path):
    errors = GpuErrors(writer)
    for _ in range(2):
        errors.check(GpuProbe(), {})
    nvml.num_errors[0] += 5  # corrected
    errors.check(GpuProbe(), {})
    assert read_dumps(RunFolder(tmp_path)) == []


def test_uncorrectable_errors_cause_one_dump(nvml, writer, tmp_path):
    errors = GpuErrors(writer, lambda: 12)
    errors.check(GpuProbe(), {})
    nvml.num_errors[1] += 2
    for _ in range(2):
        errors.check(GpuProbe(), {"gpu/0/temp_c": 91, "cpu_pct": 3})
    (dump,) = read_dumps(RunFolder(tmp_path))
    assert (dump.reason, dump.step) == ("gpu_error", 12)
    assert dump.verdict.text == "GPU 0 had 2 uncorrectable memory errors (ECC) since the start"
    gpu = dump["gpu_errors"]["gpus"]["0"]
    assert (gpu["at_start"]["ecc_uncorrected"], gpu["now"]["ecc_uncorrected"]) == (1, 3)
    assert gpu["throttled_by"] == ["power limit", "hardware thermal slowdown"]
    assert dump["gpu_errors"]["readings"] == {"gpu/0/temp_c": 91}


def test_lost_gpu_causes_a_dump(nvml, writer, tmp_path):
    errors = GpuErrors(writer)
    errors.check(GpuProbe(), {})
    nvml.lost = 1
    errors.check(GpuProbe(), {})
    (dump,) = read_dumps(RunFolder(tmp_path))
    assert dump.verdict.kind == "gpu_lost" and dump.verdict.text.startswith("GPU 1 is lost")


def test_dumps_about_cuda_errors_have_the_counters(nvml, writer, tmp_path):
    errors = GpuErrors(writer)
    errors.check(GpuProbe(), {})
    writer.write("exception", error=RuntimeError("CUDA error: unspecified launch failure"))
    writer.write("request")
    exception, request = read_dumps(RunFolder(tmp_path))
    assert exception["gpu_errors"]["gpus"].keys() == {"0", "1"}
    assert request["gpu_errors"] is None
