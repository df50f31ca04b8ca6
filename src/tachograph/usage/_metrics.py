"""Duration and memory of training, measured without disturbing it.

Nothing here initializes a device or waits for one. Torch is used only if the training code has imported it, and a
backend only if the training code has initialized it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tachograph._base.guard import guard

__all__ = ["RuntimeMetrics", "RuntimeMetricsTracker"]

_BACKENDS = ("cuda", "mps", "xpu", "npu")
"""Backends of torch, the most common first. ROCm uses `torch.cuda`."""

_HIGH_WATER_MARK = "allocator_high_water_mark"
_SAMPLED_PEAK = "sampled"


@dataclass
class RuntimeMetrics:
    """Time, steps and memory of a training.

    Times come from `time.perf_counter`, so that setting the wall clock changes no duration.
    """

    start_time: float | None = None
    """Start of training; now by default."""
    epoch_start_times: dict[int, float] = field(default_factory=dict)
    """Start of each epoch. An epoch that was resumed in the middle is missing."""
    epoch_end_times: dict[int, float] = field(default_factory=dict)
    """End of each completed epoch."""
    peak_cpu_memory: int = 0
    """Peak of the sampled bytes of this process; 0 if it was never sampled."""
    peak_gpu_memory: dict[int, int] = field(default_factory=dict)
    """Peak bytes in use on each device visible to this process."""
    gpu_peak_memory_source: dict[int, str] = field(default_factory=dict)
    """Source of each peak: `allocator_high_water_mark`, or `sampled`, which misses peaks between two samples."""
    total_steps: int = 0
    """Steps completed by this process; steps before a resume do not count."""
    current_epoch: int = 0
    current_step: int = 0

    def __post_init__(self) -> None:
        if self.start_time is None:
            self.start_time = perf_counter()

    @property
    def elapsed_time(self) -> float:
        """Seconds since the start of training."""
        return perf_counter() - (self.start_time or 0.0)

    def epoch_time(self, epoch: int) -> float | None:
        """Return the duration of an epoch in seconds, None unless its start and end are known."""
        if epoch not in self.epoch_start_times or epoch not in self.epoch_end_times:
            return None
        return self.epoch_end_times[epoch] - self.epoch_start_times[epoch]

    def average_epoch_time(self) -> float | None:
        """Return the mean duration of complete epochs in seconds, None if there is none."""
        times_s = self._epoch_times_s()
        return sum(times_s.values()) / len(times_s) if times_s else None

    def steps_per_second(self) -> float | None:
        """Return the mean steps per second since the start of training, None before the first step."""
        elapsed_s = self.elapsed_time
        return self.total_steps / elapsed_s if self.total_steps and elapsed_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return all known values under names with units. Unknown values are missing."""
        values: dict[str, Any] = {
            "total_time_seconds": self.elapsed_time,
            "total_steps": self.total_steps,
            "epochs_completed": len(self.epoch_end_times),
        }
        steps_per_second = self.steps_per_second()
        if steps_per_second is not None:
            values["steps_per_second"] = steps_per_second
        if self.peak_cpu_memory:
            values["peak_cpu_memory_bytes"] = self.peak_cpu_memory
        times_s = self._epoch_times_s()
        if times_s:
            values["epoch_times"] = {f"epoch_{epoch}_seconds": time_s for epoch, time_s in times_s.items()}
            values["average_epoch_time_seconds"] = self.average_epoch_time()
        if self.peak_gpu_memory:
            values["gpu_memory"] = self.gpu_peaks()
        return values

    def gpu_peaks(self) -> dict[str, int | str]:
        """Return the peak of each device and its source."""
        peaks: dict[str, int | str] = {}
        for index, peak_bytes in sorted(self.peak_gpu_memory.items()):
            peaks[f"gpu_{index}_peak_memory_bytes"] = peak_bytes
            if index in self.gpu_peak_memory_source:
                peaks[f"gpu_{index}_peak_memory_source"] = self.gpu_peak_memory_source[index]
        return peaks

    def _epoch_times_s(self) -> dict[int, float]:
        times_s = ((epoch, self.epoch_time(epoch)) for epoch in sorted(self.epoch_end_times))
        return {epoch: time_s for epoch, time_s in times_s if time_s is not None}


class RuntimeMetricsTracker:
    """Updates `RuntimeMetrics`. Call it for every epoch and step; it samples the memory from time to time."""

    update_interval = 100
    """Steps between two samples of the memory."""

    def __init__(self) -> None:
        self.metrics = RuntimeMetrics()
        self.cpu_memory: int | None = None
        """Bytes of this process at the last sample, None if they could not be read."""
        self.gpu_memory: dict[int, int] = {}
        """Bytes in use on each device at the last sample."""
        self._sampled_at_s = 0.0
        self._has_high_water_marks = False

    def start_epoch(self, epoch: int) -> None:
        """Record the start of an epoch."""
        self.metrics.current_epoch = epoch
        self.metrics.epoch_start_times[epoch] = perf_counter()
        self.update_memory_metrics()

    def end_epoch(self, epoch: int) -> None:
        """Record the end of a completed epoch."""
        self.metrics.epoch_end_times[epoch] = perf_counter()

    def update_step(self, step: int) -> None:
        """Record a completed step, and sample the memory every `update_interval` steps.

        Args:
            step: number of the step, which after a resume is larger than the number of steps of this process.
        """
        self.metrics.current_step = step
        self.metrics.total_steps += 1
        if step % self.update_interval == 0:
            self.update_memory_metrics()

    def update_memory_metrics(self) -> None:
        """Sample the memory of this process and of its devices."""
        self.cpu_memory = None
        with guard("reading the memory of the process"):
            self.cpu_memory = _resident_bytes()
            self.metrics.peak_cpu_memory = max(self.metrics.peak_cpu_memory, self.cpu_memory)
        self.update_gpu_memory_metrics()

    def update_gpu_memory_metrics(self, pause_s: float = 0.0) -> None:
        """Sample the memory of the devices. Their own peak counters are read, never reset.

        Args:
            pause_s: minimum time between two samples of devices that have a peak counter.
        """
        now_s = perf_counter()
        if self._has_high_water_marks and now_s - self._sampled_at_s < pause_s:
            return
        self._sampled_at_s, self._has_high_water_marks = now_s, False
        metrics, self.gpu_memory = self.metrics, {}
        for index, (in_use_bytes, peak_bytes, source) in enumerate(_devices()):
            self.gpu_memory[index] = in_use_bytes
            metrics.peak_gpu_memory[index] = max(metrics.peak_gpu_memory.get(index, 0), peak_bytes)
            metrics.gpu_peak_memory_source[index] = source
            # All devices belong to one backend, so the last one decides.
            self._has_high_water_marks = source == _HIGH_WATER_MARK

    def get_memory_metrics(self) -> dict[str, int | str]:
        """Sample the memory and return the bytes in use and the peaks. Values that cannot be read are missing."""
        self.update_memory_metrics()
        values: dict[str, int | str] = {}
        if self.cpu_memory is not None:
            values["cpu_memory_bytes"] = self.cpu_memory
        if self.metrics.peak_cpu_memory:
            values["peak_cpu_memory_bytes"] = self.metrics.peak_cpu_memory
        values.update({f"gpu_{index}_memory_bytes": in_use for index, in_use in self.gpu_memory.items()})
        return {**values, **self.metrics.gpu_peaks()}


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)  # created each time: after a fork the process is another one


def _devices() -> list[tuple[int, int, str]]:
    """Return the bytes in use, the peak and the source of the peak for each device.

    All devices belong to the first initialized backend that can be read.
    """
    torch = sys.modules.get("torch")
    for name in _BACKENDS:
        with guard(f"reading the memory of {name}"):
            backend = getattr(torch, name, None)
            if backend is not None and _is_initialized(backend):
                return [_read_device(backend, index) for index in range(backend.device_count())]
    return []


def _is_initialized(backend: Any) -> bool:
    if hasattr(backend, "is_initialized"):
        return bool(backend.is_initialized())
    # Metal has no such function. Seeding, which every trainer does, creates the generator; reading the memory before
    # that would itself initialize the device.
    return getattr(backend, "_default_mps_generator", None) is not None


def _read_device(backend: Any, index: int) -> tuple[int, int, str]:
    if hasattr(backend, "memory_allocated"):
        in_use_bytes = int(backend.memory_allocated(index))
    else:
        in_use_bytes = int(backend.current_allocated_memory())  # Metal has one device
    if hasattr(backend, "max_memory_allocated"):
        return in_use_bytes, max(in_use_bytes, int(backend.max_memory_allocated(index))), _HIGH_WATER_MARK
    return in_use_bytes, in_use_bytes, _SAMPLED_PEAK
