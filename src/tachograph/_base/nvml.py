"""GPU figures through NVML, when there is a driver. NVML reads counters; it creates no CUDA context."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["GpuProbe"]

_GIB = 1 << 30

_READINGS: dict[str, Callable[[Any, Any], Any]] = {
    "util_pct": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "mem_used_gb": lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).used / _GIB, 3),
    "mem_total_gb": lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).total / _GIB, 3),
    "power_w": lambda nvml, handle: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
    "temp_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
}


class GpuProbe:
    """Reads the GPUs this process may use: `CUDA_VISIBLE_DEVICES`, else all."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[tuple[str, Any]] | None = None

    def names(self) -> list[str]:
        """Return the model names of the GPUs."""
        return [_text(self._nvml.nvmlDeviceGetName(handle)) for _index, handle in self._find()]

    def devices(self) -> list[tuple[str, int]]:
        """Return the model name of each GPU and its memory in bytes."""
        total = [int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) for _index, handle in self._find()]
        return list(zip(self.names(), total, strict=True))

    def sample(self) -> dict[str, Any]:
        """Return utilisation, memory, power and temperature of each GPU, as far as it tells them."""
        fields: dict[str, Any] = {}
        for index, handle in self._find():
            for name, read in _READINGS.items():
                try:
                    fields[f"gpu/{index}/{name}"] = read(self._nvml, handle)
                except self._nvml.NVMLError:
                    continue  # this model does not tell, or not now
        return fields

    def _find(self) -> list[tuple[str, Any]]:
        if self._devices is None:
            self._devices = []
            if not _may_have_driver():
                return self._devices
            try:
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml
                self._devices = self._visible()
            except Exception:  # noqa: BLE001 - no driver, no device, no permission: there are no GPUs to tell of
                self._devices = []
        return self._devices

    def _visible(self) -> list[tuple[str, Any]]:
        nvml = self._nvml
        every = {str(index): nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return list(every.items())
        wanted = [self._whole(item.strip()) for item in visible.split(",") if item.strip()]
        devices = []
        for index, handle in every.items():
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            if any(item == index or (item.startswith("GPU-") and uuid.startswith(item)) for item in wanted):
                devices.append((index, handle))
        return devices

    def _whole(self, item: str) -> str:
        """Return the device that an entry of `CUDA_VISIBLE_DEVICES` names a part of, or else the entry."""
        nvml = self._nvml
        if item.startswith("MIG-GPU-"):
            return item.removeprefix("MIG-").partition("/")[0]
        if not item.startswith("MIG-"):
            return item
        try:
            part = nvml.nvmlDeviceGetHandleByUUID(item)
            return _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)))
        except nvml.NVMLError:
            return item


def _may_have_driver() -> bool:
    """Tell whether it is worth loading NVML; it costs megabytes."""
    return sys.platform != "linux" or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
