"""What kind of machine this is: versions, sizes, accelerators. Nothing here makes a CUDA context."""

from __future__ import annotations

import os
import sys
from typing import Any

from tachograph._base.nvml import GpuProbe
from tachograph.usage._quiet import quiet
from tachograph.usage._schemas import PACKAGES

__all__ = ["system_info"]


def system_info() -> dict[str, Any]:
    """Return what the `system-info` event tells, before it is made coarse. What cannot be read is missing."""
    import platform

    facts: dict[str, Any] = {
        "os": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "num_cpus": os.cpu_count(),
        "packages": _versions(),
    }
    with quiet("asking for the size of memory"):
        import psutil

        facts["memory"] = psutil.virtual_memory().total
    with quiet("looking for accelerators"):
        kind, devices = _accelerators()
        facts |= {"accelerator": kind, "num_accelerators": len(devices), "accelerators": devices}
    return facts


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except Exception:  # noqa: BLE001, S112 - not installed, or by somebody who broke its metadata
            continue
    return versions


def _accelerators() -> tuple[str, list[dict[str, Any]]]:
    """Return the kind and the devices. NVIDIA's driver is asked itself; torch only where that touches no device."""
    if devices := GpuProbe().devices():
        return "cuda", [{"name": name, "memory": num_bytes} for name, num_bytes in devices]
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return "none", []
    if getattr(torch.version, "hip", None):
        return _asked("rocm", torch.cuda)
    if torch.cuda.is_initialized():  # a device whose driver does not answer, as on a Jetson
        return _asked("cuda", torch.cuda)
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return "mps", [{}]  # which chip it is, only a program could tell
    for kind in ("xpu", "npu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            return _asked(kind, backend)
    return "none", []


def _asked(kind: str, backend: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the devices of a backend: what each is, only if the training code has begun to use them."""
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
