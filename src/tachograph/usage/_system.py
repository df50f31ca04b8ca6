"""The type of machine: versions, sizes, accelerators. Nothing here creates a CUDA context."""

from __future__ import annotations

import os
import sys
from typing import Any

from tachograph._base.guard import reraise_from_signal_handler
from tachograph._base.nvml import GpuProbe
from tachograph.usage._guard import guard_silently
from tachograph.usage._schemas import PACKAGES

__all__ = ["system_info"]


def system_info() -> dict[str, Any]:
    """Return the raw properties of the `system-info` event. A property that cannot be read is missing."""
    import platform

    properties: dict[str, Any] = {
        "os": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "num_cpus": os.cpu_count(),
        "packages": _versions(),
    }
    with guard_silently("reading the size of the memory"):
        import psutil

        properties["memory"] = psutil.virtual_memory().total
    with guard_silently("looking for accelerators"):
        kind, devices = _accelerators()
        properties |= {"accelerator": kind, "num_accelerators": len(devices), "accelerators": devices}
    return properties


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except Exception as error:  # noqa: BLE001 - not installed, or with broken metadata
            reraise_from_signal_handler(error)
            continue
    return versions


def _accelerators() -> tuple[str, list[dict[str, Any]]]:
    """Return the type and the devices, from NVIDIA's driver or from torch where that does not initialize a device."""
    if devices := GpuProbe().devices():
        return "cuda", [{"name": name, "memory": num_bytes} for name, num_bytes in devices]
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return "none", []
    if getattr(torch.version, "hip", None):
        return _torch_devices("rocm", torch.cuda)
    if torch.cuda.is_initialized():  # NVML is missing, as on a Jetson
        return _torch_devices("cuda", torch.cuda)
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return "mps", [{}]  # reading the name of the chip would need a subprocess
    for kind in ("xpu", "npu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            return _torch_devices(kind, backend)
    return "none", []


def _torch_devices(kind: str, backend: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the devices of a backend, with names only if the training code has initialized it."""
    count = int(backend.device_count())
    if not count:
        return "none", []
    if not backend.is_initialized():
        return kind, [{} for _ in range(count)]
    devices = []
    for index in range(count):
        memory = getattr(backend.get_device_properties(index), "total_memory", None)
        devices.append({"name": backend.get_device_name(index), "memory": memory})
    return kind, devices
