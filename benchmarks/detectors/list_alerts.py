"""List all alerts on all logs, to compare two versions of the rules.

`python -m benchmarks.detectors.list_alerts FILE` writes one line per alert record. The records of each run reach the
rules one by one, as from the log of another tool, and in tables of steps, as while a run is being recorded. Synthetic
runs with injected faults are among them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec

from benchmarks.detectors.data import Record, folder, load, load_small_models
from benchmarks.detectors.faults import FAULTS, records_of, synthetic_bases, with_fault
from tachograph.diagnostics import RuleEngine

_TABLE_SIZES = (256, 40)
_NUM_BASES = 5


def main() -> int:
    with open(sys.argv[1], "wb") as file:
        for name, records in _runs():
            singly = [alert for engine in (RuleEngine(),) for record in records for alert in engine.observe(record)]
            file.writelines(_lines(f"{name}, singly", singly))
            for size in _TABLE_SIZES:
                file.writelines(_lines(f"{name}, tables of {size}", _observe_tables(records, size)))
    return 0


def _runs() -> Iterator[tuple[str, list[Record]]]:
    path = folder()
    if path is not None:
        for runs in (load(path).runs, load_small_models(path)):
            for (data_set, number), records in runs.items():
                timed = [{"time": float(index), **record} for index, record in enumerate(records)]
                yield f"{data_set} {number}", timed
    for fault in FAULTS:
        for number, base in enumerate(synthetic_bases(is_rl=fault.is_rl)[:_NUM_BASES]):
            yield f"{fault.name} {number}", list(records_of(with_fault(fault, base), base.log_every))


def _observe_tables(records: Iterable[Record], size: int) -> list[Record]:
    engine = RuleEngine()
    alerts: list[Record] = []
    for names, group in groupby(records, key=tuple):
        rows = list(group)
        if rows[0]["event"] != "step":
            for record in rows:
                alerts += engine.observe(record)
            continue
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            columns: list[list[Any]] = [[row[name] for row in part] for name in names if name != "event"]
            alerts += engine.observe_steps(tuple(name for name in names if name != "event"), columns)
    return alerts


def _lines(name: str, alerts: list[Record]) -> Iterator[bytes]:
    for alert in alerts:
        yield name.encode() + b" " + msgspec.json.encode(alert) + b"\n"


if __name__ == "__main__":
    sys.exit(main())
