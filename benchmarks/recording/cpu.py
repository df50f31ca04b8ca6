"""CPU time of logging a step, over all threads and children, compared with encoding and writing the same JSON."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import psutil

from benchmarks.child import run_as_child
from benchmarks.measure import Burst, Rows, Spread, bare_loop, make_rows
from benchmarks.recording.subjects import SUBJECTS
from tachograph.records import decode

__all__: list[str] = []

_REST_S = 0.02


class _Pace(NamedTuple):
    num_rounds: int
    num_bursts: int
    """Bursts in a round."""
    pause_s: float
    """Pause after the bursts of a round: longer than any subject buffers before it writes, or 0."""
    idle_s: float
    """How long the idle subject is measured."""


_PACES = {"paced": _Pace(24, 1, 0.6, 5.0), "few": _Pace(6, 1, 0.6, 1.0), "sustained": _Pace(8, 40, 0.0, 1.0)}


def measure(folder: Path, name: str, pace_name: str) -> dict[str, Any]:
    """Alternate between the subject, the two baselines with the same records, and the bare loop."""
    subject, pace = SUBJECTS[name], _PACES[pace_name]
    rows = make_rows(subject.num_calls)
    num_steps = pace.num_bursts * len(rows)
    costs_us, ratios, json_ratios, num_lost = [], [], [], 0
    with contextlib.ExitStack() as stack:
        encoded = stack.enter_context(open(folder / "encoded.jsonl", "wb"))
        dumped = stack.enter_context(open(folder / "dumped.jsonl", "wb"))
        opened = stack.enter_context(subject.open(folder))
        rest = partial(time.sleep, _REST_S)
        wait = partial(time.sleep, pace.pause_s) if pace.pause_s else opened.wait_until_written
        _log(opened.burst, rows, 0, 1)
        opened.wait_until_written()
        records = [] if opened.journal else _recorded(folder, rows, num_steps)
        for step in range(len(rows), len(rows) + pace.num_rounds * num_steps, num_steps):
            start = opened.journal.stat().st_size if opened.journal else 0
            spent_s = _cpu_s(partial(_log, opened.burst, rows, step, pace.num_bursts), wait)
            if opened.journal:
                records = _records(opened.journal, start)
                num_lost += num_steps - sum(record["event"] == "step" for record in records)
            loop_s = _cpu_s(partial(_log, bare_loop, rows, step, pace.num_bursts), rest)
            encode_s = _cpu_s(partial(_encode, records, encoded), rest) - loop_s
            dumps_s = _cpu_s(partial(_dumps, records, dumped), rest) - loop_s
            costs_us.append(1e6 * (spent_s - loop_s) / num_steps)
            ratios.append((spent_s - loop_s) / encode_s)
            json_ratios.append((spent_s - loop_s) / dumps_s)
        idle_s = _cpu_s(lambda: None, partial(time.sleep, pace.idle_s))
    return {
        "cost_us": Spread.of(costs_us),
        "ratio": Spread.of(ratios),
        "ratio_to_json": Spread.of(json_ratios),
        "idle_percent": 100 * idle_s / pace.idle_s,
        "num_lost": num_lost,
    }


def _log(burst: Burst, rows: Rows, first_step: int, num_bursts: int) -> None:
    for index in range(num_bursts):
        burst(rows, first_step + index * len(rows))


def _encode(records: list[dict[str, Any]], file: BinaryIO) -> None:
    encode, write = msgspec.json.Encoder().encode, file.write
    for record in records:
        write(encode(record) + b"\n")
    file.flush()


def _dumps(records: list[dict[str, Any]], file: BinaryIO) -> None:
    dumps, write = json.dumps, file.write
    for record in records:
        write(dumps(record).encode() + b"\n")
    file.flush()


def _cpu_s(work: Callable[[], None], wait: Callable[[], object]) -> float:
    """Return the CPU time of some work, including other threads and child processes."""
    children_s = _children_cpu_s()
    start_s = time.process_time()
    work()
    wait()
    own_s = time.process_time() - start_s
    return own_s + _children_cpu_s() - children_s


def _children_cpu_s() -> float:
    total_s = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            total_s += times.user + times.system
    return total_s


def _records(journal: Path, start: int) -> list[dict[str, Any]]:
    return [decode(line) for line in journal.read_bytes()[start:].splitlines()]


def _recorded(folder: Path, rows: Rows, num_steps: int) -> list[dict[str, Any]]:
    """Return the records that Tachograph writes for the rows that a peer logs."""
    with SUBJECTS["journal"].open(folder) as opened:
        _log(opened.burst, rows, 0, num_steps // len(rows))
    assert opened.journal is not None
    return [record for record in _records(opened.journal, 0) if record["event"] == "step"]


if __name__ == "__main__":
    run_as_child(measure)
