"""The metrics of training loops, computed from iterations and phases. No clock, no threads, no records.

The names and definitions of the job's figures are One Logger's. A window covers the iterations since the previous
update. Its rates are over the elapsed time without validation and checkpoints; One Logger's throughput of the job is
over the time inside iterations.

Adding an iteration only appends its duration to a list. The list is folded into the statistics when they are
read, because `sum`, `min` and `max` over a list cost a fraction of updating counters per iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tachograph.spans._parameters import Parameters
from tachograph.spans._phase_times import PHASES, PhaseTimes
from tachograph.spans._rank_windows import RankWindows

__all__ = ["DurationStats", "JobTotals", "LoopProgress"]

_MIN_WINDOW_S = 1.0
_MAX_WINDOW_S = 10.0
"""Without an interval, a loop reports at least this often; at first more often, so that a killed process loses at most
a fiftieth of its work."""

_REPORTS_PER_LOOP = 50

_MAX_DURATIONS = 4096
_MAX_PENDING_ITERATIONS = 64


class DurationStats:
    """Count, sum and extremes of durations."""

    __slots__ = ("count", "high_s", "low_s", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.low_s = math.inf
        self.high_s = 0.0

    def add(self, total_s: float, count: int = 1, low_s: float | None = None, high_s: float | None = None) -> None:
        """Add one duration, or several by their statistics."""
        self.count += count
        self.total_s += total_s
        self.low_s = min(self.low_s, total_s if low_s is None else low_s)
        self.high_s = max(self.high_s, total_s if high_s is None else high_s)

    def fields(self) -> dict[str, float]:
        """Return the statistics as attributes; empty if there are no durations."""
        if not self.count:
            return {}
        return {
            "avg_iteration_time_sec": self.total_s / self.count,
            "min_iteration_time_sec": self.low_s,
            "max_iteration_time_sec": self.high_s,
            "total_iteration_time_sec": self.total_s,
        }


class JobTotals:
    """The totals of all training loops of a process."""

    def __init__(self) -> None:
        self.iterations = DurationStats()
        self.validation = DurationStats()
        self.testing = DurationStats()
        self.num_completed = 0
        """Completed iterations, including iterations of earlier attempts."""
        self.iterations_start = 0
        self.samples_start: int | None = None
        self.num_samples: int | None = None
        self.loop_samples = 0
        """Samples since the last loop started, at `samples_start`."""
        self.num_tokens: int | None = None
        self.flops: float | None = None
        self.loop_flops = 0.0
        self.flops_start: float | None = None
        self.tflops_per_gpu_low = math.inf
        self.tflops_per_gpu_high = 0.0
        self.phase_s: dict[str, float] = {}
        self.loop_start_s: float | None = None
        self.reported_until_s = -math.inf
        self.first_finish_s: float | None = None
        self.last_finish_s: float | None = None
        self.num_completed_at_validation = 0
        self.num_completed_at_testing = 0

    def checkpoint_progress(self, parameters: Parameters) -> dict[str, Any]:
        """Return the progress that a checkpoint taken now would keep, also before the first iteration."""
        samples = None
        if self.num_samples is not None or parameters.global_batch_size is not None:
            samples = (self.samples_start or 0) + self.loop_samples
        tflops = None
        if self.flops is not None or (samples is not None and parameters.flops_to_count is not None):
            tflops = ((self.flops_start or 0.0) + self.loop_flops) / 1e12
        return {
            "productive_train_iterations": self.num_completed,
            "productive_train_samples": samples,
            "productive_train_iterations_sec": self.iterations.total_s,
            "productive_validation_iterations_sec": self.validation.total_s,
            "productive_train_tflops": tflops,
        }


class LoopProgress:
    """The progress of one training loop: adds to the totals of the job and to the current window."""

    def __init__(self, job: JobTotals, start_s: float) -> None:
        self.job = job
        self._loop_start_s = start_s
        self._durations: list[float] = []
        self._pending_phases: dict[object, list[tuple[str, float, float]]] = {}
        self._num_durations_at_check = 1
        self._share_by_phase: dict[str, float] = {}
        """The shares of the phases in the last sampled iterations, without the time that they waited for data."""
        self._data_share: float | None = None
        """The share of the time that the last observed iterations waited for data; None if none was observed."""
        self.rank_windows: RankWindows | None = None
        """The windows of this rank; None in a job of one process."""
        self._start_window(start_s)

    def start(self, parameters: Parameters, iterations_start: int | None, samples_start: int | None) -> None:
        """Set where the loop starts; without a start, it continues where the previous loop stopped."""
        job = self.job
        if iterations_start is not None:
            job.iterations_start = job.num_completed = iterations_start
        else:
            job.iterations_start = job.num_completed
        batch, flops = parameters.global_batch_size, parameters.flops_to_count
        if samples_start is None and iterations_start is None and job.num_samples is not None:
            samples_start = (job.samples_start or 0) + job.loop_samples
        elif samples_start is None and batch is not None:
            samples_start = job.iterations_start * batch
        job.samples_start = samples_start
        job.flops_start = samples_start * flops if samples_start is not None and flops is not None else None
        job.loop_samples, job.loop_flops = 0, 0.0
        job.loop_start_s = self._start_s
        job.num_completed_at_validation = job.num_completed_at_testing = job.num_completed

    def _start_window(self, start_s: float) -> None:
        self._start_s = start_s = max(start_s, self.job.reported_until_s)  # windows do not overlap
        longest_s = (start_s - self._loop_start_s) / _REPORTS_PER_LOOP
        self.deadline_s = start_s + min(_MAX_WINDOW_S, max(_MIN_WINDOW_S, longest_s))
        self._sample: list[float] = []
        self._stride = 1
        self._stats = DurationStats()
        self._num_samples: int | None = None
        self._num_tokens: int | None = None
        self._flops: float | None = None
        self.phases = PhaseTimes(start_s)
        self._data_s = self._observed_s = 0.0
        self._sampled_s = 0.0
        self._sampled_phase_s: dict[str, float] = {}

    @property
    def num_unreported(self) -> int:
        """The number of iterations since the last report."""
        return self._stats.count + len(self._durations)

    @property
    def num_completed(self) -> int:
        """Completed iterations, including iterations of earlier attempts."""
        return self.job.num_completed + len(self._durations)

    def hold(self, iteration: object, phase: str, start_s: float, stop_s: float) -> None:
        """Hold back a phase until it is known how to count it.

        The time of a failed iteration is not training, so its phases wait for its outcome. A phase outside iterations
        (None) waits for the report: where it ran concurrently with iterations, the time belongs to them.
        """
        phases = self._pending_phases.setdefault(iteration, [])
        phases.append((phase, start_s, stop_s))
        if iteration is None and phase == "data" and self.rank_windows is not None:
            self.rank_windows.add_outer_data(stop_s - start_s)
        if len(phases) >= _MAX_DURATIONS or len(self._pending_phases) > _MAX_PENDING_ITERATIONS:
            self.release(next(iter(self._pending_phases)))

    @property
    def holds_phases(self) -> bool:
        """Whether phases of an iteration are held back."""
        return len(self._pending_phases) > (None in self._pending_phases)

    def release(self, iteration: object, *, has_failed: bool = False) -> dict[str, float]:
        """Count the phases of an iteration that has stopped, or drop them if it failed; return their seconds."""
        seconds: dict[str, float] = {}
        for phase, start_s, stop_s in self._pending_phases.pop(iteration, ()):
            if not has_failed:
                self.phases.add(phase, start_s, stop_s)
                seconds[phase] = seconds.get(phase, 0.0) + stop_s - start_s
        return seconds

    def release_all(self) -> None:
        """Count all phases that are held back, phases of iterations first."""
        for iteration in sorted(self._pending_phases, key=lambda iteration: iteration is None):
            self.release(iteration)

    def add_data_wait(self, data_s: float, duration_s: float) -> None:
        """Add the time that an observed iteration waited for data.

        Args:
            data_s: how long it waited.
            duration_s: how long it took in total.
        """
        self._data_s += data_s
        self._observed_s += duration_s

    def add_phase_sample(self, busy_s: float, shares: Iterable[tuple[str, float]]) -> None:
        """Add the phases of a sampled iteration.

        Args:
            busy_s: the duration of the iteration without the time in which it waited for data.
            shares: phases, each with its share of that duration.
        """
        self._sampled_s += busy_s
        for phase, share in shares:
            self._sampled_phase_s[phase] = self._sampled_phase_s.get(phase, 0.0) + share * busy_s

    def _split_iterations(self) -> None:
        """Divide the time inside iterations among their phases, as in the sampled iterations."""
        seconds = self.phases.seconds
        if self._sampled_s > 0:
            self._share_by_phase = {
                phase: sampled_s / self._sampled_s for phase, sampled_s in self._sampled_phase_s.items()
            }
        if self._observed_s > 0:
            self._data_share = min(1.0, self._data_s / self._observed_s)
        if self._data_share is None or "iteration" not in seconds:
            return  # no integration observes this loop; its phases, if any, were recorded one by one
        data_s = self._data_share * seconds["iteration"]
        busy_s = seconds["iteration"] - data_s
        if data_s > 0:
            seconds["data"] = seconds.get("data", 0.0) + data_s
        for phase, share in self._share_by_phase.items():
            seconds[phase] = seconds.get(phase, 0.0) + share * busy_s
        seconds["iteration"] = max(0.0, busy_s * (1 - sum(self._share_by_phase.values())))

    @property
    def num_before_check(self) -> int:
        """How many more iterations to add before checking whether a report is due or a window is complete."""
        num_before = self._num_durations_at_check - len(self._durations)
        return num_before if self.rank_windows is None else min(num_before, self.rank_windows.num_remaining)

    def add(self, durations: list[float], start_s: float, stop_s: float, parameters: Parameters) -> None:
        """Add consecutive iterations that completed between two times."""
        self._durations += durations
        if len(self._durations) >= _MAX_DURATIONS:
            self.fold(parameters)
        self.phases.add("iteration", start_s, stop_s, sum(durations))
        job = self.job
        job.last_finish_s = stop_s
        if job.first_finish_s is None:
            job.first_finish_s = start_s + durations[0]

    def check_after(self, num_iterations: int) -> None:
        """Set after how many further iterations to check whether a report is due."""
        self._num_durations_at_check = len(self._durations) + num_iterations

    def fold(self, parameters: Parameters, num_samples: int | None = None, num_tokens: int | None = None) -> None:
        """Fold the collected durations into the statistics.

        Args:
            parameters: the current parameters of the job.
            num_samples: samples per iteration; by default the global batch size.
            num_tokens: tokens per iteration; by default samples times sequence length.
        """
        durations, self._durations = self._durations, []
        self._num_durations_at_check = 1
        if not durations:
            return
        job, count = self.job, len(durations)
        job.num_completed += count
        total_s, low_s, high_s = sum(durations), min(durations), max(durations)
        job.iterations.add(total_s, count, low_s, high_s)
        self._sample += durations[-self._stats.count % self._stride :: self._stride]
        while len(self._sample) > _MAX_DURATIONS:
            self._sample = self._sample[::2]
            self._stride *= 2
        self._stats.add(total_s, count, low_s, high_s)
        if num_samples is None:
            num_samples = parameters.global_batch_size
        if num_tokens is None and num_samples is not None and parameters.seq_length is not None:
            num_tokens = num_samples * parameters.seq_length
        if num_tokens is not None:
            job.num_tokens = (job.num_tokens or 0) + count * num_tokens
            self._num_tokens = (self._num_tokens or 0) + count * num_tokens
        if num_samples is None:
            return
        job.num_samples = (job.num_samples or 0) + count * num_samples
        job.loop_samples += count * num_samples
        self._num_samples = (self._num_samples or 0) + count * num_samples
        if parameters.flops_to_count is None:
            return
        flops = num_samples * parameters.flops_to_count
        job.flops = (job.flops or 0.0) + count * flops
        job.loop_flops += count * flops
        self._flops = (self._flops or 0.0) + count * flops
        if low_s > 0:
            per_gpu = flops / (1e12 * parameters.world_size)
            job.tflops_per_gpu_low = min(job.tflops_per_gpu_low, per_gpu / high_s)
            job.tflops_per_gpu_high = max(job.tflops_per_gpu_high, per_gpu / low_s)

    def report(self, parameters: Parameters) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the figures of the job and of the window, and start the next window."""
        self.fold(parameters)
        self._split_iterations()
        window = self._window(parameters)
        self._end_window()
        return self._job(parameters, window), window

    def _job(self, parameters: Parameters, window: dict[str, Any]) -> dict[str, Any]:
        job = self.job
        stats = job.iterations
        fields: dict[str, Any] = {
            "train_iterations_start": job.iterations_start,
            "current_iteration": job.num_completed - 1,
            "num_iterations": stats.count,
            "train_samples_start": job.samples_start,
            "num_train_samples": job.num_samples,
            "interval": window["iterations"],
            **stats.fields(),
            "train_tokens": job.num_tokens,
        }
        for name, phase in (("forward", "forward"), ("backward", "backward"), ("dataloader", "data")):
            if phase in job.phase_s:
                fields[f"avg_{name}_time_sec"] = job.phase_s[phase] / stats.count
        if job.num_samples is not None:
            fields["avg_batch_size"] = round(job.num_samples / stats.count)
        if job.num_tokens is not None and stats.total_s > 0:
            fields["avg_tokens_per_second"] = job.num_tokens / stats.total_s
        if job.flops is not None and stats.total_s > 0:
            throughput = job.flops / (stats.total_s * 1e12 * parameters.world_size)
            fields |= {
                "total_flops": round(job.flops),
                "completed_floating_point_operations_overall": round((job.flops_start or 0.0) + job.loop_flops),
                "avg_tflops": throughput * parameters.world_size,
                "train_throughput_per_gpu": throughput,
                "train_throughput_per_gpu_max": job.tflops_per_gpu_high,
                "train_throughput_per_gpu_min": job.tflops_per_gpu_low
                if math.isfinite(job.tflops_per_gpu_low)
                else None,
            }
        return fields

    def _window(self, parameters: Parameters) -> dict[str, Any]:
        stats, phases = self._stats, self.phases
        sec = max(0.0, phases.until_s - self._start_s)
        sample = sorted(self._sample)
        fields: dict[str, Any] = {
            "iterations": stats.count,
            "sec": sec,
            "iteration_sec_mean": stats.total_s / stats.count,
            "iteration_sec_min": stats.low_s,
            "iteration_sec_max": stats.high_s,
            "iteration_sec_p50": _quantile(sample, 0.5),
            "iteration_sec_p95": _quantile(sample, 0.95),
        }
        if sec <= 0:
            return fields
        # Validation and checkpoints are not training: a window that contains one is not slower.
        training_sec = sec - sum(phases.seconds.get(phase, 0.0) for phase in ("checkpoint", "validation", "testing"))
        if training_sec > 0:
            fields |= self._rates(training_sec, parameters)
        return fields | self._phase_shares(sec)

    def report_idle(self) -> dict[str, Any]:
        """Return the phase times of a window in which no iteration completed, and start the next window."""
        sec = max(0.0, self.phases.until_s - self._start_s)
        fields = {"iterations": 0, "sec": sec, **(self._phase_shares(sec) if sec > 0 else {})}
        self._end_window()
        return fields

    def _end_window(self) -> None:
        """Add the window to the job, and start the next."""
        for phase, seconds in self.phases.seconds.items():
            self.job.phase_s[phase] = self.job.phase_s.get(phase, 0.0) + seconds
        self.job.reported_until_s = max(self.phases.until_s, self._start_s)
        self._start_window(self.job.reported_until_s)

    def _phase_shares(self, sec: float) -> dict[str, float]:
        seconds = self.phases.seconds
        fields = {f"share_{phase}": seconds[phase] / sec for phase in PHASES if phase in seconds}
        fields["share_other"] = max(0.0, 1.0 - sum(seconds.values()) / sec)
        return fields

    def _rates(self, sec: float, parameters: Parameters) -> dict[str, float]:
        rates: dict[str, float] = {}
        if self._num_samples is not None:
            rates["samples_per_sec"] = self._num_samples / sec
        if self._num_tokens is not None:
            rates["tokens_per_sec"] = self._num_tokens / sec
        if self._flops is not None:
            rates["tflops_per_gpu"] = self._flops / (sec * 1e12 * parameters.world_size)
            if parameters.peak_tflops_per_gpu is not None:
                rates["mfu"] = rates["tflops_per_gpu"] / parameters.peak_tflops_per_gpu
        return rates


def _quantile(sorted_values: Sequence[float], share: float) -> float:
    """Return a quantile, interpolated between its two neighbours."""
    position = share * (len(sorted_values) - 1)
    below = math.floor(position)
    above = min(below + 1, len(sorted_values) - 1)
    return sorted_values[below] + (sorted_values[above] - sorted_values[below]) * (position - below)
