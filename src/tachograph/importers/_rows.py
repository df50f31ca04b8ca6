"""Turns rows of names and values into step records."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tachograph.records import RESERVED_FIELDS

__all__ = ["STEP_NAMES", "TIME_NAMES", "field_name", "rows_to_records"]

STEP_NAMES = ("global_step", "step", "_step", "train/global_step", "iteration", "iter", "steps", "train_step", "batch")
"""Names of the column with the step; the first one present is used."""

TIME_NAMES = ("time", "timestamp", "_timestamp", "wall_time", "Wall time", "datetime", "date")
"""Names of the column with the time: seconds since the epoch, or an ISO date."""

_MAX_STEP_S = 86_400.0
_RECORD_FIELDS = RESERVED_FIELDS | {"global_step"}


def field_name(name: str) -> str:
    """Return the name of a metric in a record; some names have a meaning of their own."""
    return f"{name}_" if name in _RECORD_FIELDS else name


def rows_to_records(
    rows: Iterable[Mapping[str, Any]], left_out: Counter[str] | None = None, *, keeps_texts: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a step record for each row.

    A row without a step is one step after the previous row. Where rows have times but no duration, `sec_per_step` is
    computed from the difference.

    Args:
        rows: the rows.
        left_out: counts the values that are not part of a record.
        keeps_texts: whether texts and other values that are not numbers become part of the records.
    """
    last_step, last_time_s, last_timed_step = -1, None, -1
    for row in rows:
        event = row.get("event")
        if isinstance(event, str) and (isinstance(row.get("time"), (int, float)) or event == "start"):
            yield dict(row)  # already a record, as in a copied journal; the first one may have no time
            continue
        row_step = _first_number(row, STEP_NAMES)
        step = int(row_step) if row_step is not None and math.isfinite(row_step) else last_step + 1
        record: dict[str, Any] = {"event": "step", "global_step": step}
        # In the logs of mmengine and mmcv, `time` is the duration of a step, of which `data_time` is a part.
        has_durations = "time" in row and "data_time" in row
        if has_durations and (took_s := _parse_number(row["time"])) is not None:
            record["sec_per_step"] = took_s
        time_s = None if has_durations else _parse_time(row)
        if time_s is not None:
            record["time"] = time_s
        for name, value in row.items():
            if name in STEP_NAMES or name in TIME_NAMES or value is None:
                continue
            if (number := _parse_number(value)) is not None:
                record[field_name(str(name))] = number
            elif keeps_texts:
                record[field_name(str(name))] = value
            elif left_out is not None and not (isinstance(value, str) and not value.strip()):  # an empty cell
                left_out["value that is not a number"] += 1
        if time_s is not None:
            if last_time_s is not None and step > last_timed_step and 0 < time_s - last_time_s < _MAX_STEP_S:
                record.setdefault("sec_per_step", (time_s - last_time_s) / (step - last_timed_step))
            last_time_s, last_timed_step = time_s, step
        last_step = step
        yield record


def _first_number(row: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        if (number := _parse_number(row.get(name))) is not None:
            return number
    return None


def _parse_number(value: Any) -> float | None:
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


def _parse_time(row: Mapping[str, Any]) -> float | None:
    for name in TIME_NAMES:
        value = row.get(name)
        number = _parse_number(value)
        if number is not None and math.isfinite(number):
            return number
        if isinstance(value, str):
            try:
                return datetime.datetime.fromisoformat(value).timestamp()
            except (ValueError, OverflowError):
                continue
    return None
