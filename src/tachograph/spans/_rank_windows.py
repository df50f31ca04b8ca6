"""Cuts the iterations of one rank into windows and summarises each; see `RankWindow`.

The duration of an iteration is the same on all ranks, because each one waits for the slowest. What differs is the work
before that. Data, forward pass and optimizer count as a rank's own work. The backward pass and everything between the
phases may contain waiting, and so may the forward pass if the parameters are sharded; then the own work looks equal on
all ranks, and no rank is called slow. If collectives are timed, the own work is everything outside of them.

Windows end at multiples of their length, counted in iterations, so the windows of all ranks cover the same iterations
without any exchange between them. The length starts at 16 and doubles every 16 windows, until a window lasts ten
seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from tachograph.records import PhaseTime, RankWindow

__all__ = ["RankWindows"]

FIRST_LENGTH = 16
_WINDOWS_PER_LENGTH = 16
_MIN_WINDOW_S = 10.0
_MAX_LENGTH = 1 << 20
_WARM_UP = 5
"""The first iterations of a loop, which load kernels and allocate memory."""

_MIN_SAMPLES = 3
_MAX_SAMPLES = 512
_OWN_PHASES = ("data", "forward", "optimizer")
_PHASES = ("data", "forward", "backward", "optimizer")


class _Sample:
    """Some values of a window: all of them at first, then every second, every fourth, and so on."""

    def __init__(self) -> None:
        self._values = array("d")
        self._stride = 1
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Add a value."""
        if self._num_added % self._stride == 0:
            if len(self._values) >= _MAX_SAMPLES:
                self._values = self._values[::2]
                self._stride *= 2
            self._values.append(value)
        self._num_added += 1

    def summary(self) -> PhaseTime | None:
        """Return median and median absolute deviation; None without values."""
        if not self._values:
            return None
        middle = median(self._values)
        return PhaseTime(middle, median([abs(value - middle) for value in self._values]))


class _OwnTimes:
    """The own work of iterations, and the waiting in them."""

    def __init__(self) -> None:
        self.own = _Sample()
        self.wait = _Sample()
        self.longest_s: float | None = None
        self.longest_iteration: int | None = None

    def add(self, iteration: int, own_s: float, wait_s: float) -> None:
        """Add an iteration."""
        self.own.add(own_s)
        self.wait.add(wait_s)
        if self.longest_s is None or own_s > self.longest_s:
            self.longest_s, self.longest_iteration = own_s, iteration


class RankWindows:
    """The windows of one training loop. Used by the writer thread only.

    Args:
        first_iteration: the number of the next iteration.
    """

    def __init__(self, first_iteration: int) -> None:
        self._next_iteration = first_iteration
        self._length = FIRST_LENGTH
        self._num_left_out = _WARM_UP
        self._has_phases = False
        self._outer_data_s = 0.0
        self.num_collectives = 0
        """The collectives that were called so far, if they are timed."""
        self._start()

    def _start(self) -> None:
        self._num_iterations = 0
        self._total_s = 0.0
        self._durations = _Sample()
        self._left_out = _Sample()
        self._by_phase = {phase: _Sample() for phase in _PHASES}
        self._outside_backward = _OwnTimes()
        self._outside_collectives = _OwnTimes()
        self._num_timed = 0

    @property
    def num_remaining(self) -> int:
        """How many iterations the current window still needs."""
        return self._length - self._next_iteration % self._length if not self.is_complete else 0

    @property
    def is_complete(self) -> bool:
        """Whether the current window has ended. `take` it before more iterations are added."""
        return self._num_iterations > 0 and self._next_iteration % self._length == 0

    def leave_out(self) -> None:
        """Leave out the next iteration, or the current one: it contains more than an iteration."""
        self._num_left_out = max(1, self._num_left_out)

    def add_outer_data(self, data_s: float) -> None:
        """Add time in which the loop waited for data before its next iteration."""
        self._outer_data_s += data_s

    def add(
        self,
        durations: Sequence[float],
        phases: Iterable[tuple[int, Mapping[str, float]]],
        waits: Sequence[float] | None = None,
    ) -> None:
        """Add consecutive iterations, at most `num_remaining` of them.

        Args:
            durations: how long each of them took.
            phases: the index of an iteration among them with the seconds of its phases, where they were measured.
            waits: how long each of them waited in collectives, if that is known.
        """
        num_skipped = min(self._num_left_out, len(durations))
        self._num_left_out -= num_skipped
        outer_s, self._outer_data_s = self._outer_data_s, 0.0
        for duration_s in durations[:num_skipped]:
            self._left_out.add(duration_s)
        outer_by_index = {0: outer_s}
        for index in range(num_skipped, len(durations)):
            duration_s = durations[index] + outer_by_index.get(index, 0.0)
            self._durations.add(duration_s)
            if waits is not None:
                self._num_timed += 1
                wait_s = min(waits[index], durations[index])
                self._outside_collectives.add(self._next_iteration + index, duration_s - wait_s, wait_s)
        self._num_iterations += len(durations) - num_skipped
        self._total_s += sum(durations)
        for index, seconds in phases:
            self._has_phases = self._has_phases or "forward" in seconds or "backward" in seconds
            if index >= num_skipped:
                self._add_phases(
                    self._next_iteration + index, durations[index], seconds, outer_s if index == 0 else 0.0
                )
        self._next_iteration += len(durations)

    def _add_phases(self, iteration: int, duration_s: float, seconds: Mapping[str, float], outer_s: float) -> None:
        own_s = min(duration_s, sum(seconds.get(phase, 0.0) for phase in _OWN_PHASES)) + outer_s  # phases may nest
        for phase, sample in self._by_phase.items():
            if phase in seconds or (phase == "data" and outer_s > 0):
                sample.add(seconds.get(phase, 0.0) + (outer_s if phase == "data" else 0.0))
        if "forward" not in seconds and "backward" not in seconds:
            return  # the rest may contain anything
        self._outside_backward.add(iteration, own_s, max(0.0, duration_s + outer_s - own_s))

    def take(self, *, is_last: bool = False) -> RankWindow | None:
        """End the window and return it; None if it continues, because too little of it was measured.

        Args:
            is_last: whether the loop ends here, in the middle of a window.
        """
        if not self._num_iterations:
            return self._warm_up_window() if is_last else None
        is_timed = self._num_timed == self._num_iterations
        times = self._outside_collectives if is_timed else self._outside_backward
        is_measured = len(times.own) >= _MIN_SAMPLES
        if self._has_phases and not is_measured and not is_last and self._length < _MAX_LENGTH:
            self._length *= 2
            return None
        window = self._summarise(times if is_measured else None, is_timed=is_timed)
        lasts_s = self._total_s / self._num_iterations * self._length
        is_time_to_grow = self._next_iteration % (_WINDOWS_PER_LENGTH * self._length) == 0
        if is_time_to_grow and lasts_s < _MIN_WINDOW_S and self._length < _MAX_LENGTH:
            self._length *= 2
        self._start()
        return window

    def _warm_up_window(self) -> RankWindow | None:
        """Return the window of a loop that ends before an iteration counts, so that their number is known."""
        whole = self._left_out.summary()
        if whole is None:
            return None
        return RankWindow(last_iteration=self._next_iteration - 1, num_iterations=len(self._left_out), own=whole)

    def _summarise(self, times: _OwnTimes | None, *, is_timed: bool) -> RankWindow | None:
        own = self._durations.summary() if times is None else times.own.summary()
        if own is None:
            return None
        phases: dict[str, Any] = {phase: sample.summary() for phase, sample in self._by_phase.items()}
        return RankWindow(
            last_iteration=self._next_iteration - 1,
            num_iterations=self._num_iterations,
            own=own,
            wait=None if times is None else times.wait.summary(),
            longest_own_s=None if times is None else times.longest_s,
            longest_iteration=None if times is None else times.longest_iteration,
            collective=self.num_collectives if is_timed and times is not None else None,
            **phases,
        )
