"""Runs the rules over the records of a run, in tables of steps as the recorder passes them: the alerts are the same."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from tachograph.diagnostics import RuleEngine

__all__ = ["judge"]

_TABLE_ROWS = 1024


def judge(records: Iterable[dict[str, Any]], table_rows: int | None = _TABLE_ROWS) -> list[dict[str, Any]]:
    """Return the alert records of a run.

    Args:
        records: the records in order; without a time, the time of a record is its index.
        table_rows: steps that reach the rules together, at most. With None, each record reaches them on its own.
    """
    engine = RuleEngine()
    timed = ({"time": float(index), **record} for index, record in enumerate(records))
    if table_rows is None:
        return [alert for record in timed for alert in engine.observe(record)]
    alerts: list[dict[str, Any]] = []
    for (event, *_), group in groupby(timed, lambda record: (record["event"], *record)):
        rows = list(group)
        if event != "step":
            alerts += [alert for record in rows for alert in engine.observe(record)]
            continue
        names = tuple(name for name in rows[0] if name != "event")
        for begin in range(0, len(rows), table_rows):
            part = rows[begin : begin + table_rows]
            alerts += engine.observe_steps(names, [[row[name] for row in part] for name in names])
    return alerts
