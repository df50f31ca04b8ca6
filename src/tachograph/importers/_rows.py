"""Rows of names and values as step records."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["STEP_NAMES", "TIME_NAMES", "records_of"]

STEP_NAMES = ("global_step", "step", "_step", "train/global_step", "iteration", "iter", "steps", "train_step", "batch")
"""Columns that say the step; the first that is there counts."""

TIME_NAMES = ("time", "timestamp", "_timestamp", "wall_time", "Wall time", "datetime", "date")
"""Columns that say when; seconds since the epoch or a date."""

_LONGEST_STEP_S = 86_400.0


def records_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a step record for each row. A row without a step is one after the row before; other texts are left out."""
    last_step, last_time_s, last_timed_step = -1, None, -1
    for row in rows:
        if "event" in row and isinstance(row.get("event"), str) and isinstance(row.get("time"), (int, float)):
            yield dict(row)  # of our own kind
            continue
        given = _first(row, STEP_NAMES)
        step = int(given) if given is not None and math.isfinite(given) else last_step + 1
        record: dict[str, Any] = {"event": "step", "global_step": step}
        time_s = _time(row)
        if time_s is not None:
            record["time"] = time_s
        for name, value in row.items():
            if name not in STEP_NAMES and name not in TIME_NAMES and (number := _number(value)) is not None:
                record[str(name)] = number
        if time_s is not None:
            if last_time_s is not None and step > last_timed_step and 0 < time_s - last_time_s < _LONGEST_STEP_S:
                record.setdefault("sec_per_step", (time_s - last_time_s) / (step - last_timed_step))
            last_time_s, last_timed_step = time_s, step
        last_step = step
        yield record


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        if (number := _number(row.get(name))) is not None:
            return number
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _time(row: Mapping[str, Any]) -> float | None:
    for name in TIME_NAMES:
        value = row.get(name)
        number = _number(value)
        if number is not None and math.isfinite(number):
            return number
        if isinstance(value, str):
            try:
                return datetime.datetime.fromisoformat(value).timestamp()
            except (ValueError, OverflowError):
                continue
    return None
