"""A team's server and its trainers: ``python -m benchmarks.remote [--seconds N] [--clients N] [--runs N]``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.child import ChildError, measure_in_child, temporary_folder
from benchmarks.measure import Spread
from benchmarks.remote import load, restart
from benchmarks.report import Report, seconds_text, time_text

__all__: list[str] = []


def _measure_trainer(report: Report, _given: argparse.Namespace) -> None:
    report.add_section("A trainer that sends, mode cloud compared with local")
    found = measure_in_child("remote.trainer")
    call, cpu, sender_us = (Spread.read(found[name]) for name in ("call", "cpu", "sender_us"))
    budget = report.check_budget("log call of a run that is sent", call.median, 1.1, "×")
    report.add_row("log call of 10 scalars", "", call, "mode local", budget=budget)
    budget = report.check_budget("CPU of a trainer that sends", cpu.median, 1.1, "×")
    report.add_row("CPU of the training process", "", cpu, "mode local", budget=budget)
    idle = f"{found['idle_percent']:.2g} % of a core when idle"
    report.add_row("CPU of the sending process, per step", time_text(1e3 * sender_us.median), budget=idle)
    budget = report.check_budget("memory of the sending process", found["sender_mib"], 10, " MiB")
    report.add_row("memory of the sending process (PSS)", f"{found['sender_mib']:.1f} MiB", budget=budget)


def _measure_ingest(report: Report, _given: argparse.Namespace) -> None:
    report.add_section("Receiving, CPU of the server per byte")
    for title, batch_bytes in (("batches of 64 KiB", 64 << 10), ("batches of 1 MiB", 1 << 20)):
        found = measure_in_child("remote.ingest", str(batch_bytes))
        ratio, cost = Spread.read(found["ratio"]), Spread.read(found["ns_per_byte"])
        budget = report.check_budget(f"receiving, {title}", ratio.median, 2, "×")
        measured = f"{cost.median:.1f} ns, {found['mib_per_s']:.0f} MiB/s"
        report.add_row(title, measured, ratio, "a route that inflates and appends", budget=budget)


def _measure_load(report: Report, given: argparse.Namespace) -> None:
    report.add_section(
        f"{given.clients} trainers for {given.seconds:g} s, 10 records/s of 10 values, server on one core"
    )
    with temporary_folder() as folder:
        found = load.measure(Path(folder), str(given.clients), str(given.seconds))
    budget = report.check_budget("95th percentile of the lag", found["p95_s"], 2, " s")
    lags = f"{found['p50_s']:.2f} s, {found['p95_s']:.2f} s, {found['max_s']:.2f} s"
    report.add_row("lag: median, 95th percentile, highest", lags, budget=budget)
    report.add_row("records", f"{found['num_records']}, {found['num_lost']} lost")
    report.add_row("CPU of the server", f"{found['core_percent']:.0f} % of the core")
    growth = report.check_budget("growth of the server's memory", found["end_mib"] / found["start_mib"], 1.1, "×")
    sizes = f"{found['start_mib']:.0f} → {found['end_mib']:.0f} MiB"
    report.add_row("memory of the server (PSS)", sizes, budget=growth)


def _measure_restart(report: Report, given: argparse.Namespace) -> None:
    report.add_section(f"A server with {given.runs} runs")
    with temporary_folder() as folder:
        found = restart.measure(Path(folder), str(given.runs))
    for title, name in (("the dashboard's table", "table"), ("/api/v1/runs", "runs")):
        part = found[name]
        report.add_row(f"first list, {title}, first start", seconds_text([part["first_s"]]))
        again_s = Spread.of(part["again_s"]).median
        budget = report.check_budget(f"first list after a restart, {title}", again_s, 2, " s")
        report.add_row(f"first list, {title}, restarted", seconds_text(part["again_s"]), budget=budget)
        report.add_row(f"memory after it, {title} (PSS)", f"{part['mib']:.0f} MiB")


_PARTS: dict[str, Callable[[Report, argparse.Namespace], None]] = {
    "trainer": _measure_trainer,
    "ingest": _measure_ingest,
    "load": _measure_load,
    "restart": _measure_restart,
}


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(_PARTS)}; all if none is given")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the trainers send")
    parser.add_argument("--clients", type=int, default=200, help="how many trainers send at the same time")
    parser.add_argument("--runs", type=int, default=10_000, help="how many runs a restarted server has")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(_PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    report, console = Report(), Console(stderr=True)
    with console.status("") as status:
        for name in given.parts or _PARTS:
            status.update(f"Measuring {name}; this needs an otherwise idle machine …")
            try:
                _PARTS[name](report, given)
            except ChildError as error:
                report.add_failure(name, error)
                report.add_unmeasured(name, error)
    report.print(Console())


if __name__ == "__main__":
    _main()
