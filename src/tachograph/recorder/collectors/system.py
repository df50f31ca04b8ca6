"""Samples of the machine: CPU, memory, disk, network and GPU, taken by a thread of its own.

Nothing here imports torch or creates a CUDA context: torch's figures are read only if the training code has imported
torch and initialised CUDA itself.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

from tachograph._base.guard import faults, guard, suppress
from tachograph._base.nvml import GpuProbe
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.threads import TelemetryThread
from tachograph.black_box import GpuErrors, MemoryGroup, child_memory_fields
from tachograph.recorder.collectors.energy import EnergyMeter

__all__ = ["MemorySampler", "SystemSampler", "memory_fields"]

_GIB = 1 << 30
_MIB = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_FIRST_S = 1.0
_MAX_SILENT_S = 60.0
_ENERGY_S = 30.0
_LAST_READING_S = 0.5
_NOTABLE_SHARE = 0.005

_processes: dict[int, psutil.Process] = {}


def _this_process() -> psutil.Process:
    """Return this process, also after a fork; always the same object, because psutil stores the last CPU time in it."""
    pid = os.getpid()
    if pid not in _processes:
        _processes.clear()
        _processes[pid] = psutil.Process(pid)
    return _processes[pid]


def memory_fields() -> dict[str, float]:
    """Return the memory in use by this process, under the field names of step records."""
    fields: dict[str, float] = {"cpu_mem_rss_mb": round(_rss_bytes() / _MIB, 1)}
    devices = _allocator_stats()
    for name, statistic in (("gpu_mem_allocated", "allocated_bytes"), ("gpu_mem_reserved", "reserved_bytes")):
        # A device that is not used has no statistics.
        sizes_bytes = [stats[statistic]["all"]["current"] for stats in devices if statistic in stats]
        if sizes_bytes:
            fields[name] = round(sum(sizes_bytes) / _GIB, 4)
    return fields


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except faults(OSError):  # not Linux
        return int(_this_process().memory_info().rss)


class SystemSampler:
    """Calls `deliver` with a sample at an interval until stopped.

    Args:
        folder: a folder on the disk whose free space is sampled.
        interval_s: the time between samples.
        deliver: receives a sample.
        deliver_energy: receives the energy counters, about every half minute and when the sampler stops.
        gpu_errors: checks the error counters of GPUs with each sample.
    """

    def __init__(
        self,
        folder: str,
        interval_s: float,
        deliver: Callable[[dict[str, Any]], None],
        deliver_energy: Callable[[dict[str, float]], None] | None = None,
        gpu_errors: GpuErrors | None = None,
    ) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._deliver = deliver
        self._deliver_energy = deliver_energy
        self._gpu_errors = gpu_errors
        self._energy: EnergyMeter | None = None
        self._memory_group = MemoryGroup.of_this_process()
        self._stopping = ReentrantEvent()
        self._gpus = GpuProbe()
        self._last_sample_at = time.monotonic()
        self._last_network = _network_bytes()
        self._thread = TelemetryThread(self._run, name="tachograph-system")

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop, without waiting for it, except for a last reading of energy counters."""
        self._stopping.set()
        if self._energy is not None and self._energy.has_counters and self._thread.is_alive():
            self._thread.join(_LAST_READING_S)

    def sample(self) -> dict[str, Any]:
        """Take one sample. Rates are averages since the previous sample, or since the sampler was created."""
        now_s = time.monotonic()
        memory = psutil.virtual_memory()
        fields: dict[str, Any] = {
            **memory_fields(),
            "host_mem_used_pct": memory.percent,
            "host_mem_available_gb": round(memory.available / _GIB, 2),
            "num_threads": _this_process().num_threads(),
        }
        with suppress(OSError):  # the folder is gone; the writer restores it
            fields["disk_free_gb"] = round(psutil.disk_usage(self._folder).free / _GIB, 2)
        # Both calls return the average since their previous call.
        fields["cpu_pct"], fields["process_cpu_pct"] = psutil.cpu_percent(), _this_process().cpu_percent()
        network = _network_bytes()
        if network and self._last_network:
            took_s = max(now_s - self._last_sample_at, 1e-3)
            fields["net_sent_mb_per_s"] = round((network[0] - self._last_network[0]) / took_s / 1e6, 3)
            fields["net_received_mb_per_s"] = round((network[1] - self._last_network[1]) / took_s / 1e6, 3)
        self._last_sample_at, self._last_network = now_s, network
        if self._memory_group is not None:
            fields.update(self._memory_group.fields())
        fields.update(child_memory_fields(os.getpid()))
        fields.update(self._gpus.sample())
        fields.update(_allocator_fields())
        return fields

    def _run(self) -> None:
        # psutil compares with the previous call of the same thread: make one, so that the first sample is meaningful.
        psutil.cpu_percent(), _this_process().cpu_percent()
        if self._deliver_energy is not None:
            with guard("reading energy counters"):
                self._energy = EnergyMeter(self._gpus)
        wait_s = min(_FIRST_S, self._interval_s)
        energy_due_at = 0.0
        while not self._stopping.wait(wait_s):
            with guard("sampling the system"):
                if sample := self.sample():
                    self._deliver(sample)
                    if self._gpu_errors is not None:
                        self._gpu_errors.check(self._gpus, sample)
            if time.monotonic() >= energy_due_at:
                energy_due_at = time.monotonic() + _ENERGY_S
                self._read_energy()
            wait_s = self._interval_s
        self._read_energy()

    def _read_energy(self) -> None:
        if self._energy is not None and self._deliver_energy is not None:
            with guard("reading energy counters"):
                if counters := self._energy.read():
                    self._deliver_energy(counters)


class MemorySampler(SystemSampler):
    """Samples only the memory of this process, and delivers a sample only if it differs or the last one is old.

    A job may have thousands of ranks, and their memory hardly ever changes after the first steps.
    """

    def __init__(
        self,
        interval_s: float,
        deliver: Callable[[dict[str, Any]], None],
        deliver_energy: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        super().__init__("", interval_s, deliver, deliver_energy)
        self._last_sample: dict[str, float] = {}

    def sample(self) -> dict[str, Any]:
        """Take a sample; empty if it is not worth recording."""
        fields = {**memory_fields(), **_allocator_fields()}
        now_s = time.monotonic()
        if now_s - self._last_sample_at < _MAX_SILENT_S and not self._is_notable(fields):
            return {}
        self._last_sample, self._last_sample_at = fields, now_s
        return fields

    def _is_notable(self, fields: dict[str, float]) -> bool:
        return fields.keys() != self._last_sample.keys() or any(
            # Peaks are compared to the byte.
            abs(value - self._last_sample[name])
            > (0.0 if "peak" in name else _NOTABLE_SHARE * abs(self._last_sample[name]))
            for name, value in fields.items()
        )


def _network_bytes() -> tuple[int, int] | None:
    counters = psutil.net_io_counters()
    return (counters.bytes_sent, counters.bytes_recv) if counters else None


def _allocator_fields() -> dict[str, Any]:
    """Return the peak of the memory of torch's allocator, and how often it freed its cache and retried, on GPUs."""
    devices = _allocator_stats()
    fields: dict[str, Any] = {}
    for name, statistic in (("gpu_mem_peak_allocated", "allocated_bytes"), ("gpu_mem_peak_reserved", "reserved_bytes")):
        peaks_bytes = [stats[statistic]["all"]["peak"] for stats in devices if statistic in stats]
        if peaks_bytes:
            fields[name] = round(sum(peaks_bytes) / _GIB, 4)
    retries = [stats["num_alloc_retries"] for stats in devices if "num_alloc_retries" in stats]
    return {**fields, "gpu_alloc_retries": sum(retries)} if retries else fields


def _allocator_stats() -> list[dict[str, Any]]:
    """Return the statistics of torch's allocator on each device; none if the training code does not use CUDA.

    All devices, because each thread has its own current device, and this thread is not the one that trains.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return []
    except Exception:  # noqa: BLE001 - torch may be half imported by another thread
        return []
    return [cuda.memory_stats_as_nested_dict(index) for index in range(cuda.device_count())]
