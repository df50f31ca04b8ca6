"""List all alerts on all logs, to compare two versions of the rules.

`python -m benchmarks.detectors.list_alerts FILE` writes one line per alert record. The records of each run reach the
rules one by one, as from the log of another tool, and in tables of steps, as while a run is being recorded. Synthetic
runs with injected faults are among them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from benchmarks.detectors.data import Record, folder, load, load_small_models
from benchmarks.detectors.faults import FAULTS, records_of, synthetic_bases, with_fault
from benchmarks.detectors.judge import judge

_TABLE_ROWS = (None, 256, 40)
_NUM_BASES = 5


def main() -> int:
    with open(sys.argv[1], "wb") as file:
        for name, records in _runs():
            for table_rows in _TABLE_ROWS:
                file.writelines(_lines(f"{name}, {table_rows} rows", judge(records, table_rows)))
    return 0


def _runs() -> Iterator[tuple[str, list[Record]]]:
    path = folder()
    if path is not None:
        for runs in (load(path).runs, load_small_models(path)):
            for (data_set, number), records in runs.items():
                yield f"{data_set} {number}", records
    for fault in FAULTS:
        for index, base in enumerate(synthetic_bases(is_rl=fault.is_rl)[:_NUM_BASES]):
            yield f"{fault.name} {index}", list(records_of(with_fault(fault, base), base.log_every))


def _lines(name: str, alerts: list[Record]) -> Iterator[bytes]:
    for alert in alerts:
        yield name.encode() + b" " + msgspec.json.encode(alert) + b"\n"


if __name__ == "__main__":
    sys.exit(main())
