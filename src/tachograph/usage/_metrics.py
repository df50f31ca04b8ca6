"""How long training takes and how much memory it needs, measured so that training does not notice.

Nothing here starts a device or waits for one: torch is asked only if the training code has loaded it, and a backend
of it only if it is in use already.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tachograph._base.guard import guard

__all__ = ["RuntimeMetrics", "RuntimeMetricsTracker"]

_BACKENDS = ("cuda", "mps", "xpu", "npu")
"""Parts of torch that hold a device's memory, the likeliest first. What runs on ROCm is found in `torch.cuda`."""

_HIGH_WATER_MARK = "allocator_high_water_mark"
_SAMPLED = "sampled"


@dataclass
class RuntimeMetrics:
    """What is known of a training's time, steps and memory.

    Times are those of `time.perf_counter`: a wall clock that is set meanwhile changes no duration.
    """

    start_time: float | None = None
    """When training began; now, if nothing is said."""
    epoch_start_times: dict[int, float] = field(default_factory=dict)
    """When each epoch began; an epoch that was entered midway, on resuming, is not here."""
    epoch_end_times: dict[int, float] = field(default_factory=dict)
    """When each epoch was completed."""
    peak_cpu_memory: int = 0
    """Most bytes this process was seen to hold; 0 if nobody looked."""
    peak_gpu_memory: dict[int, int] = field(default_factory=dict)
    """Most bytes in use on each device that this process sees."""
    gpu_peak_memory_source: dict[int, str] = field(default_factory=dict)
    """How that is known: `allocator_high_water_mark`, or `sampled`, which misses what lies between two looks."""
    total_steps: int = 0
    """Steps that were made in this process; those before a resume do not count."""
    current_epoch: int = 0
    current_step: int = 0

    def __post_init__(self) -> None:
        if self.start_time is None:
            self.start_time = perf_counter()

    @property
    def elapsed_time(self) -> float:
        """Seconds since training began."""
        return perf_counter() - (self.start_time or 0.0)

    def epoch_time(self, epoch: int) -> float | None:
        """Return the seconds an epoch took, None unless both its begin and its end were seen."""
        if epoch not in self.epoch_start_times or epoch not in self.epoch_end_times:
            return None
        return self.epoch_end_times[epoch] - self.epoch_start_times[epoch]

    def average_epoch_time(self) -> float | None:
        """Return the mean seconds of the epochs that were seen whole, None if there is none."""
        times_s = self._epoch_times_s()
        return sum(times_s.values()) / len(times_s) if times_s else None

    def steps_per_second(self) -> float | None:
        """Return the steps per second since training began, None before the first."""
        elapsed_s = self.elapsed_time
        return self.total_steps / elapsed_s if self.total_steps and elapsed_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return all that is known under names with units; what is not known is left out."""
        known: dict[str, Any] = {
            "total_time_seconds": self.elapsed_time,
            "total_steps": self.total_steps,
            "epochs_completed": len(self.epoch_end_times),
        }
        steps_per_second = self.steps_per_second()
        if steps_per_second is not None:
            known["steps_per_second"] = steps_per_second
        if self.peak_cpu_memory:
            known["peak_cpu_memory_bytes"] = self.peak_cpu_memory
        times_s = self._epoch_times_s()
        if times_s:
            known["epoch_times"] = {f"epoch_{epoch}_seconds": time_s for epoch, time_s in times_s.items()}
            known["average_epoch_time_seconds"] = self.average_epoch_time()
        if self.peak_gpu_memory:
            known["gpu_memory"] = self.gpu_peaks()
        return known

    def gpu_peaks(self) -> dict[str, int | str]:
        """Return the peak of each device and how it is known."""
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
    """Keeps `RuntimeMetrics` up to date: tell it of epochs and steps, and it looks at the memory now and then."""

    update_interval = 100
    """Steps between two looks at the memory."""

    def __init__(self) -> None:
        self.metrics = RuntimeMetrics()
        self.cpu_memory: int | None = None
        """Bytes this process held at the last look, None if that could not be read."""
        self.gpu_memory: dict[int, int] = {}
        """Bytes in use on each device at the last look."""
        self._looked_s = 0.0
        self._has_high_water_marks = False

    def start_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        self.metrics.current_epoch = epoch
        self.metrics.epoch_start_times[epoch] = perf_counter()
        self.update_memory_metrics()

    def end_epoch(self, epoch: int) -> None:
        """An epoch is completed."""
        self.metrics.epoch_end_times[epoch] = perf_counter()

    def update_step(self, step: int) -> None:
        """A step is done; at every hundredth the memory is looked at.

        Args:
            step: its number, which on resuming is more than the steps made here.
        """
        self.metrics.current_step = step
        self.metrics.total_steps += 1
        if step % self.update_interval == 0:
            self.update_memory_metrics()

    def update_memory_metrics(self) -> None:
        """Look at the memory of this process and of its devices."""
        self.cpu_memory = None
        with guard("reading the memory of the process"):
            self.cpu_memory = _resident_bytes()
            self.metrics.peak_cpu_memory = max(self.metrics.peak_cpu_memory, self.cpu_memory)
        self.update_gpu_memory_metrics()

    def update_gpu_memory_metrics(self, pause_s: float = 0.0) -> None:
        """Look at the memory of the devices. Their own counters are read, never reset.

        Args:
            pause_s: time since the last look within which devices that keep count of their peak are not asked again.
        """
        now_s = perf_counter()
        if self._has_high_water_marks and now_s - self._looked_s < pause_s:
            return
        self._looked_s, self._has_high_water_marks = now_s, False
        metrics, self.gpu_memory = self.metrics, {}
        for index, (in_use_bytes, peak_bytes, source) in enumerate(_devices()):
            self.gpu_memory[index] = in_use_bytes
            metrics.peak_gpu_memory[index] = max(metrics.peak_gpu_memory.get(index, 0), peak_bytes)
            metrics.gpu_peak_memory_source[index] = source
            self._has_high_water_marks = source == _HIGH_WATER_MARK

    def get_memory_metrics(self) -> dict[str, int | str]:
        """Look at the memory, and return what is in use and the peaks; what cannot be read is left out."""
        self.update_memory_metrics()
        known: dict[str, int | str] = {}
        if self.cpu_memory is not None:
            known["cpu_memory_bytes"] = self.cpu_memory
        if self.metrics.peak_cpu_memory:
            known["peak_cpu_memory_bytes"] = self.metrics.peak_cpu_memory
        known.update({f"gpu_{index}_memory_bytes": in_use for index, in_use in self.gpu_memory.items()})
        return {**known, **self.metrics.gpu_peaks()}


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)  # asked anew, for a fork is another process


def _devices() -> list[tuple[int, int, str]]:
    """Return what is in use on each device, the most that ever was, and how that is known.

    The devices are those of the first backend that is in use; if it cannot be read, of the next.
    """
    torch = sys.modules.get("torch")
    for name in _BACKENDS:
        with guard(f"reading the memory of {name}"):
            backend = getattr(torch, name, None)
            if backend is not None and _is_in_use(backend):
                return [_read(backend, index) for index in range(backend.device_count())]
    return []


def _is_in_use(backend: Any) -> bool:
    if hasattr(backend, "is_initialized"):
        return bool(backend.is_initialized())
    # Metal has no such question. Seeding, which every trainer does, makes the generator; asking for memory before
    # that would itself be the first use.
    return getattr(backend, "_default_mps_generator", None) is not None


def _read(backend: Any, index: int) -> tuple[int, int, str]:
    if hasattr(backend, "memory_allocated"):
        in_use_bytes = int(backend.memory_allocated(index))
    else:
        in_use_bytes = int(backend.current_allocated_memory())  # Metal: there is one device
    if hasattr(backend, "max_memory_allocated"):
        return in_use_bytes, max(in_use_bytes, int(backend.max_memory_allocated(index))), _HIGH_WATER_MARK
    return in_use_bytes, in_use_bytes, _SAMPLED
