"""`wandb.summary`: the last value of every metric, the aggregates that were asked for, and values that were set."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tachograph.records import is_array

__all__ = ["AGGREGATES", "WandbSummary", "copy_value"]

AGGREGATES = ("min", "max", "mean", "first", "last", "best", "none", "copy")


class _Aggregate:
    """Aggregates of one metric."""

    def __init__(self, kinds: tuple[str, ...], goal: str | None) -> None:
        self.kinds = kinds
        self._goal = goal
        self._count = 0
        self._total = 0.0
        self.values: dict[str, Any] = {}

    def add(self, value: Any) -> None:
        """Add a value."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        values = self.values
        if "first" in self.kinds:
            values.setdefault("first", value)
        if "last" in self.kinds:
            values["last"] = value
        if math.isnan(value):
            return
        self._count += 1
        self._total += value
        if "min" in self.kinds:
            values["min"] = min(value, values.get("min", value))
        if "max" in self.kinds:
            values["max"] = max(value, values.get("max", value))
        if "mean" in self.kinds:
            values["mean"] = self._total / self._count
        if "best" in self.kinds:
            choose = max if self._goal == "maximize" else min
            values["best"] = choose(value, values.get("best", value))


class WandbSummary:
    """The summary of a run: ``summary["accuracy"]`` and ``summary.accuracy``."""

    def __init__(
        self,
        values: dict[str, Any],
        on_change: Callable[[dict[str, Any]], None],
        last_step: Callable[[], int],
        start_s: float,
    ) -> None:
        """Start with no values.

        Args:
            values: the last value of each metric, which the run updates.
            on_change: called with values that are set.
            last_step: returns the step of the last row.
            start_s: when the run started.
        """
        self.__dict__.update(_values=values, _on_change=on_change, _last_step=last_step, _start_s=start_s)
        self.__dict__.update(_aggregates={}, _reported_results={})

    def define(self, name: str, kinds: tuple[str, ...], goal: str | None) -> None:
        """Keep aggregates of a metric instead of its last value."""
        self._aggregates[name] = _Aggregate(kinds, goal)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add the values of a row that was logged."""
        self._values.update(row)
        for name, value in row.items() if self._aggregates else ():
            if name in self._aggregates:
                self._aggregates[name].add(value)

    def take_results(self) -> dict[str, Any]:
        """Return the aggregates that changed since the last call; readers could not know them otherwise."""
        results = {name: dict(aggregate.values) for name, aggregate in self._aggregates.items() if aggregate.values}
        new_results = {name: values for name, values in results.items() if self._reported_results.get(name) != values}
        self._reported_results.update(new_results)
        return new_results

    def update(self, d: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Set several values."""
        values = {**(d or {}), **more}
        self._values.update(values)
        for name in values:
            self._aggregates.pop(name, None)
        self._on_change(values)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or a default if it is missing."""
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self) -> Any:
        """Return the names."""
        return self._as_dict().keys()

    def items(self) -> Any:
        """Return names with values."""
        return self._as_dict().items()

    def _as_dict(self) -> dict[str, Any]:
        now_s = time.time()
        now = {"_step": self._last_step(), "_runtime": round(now_s - self._start_s, 3), "_timestamp": now_s}
        hidden_names = {name for name, aggregate in self._aggregates.items() if aggregate.kinds == ("none",)}
        aggregates = {name: dict(aggregate.values) for name, aggregate in self._aggregates.items() if aggregate.values}
        last_values = {name: _number(value) for name, value in self._values.items() if name not in hidden_names}
        return {**last_values, **(now if last_values else {}), **aggregates}

    def __getitem__(self, name: str) -> Any:
        return self._as_dict()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]  # a missing one is a KeyError, as in W&B

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self._as_dict()

    def __iter__(self) -> Iterator[str]:
        return iter(self._as_dict())

    def __repr__(self) -> str:
        return repr(self._as_dict())


def _number(value: Any) -> Any:
    """Return a scalar of a library as a number."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def copy_value(value: Any) -> Any:
    """Return a copy of a tensor or array: its owner may change it, and a loss would keep its graph alive."""
    if hasattr(value, "detach"):
        return value.detach().clone()
    return value.copy() if is_array(value) and hasattr(value, "copy") else value
