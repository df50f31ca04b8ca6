"""GPU readings through NVML, if a driver is installed. NVML reads counters and creates no CUDA context."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from tachograph._base.guard import reraise_from_signal_handler

__all__ = ["GpuProbe"]

_GIB = 1 << 30
_Value = TypeVar("_Value")

_READINGS: dict[str, Callable[[Any, Any], Any]] = {
    "util_pct": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "mem_used_gb": lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).used / _GIB, 3),
    "mem_total_gb": lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).total / _GIB, 3),
    "power_w": lambda nvml, handle: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
    "temp_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
}

_ERROR_COUNTERS: dict[str, Callable[[Any, Any], Any]] = {
    "ecc_uncorrected": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC
    ),
    "ecc_corrected": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_AGGREGATE_ECC
    ),
    "remapped_rows": lambda nvml, handle: sum(nvml.nvmlDeviceGetRemappedRows(handle)[:2]),
    "throttle_reasons": lambda nvml, handle: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
}


class GpuProbe:
    """Reads the GPUs visible to this process: those in `CUDA_VISIBLE_DEVICES`, or all."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[tuple[str, Any]] | None = None

    def names(self) -> list[str]:
        """Return the model name of each GPU."""
        return [_decode(self._nvml.nvmlDeviceGetName(handle)) for _index, handle in self._visible_handles()]

    def driver_version(self) -> str | None:
        """Return the version of the driver; None without a GPU."""
        return _decode(self._nvml.nvmlSystemGetDriverVersion()) if self._visible_handles() else None

    def devices(self) -> list[tuple[str, int]]:
        """Return the model name of each GPU and its memory in bytes."""
        total = [int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) for _index, handle in self._visible_handles()]
        return list(zip(self.names(), total, strict=True))

    def sample(self) -> dict[str, Any]:
        """Return utilisation, memory, power and temperature of each GPU; readings it does not support are missing."""
        fields: dict[str, Any] = {}
        for index, handle in self._visible_handles():
            for name, read_value in _READINGS.items():
                try:
                    fields[f"gpu/{index}/{name}"] = read_value(self._nvml, handle)
                except self._nvml.NVMLError:
                    continue  # not supported by this model, or not available now
        return fields

    def error_counters(self) -> dict[str, dict[str, int | bool]]:
        """Return the error counters of each GPU over its life, by index; `is_lost` if the driver cannot reach it."""
        counters: dict[str, dict[str, int | bool]] = {}
        for index, handle in self._visible_handles():
            values = counters[index] = {"is_lost": False}
            for name, read_value in _ERROR_COUNTERS.items():
                try:
                    values[name] = int(read_value(self._nvml, handle))
                except (self._nvml.NVMLError, AttributeError, TypeError) as error:
                    lost_code = getattr(self._nvml, "NVML_ERROR_GPU_IS_LOST", None)
                    if lost_code is not None and getattr(error, "value", None) == lost_code:
                        values["is_lost"] = True
        return counters

    def energy_mj(self) -> dict[str, int]:
        """Return the energy counter of each GPU that has one, by UUID, in millijoules since the driver was loaded."""
        return self._by_uuid(lambda handle: int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))

    def process_ids(self) -> dict[str, set[int]]:
        """Return the processes that compute on each GPU, by UUID, with their ids on the host."""
        return self._by_uuid(
            lambda handle: {int(process.pid) for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        )

    def _by_uuid(self, read_value: Callable[[Any], _Value]) -> dict[str, _Value]:
        values: dict[str, _Value] = {}
        for _index, handle in self._visible_handles():
            try:
                values[_decode(self._nvml.nvmlDeviceGetUUID(handle))] = read_value(handle)
            except (self._nvml.NVMLError, AttributeError):  # not supported by this model, or by this version of NVML
                continue
        return values

    def _visible_handles(self) -> list[tuple[str, Any]]:
        if self._devices is None:
            self._devices = []
            if not _driver_may_exist():
                return self._devices
            try:
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml
                self._devices = self._filter_visible()
            except Exception as error:  # noqa: BLE001 - no driver, no device, no permission: report no GPUs
                reraise_from_signal_handler(error)
                self._devices = []
        return self._devices

    def _filter_visible(self) -> list[tuple[str, Any]]:
        nvml = self._nvml
        handles = {str(index): nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())}
        variable = os.environ.get("CUDA_VISIBLE_DEVICES")
        if variable is None:
            return list(handles.items())
        visible_ids = [self._parent_device(item.strip()) for item in variable.split(",") if item.strip()]
        devices = []
        for index, handle in handles.items():
            uuid = _decode(nvml.nvmlDeviceGetUUID(handle))
            if any(item == index or (item.startswith("GPU-") and uuid.startswith(item)) for item in visible_ids):
                devices.append((index, handle))
        return devices

    def _parent_device(self, item: str) -> str:
        """Return the device that contains the MIG instance named in `CUDA_VISIBLE_DEVICES`; other entries unchanged."""
        nvml = self._nvml
        if item.startswith("MIG-GPU-"):
            return item.removeprefix("MIG-").partition("/")[0]
        if not item.startswith("MIG-"):
            return item
        try:
            part = nvml.nvmlDeviceGetHandleByUUID(item)
            return _decode(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)))
        except nvml.NVMLError:
            return item


def _driver_may_exist() -> bool:
    """Return whether a driver may be installed. Loading NVML costs megabytes, so check first."""
    return sys.platform != "linux" or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")))


def _decode(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
