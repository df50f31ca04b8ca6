"""Whether lower or higher values of a field are better."""

from __future__ import annotations

import functools

from tachograph.records import metric_direction

__all__ = ["direction_of"]

_VALUES = {"last", "first", "min", "max", "mean", "median", "tail", "best"}
"""The aggregates that are values of the metric itself."""


@functools.lru_cache(maxsize=10_000)
def direction_of(field: str) -> int:
    """Return -1 if lower values of a field are better, 1 if higher ones are, and 0 if its name does not tell."""
    name, _, aggregate = field.rpartition(".")
    if aggregate in {"at_min", "at_max", "at_best"} or field.startswith(("config.", "git.", "custom.")):
        return 0
    if aggregate == "nonfinite":
        return -1
    return metric_direction(name if name and aggregate in _VALUES else field)
