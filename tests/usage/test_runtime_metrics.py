"""Times, steps and memory of a training. Only devices that this machine lacks are simulated."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tachograph._base.guard import guard
from tachograph.usage import _metrics
from tachograph.usage._metrics import RuntimeMetrics, RuntimeMetricsTracker

MIB = 1 << 20


class Clock:
    """A clock that the test controls."""

    def __init__(self) -> None:
        self.now_s = 5_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_metrics, "perf_counter", clock)
    return clock


class Accelerator:
    """A stand-in for `torch.cuda`, `torch.xpu` and `torch.npu`; any other use of it raises."""

    def __init__(self, *in_use: int, is_initialized: bool = True) -> None:
        self.in_use = list(in_use)
        self.peaks = list(in_use)
        self.num_reads = 0
        self._is_initialized = is_initialized

    def is_initialized(self) -> bool:
        return self._is_initialized

    def device_count(self) -> int:
        assert self._is_initialized, "to count the devices of some backends is to start them"
        return len(self.in_use)

    def memory_allocated(self, index: int) -> int:
        assert self._is_initialized
        self.num_reads += 1
        return self.in_use[index]

    def max_memory_allocated(self, index: int) -> int:
        assert self._is_initialized
        return self.peaks[index]

    def use(self, *in_use: int) -> None:
        self.in_use = list(in_use)
        self.peaks = [max(peak, used) for peak, used in zip(self.peaks, in_use, strict=True)]


class Metal:
    """A stand-in for `torch.mps`: no peak counter, and initialized only if seeding created the generator."""

    def __init__(self, in_use: int, *, is_seeded: bool = True) -> None:
        self.in_use = in_use
        self._default_mps_generator = object() if is_seeded else None

    def device_count(self) -> int:
        return 1

    def current_allocated_memory(self) -> int:
        assert self._default_mps_generator is not None, "this would be the first use of the device"
        return self.in_use


class Broken(Accelerator):
    def memory_allocated(self, index: int) -> int:
        raise RuntimeError("the driver is gone")


Load = Callable[..., None]


@pytest.fixture
def load_torch(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Replace the imported torch by one with these backends."""
    return lambda **backends: monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**backends))


# RuntimeMetrics ------------------------------------------------------------------------------------------------------


def test_start_time_defaults_to_now(clock):
    metrics = RuntimeMetrics()
    assert metrics.start_time == 5_000.0
    clock.now_s += 2.5
    assert metrics.elapsed_time == 2.5
    assert RuntimeMetrics(start_time=4_990.0).elapsed_time == 12.5
    assert RuntimeMetrics(start_time=0.0).elapsed_time == 5_002.5


def test_new_metrics_are_empty(clock):
    metrics = RuntimeMetrics()
    assert metrics.epoch_start_times == metrics.epoch_end_times == {}
    assert metrics.peak_gpu_memory == metrics.gpu_peak_memory_source == {}
    assert (metrics.peak_cpu_memory, metrics.total_steps, metrics.current_epoch, metrics.current_step) == (0, 0, 0, 0)
    assert metrics.epoch_time(0) is metrics.average_epoch_time() is metrics.steps_per_second() is None
    assert metrics.to_dict() == {"total_time_seconds": 0.0, "total_steps": 0, "epochs_completed": 0}
    assert RuntimeMetrics().epoch_end_times is not metrics.epoch_end_times


def test_clock_is_monotonic():
    before_s = time.perf_counter()
    start_s = RuntimeMetrics().start_time
    assert start_s is not None
    assert before_s <= start_s <= time.perf_counter()


def test_epoch_time_is_end_minus_start(clock):
    metrics = RuntimeMetrics(
        epoch_start_times={0: 10.0, 1: 30.0, 2: 70.0, 4: 300.0}, epoch_end_times={0: 30.0, 1: 70.0, 3: 300.0}
    )
    assert [metrics.epoch_time(epoch) for epoch in range(6)] == [20.0, 40.0, None, None, None, None]
    assert metrics.average_epoch_time() == 30.0  # of complete epochs only


def test_steps_per_second(clock):
    metrics = RuntimeMetrics(total_steps=30)
    assert metrics.steps_per_second() is None  # no time has passed
    clock.now_s += 10
    assert metrics.steps_per_second() == 3.0
    metrics.total_steps = 0
    assert metrics.steps_per_second() is None


def test_to_dict_contains_all_known_values(clock):
    metrics = RuntimeMetrics(
        start_time=4_900.0,
        epoch_start_times={0: 4_900.0, 1: 4_940.0},
        epoch_end_times={0: 4_940.0},
        peak_cpu_memory=7 * MIB,
        peak_gpu_memory={1: 2 * MIB, 0: 0},
        gpu_peak_memory_source={0: "allocator_high_water_mark", 1: "sampled"},
        total_steps=50,
    )
    assert metrics.to_dict() == {
        "total_time_seconds": 100.0,
        "total_steps": 50,
        "steps_per_second": 0.5,
        "epochs_completed": 1,
        "peak_cpu_memory_bytes": 7 * MIB,
        "epoch_times": {"epoch_0_seconds": 40.0},
        "average_epoch_time_seconds": 40.0,
        "gpu_memory": {
            "gpu_0_peak_memory_bytes": 0,
            "gpu_0_peak_memory_source": "allocator_high_water_mark",
            "gpu_1_peak_memory_bytes": 2 * MIB,
            "gpu_1_peak_memory_source": "sampled",
        },
    }


def test_epoch_resumed_midway_counts_but_is_not_timed(clock):
    figures = RuntimeMetrics(epoch_end_times={3: 5_000.0}).to_dict()
    assert figures["epochs_completed"] == 1
    assert not {"epoch_times", "average_epoch_time_seconds"} & set(figures)


# RuntimeMetricsTracker -----------------------------------------------------------------------------------------------


def test_epochs_are_timed(clock, load_torch):
    load_torch()
    tracker = RuntimeMetricsTracker()
    for epoch, took_s in ((2, 8.0), (3, 12.0), (4, None)):
        tracker.start_epoch(epoch)
        assert tracker.metrics.current_epoch == epoch
        if took_s is not None:
            clock.now_s += took_s
            tracker.end_epoch(epoch)
    assert tracker.metrics.to_dict()["epoch_times"] == {"epoch_2_seconds": 8.0, "epoch_3_seconds": 12.0}
    assert tracker.metrics.average_epoch_time() == 10.0
    assert tracker.metrics.epoch_time(4) is None


def test_steps_are_counted_and_memory_sampled_each_100(load_torch):
    device = Accelerator(MIB)
    load_torch(cuda=device)
    tracker = RuntimeMetricsTracker()
    looked = []
    for step in range(1_098, 1_302):
        before = device.num_reads
        tracker.update_step(step)
        looked += [step] * (device.num_reads - before)
    assert looked == [1_100, 1_200, 1_300]
    assert (tracker.metrics.current_step, tracker.metrics.total_steps) == (1_301, 204)
    assert RuntimeMetricsTracker.update_interval == 100


def test_start_of_epoch_samples_memory(load_torch):
    load_torch(xpu=Accelerator(3 * MIB))
    tracker = RuntimeMetricsTracker()
    assert (tracker.cpu_memory, tracker.gpu_memory) == (None, {})
    tracker.start_epoch(0)
    assert tracker.cpu_memory == tracker.metrics.peak_cpu_memory > MIB
    assert tracker.gpu_memory == tracker.metrics.peak_gpu_memory == {0: 3 * MIB}


def test_process_memory_is_real_and_peak_never_falls(load_torch):
    load_torch()
    tracker = RuntimeMetricsTracker()
    before = tracker.get_memory_metrics()
    ballast = bytearray(b"\1") * (256 * MIB)
    during = tracker.get_memory_metrics()
    del ballast
    after = tracker.get_memory_metrics()
    assert set(before) == {"cpu_memory_bytes", "peak_cpu_memory_bytes"}
    assert during["cpu_memory_bytes"] - before["cpu_memory_bytes"] > 128 * MIB
    assert during["peak_cpu_memory_bytes"] == during["cpu_memory_bytes"]
    assert after["cpu_memory_bytes"] < during["cpu_memory_bytes"] - 128 * MIB
    assert after["peak_cpu_memory_bytes"] == during["peak_cpu_memory_bytes"]
    assert after["cpu_memory_bytes"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


@pytest.mark.parametrize("name", ["cuda", "xpu", "npu"])  # torch uses cuda for ROCm
def test_device_peak_is_the_allocators_and_survives_reset(load_torch, name):
    device = Accelerator(2 * MIB, 0)
    load_torch(**{name: device})
    tracker = RuntimeMetricsTracker()
    tracker.update_memory_metrics()
    device.use(90 * MIB, MIB)
    device.use(4 * MIB, 0)
    known = tracker.get_memory_metrics()
    assert (known["gpu_0_memory_bytes"], known["gpu_0_peak_memory_bytes"]) == (4 * MIB, 90 * MIB)
    assert (known["gpu_1_memory_bytes"], known["gpu_1_peak_memory_bytes"]) == (0, MIB)
    device.peaks = [4 * MIB, 0]  # like `reset_peak_memory_stats` of the training code
    known = tracker.get_memory_metrics()
    assert [known[f"gpu_{index}_peak_memory_bytes"] for index in (0, 1)] == [90 * MIB, MIB]
    assert {known[f"gpu_{index}_peak_memory_source"] for index in (0, 1)} == {"allocator_high_water_mark"}


def test_peak_without_counter_is_sampled(load_torch):
    device = Metal(MIB)
    load_torch(mps=device)
    tracker = RuntimeMetricsTracker()
    for device.in_use in (3 * MIB, 2 * MIB):
        tracker.update_gpu_memory_metrics()
    assert tracker.gpu_memory == {0: 2 * MIB}
    assert tracker.metrics.gpu_peaks() == {
        "gpu_0_peak_memory_bytes": 3 * MIB,
        "gpu_0_peak_memory_source": "sampled",
    }
    assert tracker.cpu_memory is None  # only devices were sampled


def test_uninitialized_device_is_not_touched(load_torch):
    load_torch(cuda=Accelerator(is_initialized=False), mps=Metal(9, is_seeded=False), npu=Accelerator(MIB))
    tracker = RuntimeMetricsTracker()
    tracker.update_memory_metrics()
    assert tracker.gpu_memory == {0: MIB}
    load_torch(cuda=Accelerator(is_initialized=False), mps=Metal(9, is_seeded=False))
    tracker.update_memory_metrics()
    assert tracker.gpu_memory == {}
    assert tracker.metrics.peak_gpu_memory == {0: MIB}


@pytest.mark.expects_faults
def test_failing_backend_loses_only_its_own_reading(load_torch):
    load_torch(cuda=Broken(MIB), xpu=Accelerator(5 * MIB))
    tracker = RuntimeMetricsTracker()
    known = tracker.get_memory_metrics()
    assert known["gpu_0_memory_bytes"] == 5 * MIB
    assert known["cpu_memory_bytes"] > MIB
    assert guard.faults == [("reading the memory of cuda", "RuntimeError: the driver is gone")]
    load_torch(cuda=Broken(MIB))
    known = tracker.get_memory_metrics()
    assert "gpu_0_memory_bytes" not in known
    assert known["gpu_0_peak_memory_bytes"] == 5 * MIB


@pytest.mark.expects_faults
def test_unreadable_process_loses_only_its_own_reading(load_torch, monkeypatch):
    def refuse(_process: psutil.Process) -> Any:
        raise psutil.AccessDenied

    load_torch(cuda=Accelerator(MIB))
    seen = RuntimeMetricsTracker()
    before = seen.get_memory_metrics()
    monkeypatch.setattr(psutil.Process, "memory_info", refuse)
    after = seen.get_memory_metrics()
    assert set(before) - set(after) == {"cpu_memory_bytes"}  # the peak is kept
    tracker = RuntimeMetricsTracker()
    assert tracker.get_memory_metrics() == {
        "gpu_0_memory_bytes": MIB,
        "gpu_0_peak_memory_bytes": MIB,
        "gpu_0_peak_memory_source": "allocator_high_water_mark",
    }
    assert "peak_cpu_memory_bytes" not in tracker.metrics.to_dict()
    assert guard.num_faults == 2


def test_torch_is_never_imported(script):
    script("""
        import sys
        from tachograph.usage._metrics import RuntimeMetricsTracker
        assert not {"psutil", "torch"} & set(sys.modules), "importing costs nothing"
        tracker = RuntimeMetricsTracker()
        tracker.update_step(100)
        assert tracker.cpu_memory > 1 << 20
        assert "torch" not in sys.modules
    """).ok()


@pytest.mark.xdist_group("torch")
def test_real_torch_without_initialized_device(script):
    pytest.importorskip("torch")
    script(
        """
        import torch
        from tachograph._base.guard import guard
        from tachograph.usage._metrics import RuntimeMetricsTracker
        guard.strict = True
        known = RuntimeMetricsTracker().get_memory_metrics()
        assert set(known) == {"cpu_memory_bytes", "peak_cpu_memory_bytes"}, known
        assert not torch.cuda.is_initialized() and not torch.xpu.is_initialized()
    """,
        preload="torch",
    ).ok()


def test_real_gpu(script):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    script("""
        import torch
        from tachograph._base.guard import guard
        from tachograph.usage._metrics import RuntimeMetricsTracker
        guard.strict = True
        tracker = RuntimeMetricsTracker()
        tracker.update_memory_metrics()
        assert tracker.gpu_memory == {} and not torch.cuda.is_initialized()
        ballast = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
        del ballast
        torch.zeros(1, device="cuda")
        known = tracker.get_memory_metrics()
        assert known["gpu_0_memory_bytes"] < 1 << 20 < 256 << 20 <= known["gpu_0_peak_memory_bytes"]
        torch.cuda.reset_peak_memory_stats()
        assert tracker.get_memory_metrics()["gpu_0_peak_memory_bytes"] == known["gpu_0_peak_memory_bytes"]
        assert torch.cuda.max_memory_allocated() < 1 << 20, "the counters are not ours to set"
        assert len(tracker.gpu_memory) == torch.cuda.device_count()
    """).ok()
