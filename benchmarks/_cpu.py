"""The CPU that logging a step costs all threads and child processes, against encoding and writing the same JSON."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks._children import answer
from benchmarks._measure import Burst, Rows, bare_loop, make_rows
from benchmarks._subjects import SUBJECTS, Open
from tachograph.records import decode

__all__: list[str] = []

_PAUSE_S = 0.7
"""Longer than any subject waits before it writes, so that it writes while the loop sleeps."""

_NUM_PACED_BURSTS = 3
_NUM_SUSTAINED_BURSTS = 60


class _Pace:
    """Bursts of steps with pauses in between, or without."""

    def __init__(self, rows: Rows, num_bursts: int, pause_s: float) -> None:
        self._rows = rows
        self._num_bursts = num_bursts
        self._pause_s = pause_s
        self.num_steps = num_bursts * len(rows)
        self.first_step = len(rows)

    def cpu_s(self, opened: Open) -> float:
        """Return the CPU time spent on all bursts, by this process and those it started."""
        children_s = _children_cpu_s()
        start_s = time.process_time()
        for index in range(self._num_bursts):
            opened.burst(self._rows, self.first_step + index * len(self._rows))
            time.sleep(self._pause_s)
        opened.settle()
        own_s = time.process_time() - start_s
        return own_s + _children_cpu_s() - children_s

    def warm_up(self, opened: Open) -> None:
        """Log one burst and let it be written."""
        opened.burst(self._rows, 0)
        opened.settle()
        time.sleep(_PAUSE_S)


def _children_cpu_s() -> float:
    total_s = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            total_s += times.user + times.system
    return total_s


def measure(folder: Path, name: str, pace: str) -> dict[str, Any]:
    """Measure the subject, then its baselines when it is closed, all at the same pace."""
    subject = SUBJECTS[name]
    rows = make_rows(subject.num_calls)
    is_paced = pace == "paced"
    bursts = _Pace(rows, *((_NUM_PACED_BURSTS, _PAUSE_S) if is_paced else (_NUM_SUSTAINED_BURSTS, 0.0)))
    with subject.open(folder) as opened:
        bursts.warm_up(opened)
        start = _size(opened.journal)
        cpu_s = bursts.cpu_s(opened)
        end = _size(opened.journal)
        idle_s = bursts.cpu_s(Open(bare_loop))
    loop_s = bursts.cpu_s(Open(bare_loop))
    if opened.journal:
        records = _records(opened.journal, start, end)
    else:
        records = _recorded(folder, rows, bursts)
    encode_s = bursts.cpu_s(Open(_encode_burst(records, bursts, folder))) - loop_s
    dumps_s = bursts.cpu_s(Open(_dumps_burst(records, bursts, folder))) - loop_s
    num_lost = bursts.num_steps - sum(record["event"] == "step" for record in records)
    return {
        "cost_us": 1e6 * (cpu_s - loop_s) / bursts.num_steps,
        "ratio": (cpu_s - loop_s) / encode_s,
        "ratio_to_json": (cpu_s - loop_s) / dumps_s,
        "ratio_of_json": dumps_s / encode_s,
        "idle_share": (idle_s - loop_s) / (_NUM_PACED_BURSTS * _PAUSE_S) if is_paced else 0.0,
        "num_lost": num_lost,
    }


def _encode_burst(records: list[dict[str, Any]], bursts: _Pace, folder: Path) -> Burst:
    encode = msgspec.json.Encoder().encode
    file = open(folder / "encoded.jsonl", "wb")  # noqa: SIM115

    def burst(rows: Rows, first_step: int) -> None:
        write = file.write
        start = first_step - bursts.first_step
        for record in records[start : start + len(rows)]:
            write(encode(record) + b"\n")
        file.flush()

    return burst


def _dumps_burst(records: list[dict[str, Any]], bursts: _Pace, folder: Path) -> Burst:
    dumps = json.dumps
    file = open(folder / "dumped.jsonl", "w", encoding="utf-8")  # noqa: SIM115

    def burst(rows: Rows, first_step: int) -> None:
        write = file.write
        start = first_step - bursts.first_step
        for record in records[start : start + len(rows)]:
            write(dumps(record) + "\n")
        file.flush()

    return burst


def _size(journal: Path | None) -> int:
    return journal.stat().st_size if journal else 0


def _records(journal: Path, start: int, end: int) -> list[dict[str, Any]]:
    return [decode(line) for line in journal.read_bytes()[start:end].splitlines()]


def _recorded(folder: Path, rows: Rows, bursts: _Pace) -> list[dict[str, Any]]:
    """Return the records tachograph makes of what a peer was given."""
    with SUBJECTS["journal"].open(folder) as opened:
        for first_step in range(0, bursts.num_steps, len(rows)):
            opened.burst(rows, first_step)
            opened.settle()
    assert opened.journal is not None
    records = _records(opened.journal, 0, _size(opened.journal))
    return [record for record in records if record["event"] == "step"]


if __name__ == "__main__":
    answer(measure)
