"""Keeps the cost of observing a loop below a share of its step time, by sampling less.

Hooks add the time that they take on the training thread to `spent_s`. All iterations are recorded in detail until that
has taken a good part of what the limit allows for a second. By then the cost of a detailed iteration is known, and the
sampling starts well within the limit.

After each window of iterations the governor compares the cost of an iteration with its duration. If the cost exceeds
the limit, half as many iterations are recorded in detail. That at most halves the cost, so their number is doubled
again only when the cost is below half of the limit: it does not swing back and forth. Where sampling saves next to
nothing, because the rest is the price of counting iterations at all, it is taken back.

The detailed iteration is picked at random within each group of `every`. A fixed rhythm could coincide with one of the
loop: with four loader processes, every fourth batch may be slow.

Two kinds of time do not count. The slowest iterations of a window do not, because another thread had the interpreter
lock or the machine was busy; iterations with values, iterations without, and skipped iterations are judged separately.
Neither does a launch that takes longer than usual: a queue of work that is full makes the launching thread wait for the
device, and without us it would wait in its next launch.

Values that the script logs itself are never dropped.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from tachograph._base.guard import guard

__all__ = ["RANK_PHASE_INTERVAL_S", "OverheadGovernor", "timed_callback", "timed_hook"]

_Method = TypeVar("_Method", bound=Callable[..., Any])

_FIRST_PHASES = 4
"""Iterations after which their duration is estimated. Phases are the larger part of the cost."""

_FIRST_ITERATIONS = 16
"""Iterations that are always recorded in detail."""

_LAST_ITERATIONS = 1024
"""Iterations after which the start has ended in any case."""

_FIRST_SHARE = 0.3
"""Recording in detail may take this share of what the limit allows for a second, before the sampling starts."""

_TOLERATED, _TOLERATED_ITERATIONS = 2.0, 128
"""Short runs are complete: as many iterations are recorded in detail if they cost at most so many times the limit."""

_FIRST_LIMIT = 0.7
"""The sampling starts with this share of the limit."""

_WINDOW = 64
"""Iterations between two decisions."""

_MIN_GROUPS = 8
"""Groups of `every` iterations in a window, each with one that is recorded in detail."""

_MIN_WINDOW_S = 1.0
_MAX_EVERY = 128
_MIN_SAVING = 0.9
_RETRY_ABOVE = 1.5
_MAX_SKIP_S = 0.25
_RELAX_BELOW = 0.45
_PHASE_INTERVAL_S = 0.5
"""Seconds between two iterations whose phases are sampled."""

RANK_PHASE_INTERVAL_S = 0.05
"""The same in a job of several ranks, where the phases tell which rank is slow."""

_MIN_LAUNCH_FACTOR = 2.0


class OverheadGovernor:
    """Decides which iterations are recorded in detail; see the module. Without a run, it records all of them."""

    def __init__(self) -> None:
        self._max_overhead = 1.0
        self._on_change: Callable[[int, float], None] = lambda _new_every, _overhead: None
        self.phase_interval_s = _PHASE_INTERVAL_S
        """Seconds between two iterations whose phases are sampled."""
        self.spent_s = 0.0
        """Time that the hooks have taken since the last iteration ended."""
        self.waited_s = 0.0
        """Time within the current hook that it waited for a device."""
        self.every = 1
        """One of every this many iterations is recorded in detail."""
        self._num_started = 0
        """Iterations that have started."""
        self._next_detailed = 0
        """The number of the next iteration whose values are recorded."""
        self._next_phases = 0
        """The number from which on the phases of an iteration are sampled again."""
        self._costs_before_s: list[float] = []
        """The cost of an iteration before each time that the sampling was halved, in the last windows."""
        self._futile_above_s = 0.0
        """Halving the sampling again is worth a try only above this cost."""
        self._step_s = 0.0
        """The usual duration of an iteration; 0 if it is not known yet."""
        self._full_cost_s: float | None = None
        """The cost of an iteration before the sampling started, until the first window has shown what that saves."""
        self._is_starting = True
        """Whether all iterations are recorded in detail because their cost is not known yet."""
        self._last_end_s: float | None = None
        self._window_start_s = 0.0
        self._costs_s: tuple[list[float], list[float]] = ([], [])
        """The costs of this window's iterations: without values, and with values."""
        self._skip_costs_s: list[float] = []
        """The costs of this window's skipped iterations."""
        self._steps_s: list[float] = []
        self._launch_s = float("inf")
        self._has_values = False
        """Whether values were read or recorded since the last iteration ended."""
        # Its own generator: the script may have seeded the shared one.
        self._random = random.Random(0)  # noqa: S311

    def limit(self, max_overhead: float, on_change: Callable[[int, float], None]) -> None:
        """Set the limit.

        Args:
            max_overhead: the limit, as a share of the step time.
            on_change: called when the sampling changes, with the new `every` and the share of the step time that
                recording took before.
        """
        self._max_overhead = max_overhead
        self._on_change = on_change

    def hook(self, operation: str) -> _TimedHook:
        """Guard and time a block: ``with governor.hook("timing a fetch"): ...``."""
        return _TimedHook(self, operation)

    def start_iteration(self) -> tuple[bool, bool]:
        """Return whether to record the values of the iteration that starts now, and whether to sample its phases."""
        number = self._num_started
        self._num_started = number + 1
        if number < self._next_detailed:
            return False, False
        every = self.every
        self._next_detailed = (
            number + 1 if every == 1 else (number // every + 1) * every + self._random.randrange(every)
        )
        samples_phases = number >= self._next_phases
        if samples_phases:
            gap = int(self.phase_interval_s / self._step_s) if self._step_s > 0 else 0
            self._next_phases = number + (self._random.randint(1, 2 * gap - 1) if gap > 1 else 1)
        return True, samples_phases

    @property
    def num_skippable(self) -> int:
        """How many iterations after the current one are not recorded in detail, for a quarter of a second at most."""
        return min(self._next_detailed - self._num_started, int(_MAX_SKIP_S / self._step_s) if self._step_s > 0 else 0)

    def skip(self, steps_s: Sequence[float], costs_s: Sequence[float]) -> None:
        """Account for iterations that were only counted.

        Args:
            steps_s: how long each of them lasted; the first one is the last for which `start_iteration` was called.
            costs_s: how long the hooks took in each of them.
        """
        self._num_started += len(steps_s) - 1
        if self._last_end_s is not None:
            self._steps_s += steps_s
            self._skip_costs_s += costs_s
            self._last_end_s += sum(steps_s)

    def end_iteration(self, now_s: float) -> None:
        """Account for an iteration that has ended."""
        spent_s, self.spent_s = self.spent_s, 0.0
        last_end_s, self._last_end_s = self._last_end_s, now_s
        if last_end_s is None:
            self._window_start_s = now_s
            return
        self._costs_s[self._has_values].append(spent_s)
        self._has_values = False
        self._steps_s.append(now_s - last_end_s)
        if self._is_starting:
            self._estimate(now_s)
            return
        is_long = now_s - self._window_start_s >= _MIN_WINDOW_S
        if is_long and len(self._steps_s) >= max(_WINDOW, _MIN_GROUPS * self.every):
            self._end_window(now_s)

    def values_handled(self) -> None:
        """Count the current iteration as one with values."""
        self._has_values = True

    def read_device(self, launch: Callable[[Any], Any], value: Any) -> Any:
        """Call a function that launches work on a device; count no more than the launch itself."""
        start_s = perf_counter()
        result = launch(value)
        took_s = perf_counter() - start_s
        self._launch_s = min(self._launch_s, took_s)
        self.waited_s += max(0.0, took_s - _MIN_LAUNCH_FACTOR * self._launch_s)
        return result

    def add_hook(self, took_s: float) -> None:
        """Add the time of a hook that ends now."""
        self.spent_s += took_s - self.waited_s
        self.waited_s = 0.0

    def _estimate(self, now_s: float) -> None:
        """Learn the duration and the cost of the first iterations, and start to sample if they cost too much.

        The medians leave out the first launches and allocations.
        """
        num_iterations = len(self._steps_s)
        if num_iterations == _FIRST_PHASES:
            self._step_s = _median(self._steps_s)
        if num_iterations < _FIRST_ITERATIONS or num_iterations & (num_iterations - 1):  # at powers of two
            return
        self._step_s = _median(self._steps_s)
        cost_s = _median(self._costs_s[True] or self._costs_s[False])
        limit_s = self._max_overhead * self._step_s
        has_cost_little = num_iterations * cost_s < _FIRST_SHARE * self._max_overhead * _MIN_WINDOW_S
        if num_iterations < _LAST_ITERATIONS and has_cost_little:
            return
        if cost_s <= _TOLERATED * limit_s and num_iterations < _TOLERATED_ITERATIONS:
            return
        self._is_starting = False
        self._start_window(now_s)
        self._launch_s = float("inf")
        if self._max_overhead < 1 and cost_s > limit_s:
            every = 2
            while every < _MAX_EVERY and cost_s > every * _FIRST_LIMIT * limit_s:
                every *= 2
            self._full_cost_s = cost_s
            self._set_every(every, cost_s)

    def _start_window(self, now_s: float) -> None:
        self._window_start_s = now_s
        self._costs_s, self._skip_costs_s, self._steps_s = ([], []), [], []

    def _end_window(self, now_s: float) -> None:
        groups_s, steps_s = (*self._costs_s, self._skip_costs_s), self._steps_s
        self._start_window(now_s)
        self._step_s = _median(steps_s)
        cost_s = max(0.0, sum(len(group_s) * _trimmed_mean(group_s) for group_s in groups_s)) / len(steps_s)
        self._decide(cost_s, self._max_overhead * self._step_s if self._max_overhead < 1 else float("inf"))

    def _decide(self, cost_s: float, limit_s: float) -> None:
        """Change the sampling if an iteration costs too much, or so little that more is affordable."""
        costs_s = self._costs_before_s
        full_cost_s, self._full_cost_s = self._full_cost_s, None
        if full_cost_s is not None and cost_s > _MIN_SAVING * full_cost_s:
            self._futile_above_s = _RETRY_ABOVE * cost_s
            self._set_every(1, cost_s)
            return
        if costs_s and cost_s <= _MIN_SAVING * costs_s[-1]:
            self._futile_above_s = 0.0
        if len(costs_s) > 1 and cost_s > _MIN_SAVING * costs_s[-2]:
            self._futile_above_s = _RETRY_ABOVE * cost_s
            costs_s.clear()
            self._set_every(self.every // 4, cost_s)
        elif cost_s > limit_s and self.every < _MAX_EVERY and cost_s > self._futile_above_s:
            costs_s.append(cost_s)
            self._set_every(2 * self.every, cost_s)
        elif cost_s < _RELAX_BELOW * limit_s and self.every > 1:
            self._futile_above_s = 0.0
            costs_s.clear()
            self._set_every(self.every // 2, cost_s)
        else:
            costs_s.clear()

    def _set_every(self, every: int, cost_s: float) -> None:
        self.every = every
        self._on_change(every, cost_s / self._step_s if self._step_s > 0 else 0.0)


def _median(durations_s: Sequence[float]) -> float:
    return sorted(durations_s)[len(durations_s) // 2]


def _trimmed_mean(costs_s: list[float]) -> float:
    """Return the mean without the slowest eighth, or 0 for no costs."""
    fastest = sorted(costs_s)[: len(costs_s) - len(costs_s) // 8]
    return sum(fastest) / len(fastest) if fastest else 0.0


class _TimedHook:
    __slots__ = ("_governor", "_operation", "_start_s")

    def __init__(self, governor: OverheadGovernor, operation: str) -> None:
        self._governor = governor
        self._operation = operation

    def __enter__(self) -> None:
        self._start_s = perf_counter()

    def __exit__(
        self, _kind: type[BaseException] | None, fault: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        self._governor.add_hook(perf_counter() - self._start_s)
        if fault is None or not isinstance(fault, Exception):
            return False
        guard.report(self._operation, fault)
        return not guard.strict


def timed_hook(operation: str) -> Callable[[_Method], _Method]:
    """Return a decorator that guards a method and adds its time to the `governor` of its object."""

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            start_s = perf_counter()
            try:
                method(self, *args, **kwargs)
            except Exception as fault:
                guard.report(operation, fault)
                if guard.strict:
                    raise
            self.governor.add_hook(perf_counter() - start_s)

        return wrapper  # type: ignore[return-value]

    return decorate


def timed_callback(framework: str) -> Callable[[_Method], _Method]:
    """Return a decorator like `timed_hook` for methods that a framework calls; reports name both."""
    return lambda method: timed_hook(f"{framework} called {method.__name__}")(method)
