"""List, filter and sort many ended runs: ``python -m benchmarks.catalog [--runs N] [--peer-runs N]``.

Everything is compared with the calls of `stat` that any correct listing needs, two per run, in alternating rounds. Then
other tools get fewer runs of the same kind, because some need minutes to write them, next to ours with as many.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.catalog.peers import NUM_KEYS, NUM_METRICS, PEERS, make_runs, time_s
from benchmarks.child import ChildError, measure_in_child, temporary_folder
from benchmarks.measure import Spread
from benchmarks.report import Report, time_text
from tachograph._base.clock import SystemClock
from tachograph.catalog import Catalog, describe_fields, sort_rows
from tachograph.journal import LogFolders, RunScan
from tachograph.store import Store

_NUM_ROUNDS = 9
_QUESTIONS = {
    "cold": "read all runs, no cache",
    "new process": "list in a new process",
    "again": "list again",
    "filter": "filter by a metric",
    "sort": "sort by a metric",
}


class _LaterClock(SystemClock):
    """An hour ahead: runs that were just written have rested for long."""

    def wall_s(self) -> float:
        return super().wall_s() + 3_600


def _call_stat(logs: Path) -> None:
    for entry in os.scandir(logs):
        if entry.is_dir() and not entry.name.startswith("."):
            os.stat(entry.path + "/metrics.jsonl")  # noqa: PTH116 - a Path costs more than the call
            with contextlib.suppress(OSError):
                os.stat(entry.path + "/annotations")  # noqa: PTH116


def _measure_ours(report: Report, num_runs: int) -> None:
    report.add_section(f"{num_runs:,} ended runs, {NUM_KEYS} config keys and {NUM_METRICS} metrics each")
    with temporary_folder() as name:
        logs = Path(name, "logs")
        make_runs(logs, num_runs)
        catalog = Catalog(logs)
        report.add_row("list, no cache", time_text(1e9 * time_s(catalog.rows)))
        report.add_row("read all metrics once, no cache", time_text(1e9 * time_s(lambda: catalog.rows(is_full=True))))
        at_step_s = time_s(lambda: catalog.select("metric3@10<0.03"))
        report.add_row("filter by a value at a step, the first time", time_text(1e9 * at_step_s))
        scan = RunScan(LogFolders(logs), _LaterClock())
        store = Store(logs, known_overview=catalog.known_overview, scan=scan)
        polled = Catalog(logs, scan=scan)
        subjects: dict[str, Callable[[], object]] = {
            "list again": catalog.rows,
            "filter by config and metric": lambda: catalog.select("metric3.min<0.03 config.key1>0.5"),
            "filter by a value at a step": lambda: catalog.select("metric3@10<0.03"),
            "sort by a metric": lambda: sort_rows(catalog.rows(is_full=True), "metric3.mean"),
            "list all fields with their values": lambda: describe_fields(catalog.rows(is_full=True)),
            "list in a new process, from the index": lambda: Catalog(logs).rows(),
            "poll of a dashboard, all runs ended long ago": lambda: (store.runs(), polled.rows()),
            "list without the index, from summaries": lambda: Catalog(logs, uses_index=False).rows(),
        }
        for title, subject in subjects.items():
            times, ratios = [], []
            for _ in range(_NUM_ROUNDS):
                stat_s = time_s(lambda: _call_stat(logs))
                times.append(time_s(subject))
                ratios.append(times[-1] / stat_s)
            ratio = Spread.of(ratios)
            budget = report.check_budget(title, ratio.median, 3, "×") if title == "list again" else ""
            report.add_row(title, time_text(1e9 * Spread.of(times).median), ratio, "stat, twice per run", budget=budget)


def _measure_peers(report: Report, num_runs: int) -> None:
    found: dict[str, dict[str, float]] = {}
    for name in PEERS:
        try:
            found[name] = measure_in_child("catalog.peers", name, str(num_runs))
        except ChildError as error:
            report.add_failure(name, error)
    ours = found.get("Tachograph", {})
    for question, title in _QUESTIONS.items():
        report.add_section(f"{title}, {num_runs:,} runs")
        for name, times_s in found.items():
            if question in times_s:
                is_peer = name != "Tachograph" and question in ours
                ratio = Spread.of([times_s[question] / ours[question]]) if is_peer else None
                report.add_row(name, time_text(1e9 * times_s[question]), ratio, "Tachograph" if is_peer else "")


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.catalog")
    parser.add_argument("--runs", type=int, default=10_000, metavar="N", help="number of runs")
    parser.add_argument(
        "--peer-runs", type=int, default=500, metavar="N", help="number of runs for other tools; 0: none"
    )
    given = parser.parse_args()
    report = Report()
    _measure_ours(report, given.runs)
    if given.peer_runs:
        _measure_peers(report, given.peer_runs)
    report.print(Console())


if __name__ == "__main__":
    _main()
