"""Groups of runs that agree in some fields, with mean, spread and best of their values.

The usual question is: the same config with several seeds. So ``config`` as a field stands for every key of the config
in which the runs differ, except seeds, devices and keys that do not describe the training, such as names of runs,
paths, hosts and ports.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tachograph.catalog._config_keys import describes_training, is_repeat_key
from tachograph.catalog._direction import direction_of
from tachograph.catalog._row import RunRow
from tachograph.exceptions import ConfigError

__all__ = ["MAX_GROUP_FIELDS", "ColumnSpread", "RunGroup", "best_row", "differing_fields", "group_rows", "value_key"]

MAX_GROUP_FIELDS = 3


class ColumnSpread(msgspec.Struct, frozen=True):
    """The values of a column over the runs of a group."""

    num_values: int
    mean: float | None = None
    spread: float | None = None
    """The standard deviation between runs; None for fewer than two."""
    best: float | None = None
    """The lowest or highest value; None if the name of the column does not tell which is better."""
    best_run: str | None = None


class RunGroup(msgspec.Struct, frozen=True):
    """Runs that agree in some fields."""

    key: dict[str, Any]
    runs: list[str]
    columns: dict[str, ColumnSpread]


def best_row(rows: Iterable[RunRow], field: str) -> RunRow | None:
    """Return the row with the best finite value of a field; None if the direction is unknown or no row has one."""
    direction = direction_of(field)
    if not direction:
        return None
    candidates = [(row, value) for row in rows if (value := _number(row.get(field))) is not None]
    return max(candidates, key=lambda item: direction * item[1])[0] if candidates else None


def differing_fields(rows: Sequence[RunRow], fields: Iterable[str]) -> list[str]:
    """Return the fields in which some rows differ; a missing value differs from any other."""
    return [field for field in fields if _differs(rows, field)]


def _differs(rows: Sequence[RunRow], field: str) -> bool:
    first = value_key(rows[0].get(field)) if rows else None
    return any(value_key(row.get(field)) != first for row in rows)


def group_rows(rows: Sequence[RunRow], fields: Sequence[str], columns: Sequence[str]) -> list[RunGroup]:
    """Return groups of rows that agree in all fields, the largest first.

    Raises:
        ConfigError: if there are more than three fields.
    """
    if len(fields) > MAX_GROUP_FIELDS:
        raise ConfigError(f"runs can be grouped by at most {MAX_GROUP_FIELDS} fields, not {len(fields)}")
    names = list(
        dict.fromkeys(name for field in fields for name in (_config_fields(rows) if field == "config" else [field]))
    )
    members: dict[tuple[Any, ...], list[RunRow]] = {}
    for row in rows:
        members.setdefault(tuple(value_key(row.get(name)) for name in names), []).append(row)
    groups = [
        RunGroup(
            key={name: member_rows[0].get(name) for name in names},
            runs=[row.id for row in member_rows],
            columns={column: _spread(member_rows, column) for column in columns},
        )
        for member_rows in members.values()
    ]
    return sorted(groups, key=lambda group: -len(group.runs))


def _config_fields(rows: Sequence[RunRow]) -> list[str]:
    keys = dict.fromkeys(key for row in rows for key in row.summary.config)
    describing = [f"config.{key}" for key in keys if describes_training(key) and not is_repeat_key(key)]
    return differing_fields(rows, describing)


def _spread(rows: Sequence[RunRow], column: str) -> ColumnSpread:
    values = [value for row in rows if (value := _number(row.get(column))) is not None]
    if not values:
        return ColumnSpread(0)
    best = best_row(rows, column)
    return ColumnSpread(
        num_values=len(values),
        mean=statistics.fmean(values),
        spread=statistics.stdev(values) if len(values) > 1 else None,
        best=None if best is None else _number(best.get(column)),
        best_run=None if best is None else best.id,
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def value_key(value: Any) -> Any:
    """Return a value that can be compared and hashed; NaN equals itself."""
    if isinstance(value, list):
        return tuple(sorted(map(str, value)))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
