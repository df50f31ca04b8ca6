"""List, filter and sort many ended runs: ``python -m benchmarks.catalog [NUM_RUNS]``.

Everything is compared with the calls of `stat` that any correct listing needs, two per run, in alternating rounds.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.child import temporary_folder
from benchmarks.measure import Spread
from benchmarks.report import Report, time_text
from tachograph.catalog import Catalog, sort_rows
from tachograph.records import encode

_NUM_RUNS = 10_000
_NUM_ROUNDS = 9
_NUM_KEYS = 40
_NUM_METRICS = 10
_NUM_STEPS = 20


def _make_runs(logs: Path, num_runs: int) -> None:
    chance = random.Random(0)
    for number in range(num_runs):
        folder = logs / f"run-{number:05}"
        folder.mkdir()
        config = {f"key{index}": chance.random() for index in range(_NUM_KEYS)}
        records = [{"event": "start", "time": 1e9 + number, "run_id": f"{number:x}", "config": config, "tags": ["a"]}]
        for step in range(_NUM_STEPS):
            metrics = {f"metric{index}": chance.random() for index in range(_NUM_METRICS)}
            records.append({"event": "step", "time": 1e9 + number + step, "global_step": step, **metrics})
        records.append({"event": "end", "time": 1e9 + number + _NUM_STEPS, "status": "finished"})
        (folder / "metrics.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in records))


def _call_stat(logs: Path) -> None:
    for entry in os.scandir(logs):
        if entry.is_dir() and not entry.name.startswith("."):
            os.stat(entry.path + "/metrics.jsonl")  # noqa: PTH116 - a Path costs more than the call
            with contextlib.suppress(OSError):
                os.stat(entry.path + "/annotations")  # noqa: PTH116


def _time_s(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def _main() -> None:
    num_runs = int(sys.argv[1]) if len(sys.argv) > 1 else _NUM_RUNS
    report = Report()
    report.add_section(f"{num_runs:,} ended runs, {_NUM_KEYS} config keys and {_NUM_METRICS} metrics each")
    with temporary_folder() as name:
        logs = Path(name, "logs")
        logs.mkdir()
        _make_runs(logs, num_runs)
        catalog = Catalog(logs)
        brief_s = _time_s(catalog.rows)
        report.add_row("list, no cache", time_text(1e9 * brief_s))
        report.add_row("read all metrics once, no cache", time_text(1e9 * _time_s(lambda: catalog.rows(is_full=True))))
        subjects: dict[str, Callable[[], object]] = {
            "list again": catalog.rows,
            "filter by config and metric": lambda: catalog.select("metric3.min<0.03 config.key1>0.5"),
            "sort by a metric": lambda: sort_rows(catalog.rows(is_full=True), "metric3.mean"),
            "list in a new process, from the index": lambda: Catalog(logs).rows(),
            "list without the index, from summaries": lambda: Catalog(logs, uses_index=False).rows(),
        }
        for title, subject in subjects.items():
            times, ratios = [], []
            for _ in range(_NUM_ROUNDS):
                stat_s = _time_s(lambda: _call_stat(logs))
                times.append(_time_s(subject))
                ratios.append(times[-1] / stat_s)
            ratio = Spread.of(ratios)
            budget = report.check_budget(title, ratio.median, 3, "×") if title == "list again" else ""
            report.add_row(title, time_text(1e9 * Spread.of(times).median), ratio, "stat, twice per run", budget=budget)
    report.print(Console())


if __name__ == "__main__":
    _main()
