"""The metrics of training loops, from iterations and phases. No clock, no threads, no records: numbers in, numbers out.

The names and definitions of the job's figures are One Logger's; what is said of a window is said of the iterations
since the update before. Its rates are over the time that passed, without validation and checkpoints; One Logger's
throughput of the job is over the time inside iterations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tachograph.spans._parameters import Parameters
from tachograph.spans._phase_times import PHASES, PhaseTimes

__all__ = ["Job", "Loop", "Stats"]

_SHORTEST_WINDOW_S = 1.0
_LONGEST_WINDOW_S = 10.0
"""A loop that nobody told how often to report does so at least this often, if an iteration ends; at first more often,
so that a process that is killed takes no more than a fiftieth of what its loop has done with it."""

_REPORTS_PER_LOOP = 50

_MOST_DURATIONS = 4096
_MOST_HELD = 64


class Stats:
    """Count, sum and extremes of some durations."""

    __slots__ = ("count", "high_s", "low_s", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.low_s = math.inf
        self.high_s = 0.0

    def add(self, total_s: float, count: int = 1, low_s: float | None = None, high_s: float | None = None) -> None:
        """Take one more, or several by what they come to."""
        self.count += count
        self.total_s += total_s
        self.low_s = min(self.low_s, total_s if low_s is None else low_s)
        self.high_s = max(self.high_s, total_s if high_s is None else high_s)

    def fields(self) -> dict[str, float]:
        """Return them as attributes; none if there is nothing."""
        if not self.count:
            return {}
        return {
            "avg_iteration_time_sec": self.total_s / self.count,
            "min_iteration_time_sec": self.low_s,
            "max_iteration_time_sec": self.high_s,
            "total_iteration_time_sec": self.total_s,
        }


class Job:
    """What all training loops of a process add up to."""

    def __init__(self) -> None:
        self.iterations = Stats()
        self.validation = Stats()
        self.testing = Stats()
        self.completed = 0
        """Iterations that are done, with those of earlier attempts."""
        self.iterations_start = 0
        self.samples_start: int | None = None
        self.num_samples: int | None = None
        self.loop_samples = 0
        """Samples since the latest loop began, whose start is `samples_start`."""
        self.num_tokens: int | None = None
        self.flops: float | None = None
        self.loop_flops = 0.0
        self.flops_start: float | None = None
        self.throughput_low = math.inf
        self.throughput_high = 0.0
        self.phase_s: dict[str, float] = {}
        self.loop_start_s: float | None = None
        self.reported_until_s = -math.inf
        self.first_finish_s: float | None = None
        self.last_finish_s: float | None = None
        self.validated_at = 0
        self.tested_at = 0

    def productive(self) -> dict[str, Any]:
        """Return what a checkpoint of this moment would keep."""
        samples = None
        if self.num_samples is not None:
            samples = (self.samples_start or 0) + self.loop_samples
        tflops = None
        if self.flops is not None:
            tflops = ((self.flops_start or 0.0) + self.loop_flops) / 1e12
        return {
            "productive_train_iterations": self.completed,
            "productive_train_samples": samples,
            "productive_train_iterations_sec": self.iterations.total_s,
            "productive_validation_iterations_sec": self.validation.total_s,
            "productive_train_tflops": tflops,
        }


class Loop:
    """One training loop: adds to its job, and to a window that is reported and begun anew.

    Iterations wait as bare durations until somebody needs to know; then all of them are added up at once.
    """

    def __init__(self, job: Job, start_s: float) -> None:
        self.job = job
        self._loop_start_s = start_s
        self._waiting: list[float] = []
        self._held: dict[object, list[tuple[str, float, float]]] = {}
        self._check_at = 1
        self._begin_window(start_s)

    def begin(self, parameters: Parameters, iterations_start: int | None, samples_start: int | None) -> None:
        """Say where the loop starts; without that it goes on where the one before it ended."""
        job = self.job
        if iterations_start is not None:
            job.iterations_start = job.completed = iterations_start
        else:
            job.iterations_start = job.completed
        batch, flops = parameters.global_batch_size, parameters.flops_to_count
        if samples_start is None and iterations_start is None and job.num_samples is not None:
            samples_start = (job.samples_start or 0) + job.loop_samples
        elif samples_start is None and batch is not None:
            samples_start = job.iterations_start * batch
        job.samples_start = samples_start
        job.flops_start = samples_start * flops if samples_start is not None and flops is not None else None
        job.loop_samples, job.loop_flops = 0, 0.0
        job.loop_start_s = self._start_s
        job.validated_at = job.tested_at = job.completed

    def _begin_window(self, start_s: float) -> None:
        self._start_s = start_s = max(start_s, self.job.reported_until_s)  # no moment is in two windows
        longest_s = (start_s - self._loop_start_s) / _REPORTS_PER_LOOP
        self.deadline_s = start_s + min(_LONGEST_WINDOW_S, max(_SHORTEST_WINDOW_S, longest_s))
        self._sample: list[float] = []
        self._stride = 1
        self._stats = Stats()
        self._num_samples: int | None = None
        self._num_tokens: int | None = None
        self._flops: float | None = None
        self.shares = PhaseTimes(start_s)

    @property
    def num_waiting(self) -> int:
        """Iterations that were not reported yet."""
        return self._stats.count + len(self._waiting)

    @property
    def completed(self) -> int:
        """Iterations that are done, with those of earlier attempts."""
        return self.job.completed + len(self._waiting)

    def hold(self, iteration: object, phase: str, start_s: float, stop_s: float) -> None:
        """Take a phase whose time is counted later.

        Of an iteration that fails, none of the time is training, so its phases wait for how it ends. What belongs to no
        iteration (None) waits for the report: where it ran beside iterations, in another task say, the time is theirs.
        """
        held = self._held.setdefault(iteration, [])
        held.append((phase, start_s, stop_s))
        if len(held) >= _MOST_DURATIONS or len(self._held) > _MOST_HELD:
            self.release(next(iter(self._held)))

    @property
    def holds_phases(self) -> bool:
        """Whether phases of any iteration wait for its end."""
        return len(self._held) > (None in self._held)

    def release(self, iteration: object, *, failed: bool = False) -> None:
        """Count the phases of an iteration that has ended, unless it failed."""
        for phase, start_s, stop_s in self._held.pop(iteration, ()):
            if not failed:
                self.shares.add(phase, start_s, stop_s)

    def release_all(self) -> None:
        """Count everything that waits, what belongs to iterations first."""
        for iteration in sorted(self._held, key=lambda iteration: iteration is None):
            self.release(iteration)

    @property
    def num_before_check(self) -> int:
        """How many more iterations may come before it is worth looking whether a report is due."""
        return self._check_at - len(self._waiting)

    def add(self, durations: list[float], start_s: float, stop_s: float, parameters: Parameters) -> None:
        """Take iterations that were completed one after the other between two moments."""
        self._waiting += durations
        if len(self._waiting) >= _MOST_DURATIONS:
            self.fold(parameters)
        self.shares.add("iteration", start_s, stop_s, sum(durations))
        job = self.job
        job.last_finish_s = stop_s
        if job.first_finish_s is None:
            job.first_finish_s = start_s + durations[0]

    def look_again(self, num_iterations: int) -> None:
        """Look whether a report is due after so many further iterations, or when the window gets too long."""
        self._check_at = len(self._waiting) + num_iterations

    def fold(self, parameters: Parameters, num_samples: int | None = None, num_tokens: int | None = None) -> None:
        """Add up what waits; each iteration has so many samples and tokens, by default what the parameters say."""
        waiting, self._waiting = self._waiting, []
        self._check_at = 1
        if not waiting:
            return
        job, count = self.job, len(waiting)
        job.completed += count
        total_s, low_s, high_s = sum(waiting), min(waiting), max(waiting)
        job.iterations.add(total_s, count, low_s, high_s)
        self._sample += waiting[-self._stats.count % self._stride :: self._stride]
        while len(self._sample) > _MOST_DURATIONS:
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
            job.throughput_low = min(job.throughput_low, per_gpu / high_s)
            job.throughput_high = max(job.throughput_high, per_gpu / low_s)

    def report(self, parameters: Parameters) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what there is to say of the job and of the window, and begin the next window."""
        self.fold(parameters)
        window = self._window(parameters)
        self._end_window()
        return self._job(parameters, window), window

    def _job(self, parameters: Parameters, window: dict[str, Any]) -> dict[str, Any]:
        job = self.job
        stats = job.iterations
        fields: dict[str, Any] = {
            "train_iterations_start": job.iterations_start,
            "current_iteration": job.completed - 1,
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
                "train_throughput_per_gpu_max": job.throughput_high,
                "train_throughput_per_gpu_min": job.throughput_low if math.isfinite(job.throughput_low) else None,
            }
        return fields

    def _window(self, parameters: Parameters) -> dict[str, Any]:
        stats, shares = self._stats, self.shares
        sec = max(0.0, shares.until_s - self._start_s)
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
        # Validation and checkpoints are no training: a window with one in it is not a slower one.
        training_sec = sec - sum(shares.seconds.get(phase, 0.0) for phase in ("checkpoint", "validation", "testing"))
        if training_sec > 0:
            fields |= self._rates(training_sec, parameters)
        return fields | self._phase_shares(sec)

    def report_rest(self) -> dict[str, Any]:
        """Return where the time went of a window in which no iteration was completed, and begin the next."""
        sec = max(0.0, self.shares.until_s - self._start_s)
        fields = {"iterations": 0, "sec": sec, **(self._phase_shares(sec) if sec > 0 else {})}
        self._end_window()
        return fields

    def _end_window(self) -> None:
        """Add what the window says to the job, and begin the next."""
        for phase, seconds in self.shares.seconds.items():
            self.job.phase_s[phase] = self.job.phase_s.get(phase, 0.0) + seconds
        self.job.reported_until_s = max(self.shares.until_s, self._start_s)
        self._begin_window(self.job.reported_until_s)

    def _phase_shares(self, sec: float) -> dict[str, float]:
        seconds = self.shares.seconds
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


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile as the value between its two neighbours in proportion."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
