"""The machine under the run: CPU, memory, disk, network and GPU, sampled by a thread of its own.

Nothing here imports torch or creates a CUDA context: torch's figures are read only if the training code has loaded it
and has itself initialised CUDA.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from tachograph.guard import guard
from tachograph.recorder._gpu import GpuProbe

__all__ = ["SystemSampler", "memory_fields"]

_GIB = 1 << 30
_MIB = 1 << 20

_process = psutil.Process()


def memory_fields() -> dict[str, Any]:
    """Return the memory in use by this process, under the names that step records carry."""
    if _process.pid != os.getpid():
        return {}
    fields: dict[str, Any] = {"cpu_mem_rss_mb": round(_process.memory_info().rss / _MIB, 1)}
    cuda = _torch_cuda()
    if cuda is not None:
        fields["gpu_mem_allocated"] = round(cuda.memory_allocated() / _GIB, 4)
        fields["gpu_mem_reserved"] = round(cuda.memory_reserved() / _GIB, 4)
    return fields


class SystemSampler:
    """Calls `deliver` with a sample every few seconds until stopped."""

    def __init__(self, folder: str, interval_s: float, deliver: Callable[[dict[str, Any]], None]) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._deliver = deliver
        self._stopping = threading.Event()
        self._gpus = GpuProbe()
        self._last_s = 0.0
        self._last_network: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run, name="tachograph-system", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; nobody waits for it."""
        self._stopping.set()

    def sample(self) -> dict[str, Any]:
        """Take one sample. Rates are means since the sample before, so the first one has none."""
        now_s = time.monotonic()
        memory = psutil.virtual_memory()
        fields: dict[str, Any] = {
            **memory_fields(),
            "host_mem_used_pct": memory.percent,
            "host_mem_available_gb": round(memory.available / _GIB, 2),
            "num_threads": _process.num_threads(),
        }
        with contextlib.suppress(OSError):  # the folder is gone; the writer will see to it
            fields["disk_free_gb"] = round(psutil.disk_usage(self._folder).free / _GIB, 2)
        network = psutil.net_io_counters()
        counters = (network.bytes_sent, network.bytes_recv) if network else None
        # Both calls return the mean since they were last called.
        cpu_pct, process_cpu_pct = psutil.cpu_percent(), _process.cpu_percent()
        if self._last_s:
            took_s = max(now_s - self._last_s, 1e-3)
            fields["cpu_pct"], fields["process_cpu_pct"] = cpu_pct, process_cpu_pct
            if counters and self._last_network:
                fields["net_sent_mb_per_s"] = round((counters[0] - self._last_network[0]) / took_s / 1e6, 3)
                fields["net_received_mb_per_s"] = round((counters[1] - self._last_network[1]) / took_s / 1e6, 3)
        self._last_s, self._last_network = now_s, counters
        fields.update(self._gpus.sample())
        return fields

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            with guard("sampling the system"):
                self._deliver(self.sample())
            wait_s = self._interval_s


def _torch_cuda() -> Any:
    """Return `torch.cuda` if the training code uses it, else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:  # noqa: BLE001 - torch may be half imported by another thread
        return None
