"""A window of steps: with `log_every` above 1, one step record summarises all steps since the previous one.

Under its own name a metric has its latest value. Where it varied, ``<name>/mean``, ``<name>/min`` and ``<name>/max``
give its range, and ``<name>/nonfinite`` counts the NaN and infinite values, which the other three leave out.
``window_steps`` is the number of steps.

Values are collected as rows and reduced column by column in blocks, because `sum`, `min` and `max` over a tuple cost a
fraction of updating statistics step by step.
"""

from __future__ import annotations

import math
from typing import Any

from tachograph.records import OMIT, ValueProblem, is_array, is_frozen, to_plain

__all__ = ["LATE_ARRAY", "StepWindow"]

LATE_ARRAY = "an array was not read in time; from now on arrays are copied when they are logged"

_FOLD_AT = 256


class StepWindow:
    """Collects steps until one that `log_every` divides, so that runs can be compared step by step."""

    def __init__(self, log_every: int) -> None:
        self.log_every = log_every
        self._due_step: int | None = None
        self._waiting: list[dict[str, Any]] = []
        self._stats: dict[str, _Stats] = {}
        self._latest: dict[str, Any] = {}
        self.problems: list[ValueProblem] = []
        self.saw_array = False
        self.num_logs = 0
        self.num_steps = 0
        self.num_not_finite = 0
        self.last_step = 0
        self.last_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the window has reached the step that ends it."""
        return self.num_logs > 0 and (self._due_step is None or self.last_step >= self._due_step)

    def must_close_before(self, step: int) -> bool:
        """Return whether a step belongs to another window: the due step is complete, or the loop went back."""
        return self.num_logs > 0 and step != self.last_step and (self.is_due or step < self.last_step)

    def add(self, step: int, steady_s: float, metrics: dict[str, Any]) -> None:
        """Add the metrics of a step."""
        if self.num_logs == 0 and self._due_step is not None and step < self._due_step - self.log_every:
            self._due_step = None  # the loop went back, as after loading a checkpoint
        # The due step may have been written before all of its metrics arrived: it was counted then.
        self.num_steps += step != self.last_step or (self._due_step is None and self.num_logs == 0)
        self.num_logs += 1
        self.last_step, self.last_s = step, steady_s
        if self._waiting and (len(self._waiting) >= _FOLD_AT or tuple(self._waiting[0]) != tuple(metrics)):
            self._fold()
        self._waiting.append(metrics)

    def summary(self) -> dict[str, Any]:
        """Return the fields of the window's record."""
        self._fold()
        fields: dict[str, Any] = {"window_steps": self.num_steps}
        for name, value in self._latest.items():
            fields[name] = value
            stats = self._stats.get(name)
            if stats is None:
                continue
            if stats.count and (stats.low != stats.high or (stats.num_not_finite and stats.low != value)):
                fields[f"{name}/mean"] = stats.total / stats.count
                fields[f"{name}/min"] = stats.low
                fields[f"{name}/max"] = stats.high
            if stats.num_not_finite:
                fields[f"{name}/nonfinite"] = stats.num_not_finite
                self.num_not_finite += stats.num_not_finite
        return fields

    def clear(self) -> None:
        """Start the next window."""
        self._due_step = (self.last_step // self.log_every + 1) * self.log_every
        self._stats, self._latest, self.problems = {}, {}, []
        self.num_logs = self.num_steps = self.num_not_finite = 0

    def _fold(self) -> None:
        """Reduce the waiting values column by column, which costs a fraction of doing it step by step."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        for name, column in zip(waiting[0], zip(*(metrics.values() for metrics in waiting), strict=True), strict=True):
            numbers = column if all(map(is_frozen, column)) else self._convert(name, column)
            if not numbers:
                continue
            self._latest[name] = numbers[-1]
            numbers = tuple(value for value in numbers if type(value) is float or type(value) is int)
            if numbers:
                self._stats.setdefault(name, _Stats()).add(numbers)

    def _convert(self, name: str, column: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(map(is_array, column)):  # as in the record builder: missing beats wrong
            self.saw_array = True
            self.problems.append(ValueProblem(name, LATE_ARRAY))
            column = tuple(value for value in column if not is_array(value))
        values = (to_plain(value, name, self.problems) for value in column)
        return tuple(value for value in values if value is not OMIT)


class _Stats:
    __slots__ = ("count", "high", "low", "num_not_finite", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.low = math.inf
        self.high = -math.inf
        self.num_not_finite = 0

    def add(self, numbers: tuple[float, ...]) -> None:
        total = float(sum(numbers))
        if not math.isfinite(total):
            finite = tuple(number for number in numbers if math.isfinite(number))
            self.num_not_finite += len(numbers) - len(finite)
            if not finite:
                return
            numbers, total = finite, float(sum(finite))
        self.count += len(numbers)
        self.total += total
        self.low = min(self.low, *numbers)
        self.high = max(self.high, *numbers)
