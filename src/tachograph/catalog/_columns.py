"""Facts about a column of a table over all of its rows.

A folder may have 10,000 runs, and a dashboard asks for columns again whenever it scrolls or a run changes. The row of
a run is the same object while nothing about it changes. So facts about a column are kept as long as no row changes,
and otherwise only the values of other rows are read again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any, NamedTuple

from tachograph.catalog._direction import direction_of
from tachograph.catalog._groups import value_key
from tachograph.catalog._row import FACTS, FactKind, RunRow, reader_of, result_direction, step_value_of

__all__ = ["ColumnFacts", "ColumnFactsCache", "kind_of_value"]


class ColumnFacts(NamedTuple):
    """The kind, best row and range of a column over all rows."""

    kind: FactKind
    best: str | None
    """The row with the best finite value; None if the direction is unknown or there is only one row."""
    differs: bool
    low: float | None
    """The lowest finite number."""
    high: float | None
    direction: int
    """-1 if lower values are better, 1 if higher ones are, 0 if unknown."""


class _Columns:
    """The values and facts of columns of some rows."""

    def __init__(self, rows: list[RunRow], previous: _Columns | None) -> None:
        self.rows = rows
        self._values: dict[str, list[Any]] = {}
        self._facts: dict[str, ColumnFacts] = {}
        self._previous = previous
        self._previous_indices: list[int | None] = []
        """For each row, where the previous rows have the same one."""
        if previous is not None:
            previous._previous = None
            index_of_row = {id(row): index for index, row in enumerate(previous.rows)}
            self._previous_indices = [index_of_row.get(id(row)) for row in rows]

    def facts(self, field: str) -> ColumnFacts:
        """Return the facts of a column."""
        facts = self._facts.get(field)
        if facts is None:
            values = self._read(field)
            facts = _column_facts(self.rows, field, values)
            if step_value_of(field) is None:  # those are added to a row later
                self._values[field], self._facts[field] = values, facts
        return facts

    def _read(self, field: str) -> list[Any]:
        read_value = reader_of(field)
        previous = self._previous  # another thread may clear it
        previous_values = None if previous is None else previous._values.get(field)
        if previous_values is None:
            return [read_value(row) for row in self.rows]
        return [
            read_value(row) if index is None else previous_values[index]
            for row, index in zip(self.rows, self._previous_indices, strict=True)
        ]


class ColumnFactsCache:
    """Facts about columns of the rows that were asked for last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns = _Columns([], None)

    def get(self, rows: list[RunRow], fields: Iterable[str]) -> list[ColumnFacts]:
        """Return facts about columns of rows."""
        with self._lock:
            if rows != self._columns.rows:  # compares identities
                self._columns = _Columns(rows, self._columns)
            columns = self._columns
        return [columns.facts(field) for field in fields]


def _direction(rows: Sequence[RunRow], field: str) -> int:
    if field != "result":
        return direction_of(field)
    directions = {result_direction(name) for row in rows if (name := row.result_name) is not None}
    return directions.pop() if len(directions) == 1 else 0  # losses and rewards have no common order


def _column_facts(rows: Sequence[RunRow], field: str, values: Sequence[Any]) -> ColumnFacts:
    if set(map(type, values)) <= {int, float, NoneType} and _is_finite(values):
        return _number_facts(rows, field, values)
    numbers = [
        (float(value), row)
        for value, row in zip(values, rows, strict=True)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]
    example = next((value for value in values if value is not None), None)
    direction = _direction(rows, field)
    best = max(numbers, key=lambda item: direction * item[0])[1].id if numbers and direction and len(rows) > 1 else None
    return ColumnFacts(
        kind=FACTS[field].kind if field in FACTS else kind_of_value(example),
        best=best,
        differs=len(set(map(value_key, values))) > 1,
        low=min((value for value, _ in numbers), default=None),
        high=max((value for value, _ in numbers), default=None),
        direction=direction,
    )


def _is_finite(values: Sequence[float | None]) -> bool:
    try:
        return math.isfinite(math.fsum(filter(None, values)))
    except (OverflowError, ValueError):
        return False


def _number_facts(rows: Sequence[RunRow], field: str, values: Sequence[float | None]) -> ColumnFacts:
    """Return the facts of a column of finite numbers, the usual case, in a fraction of the time."""
    distinct = set(values)
    numbers = distinct - {None}
    low, high = (min(numbers), max(numbers)) if numbers else (None, None)  # type: ignore[type-var]
    direction = _direction(rows, field)
    best = low if direction < 0 else high if direction else None
    return ColumnFacts(
        kind=FACTS[field].kind if field in FACTS else "number" if numbers else "text",
        best=rows[values.index(best)].id if best is not None and len(rows) > 1 else None,
        differs=len(distinct) > 1,
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        direction=direction,
    )


def kind_of_value(value: Any) -> FactKind:
    """Return the kind of a field that is not a fact, from one of its values."""
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, (int, float)) else "list" if isinstance(value, list) else "text"
