"""The sections on spans: time in the caller, its growth over a long run, and the same for nv-one-logger."""

from __future__ import annotations

from benchmarks.child import ChildError, measure_in_child
from benchmarks.measure import Spread
from benchmarks.report import Report, time_text
from benchmarks.spans.calls import SPANS
from benchmarks.spans.long_run import NUM_IN_BLOCK
from benchmarks.spans.nv_one_logger import DEFAULT_EVERY, NUM_COMPARED

__all__ = ["measure_spans"]

_BUDGETS_US = {"iteration": 2, "phase": 1.5}
_PEER = "nv-one-logger, with training_iteration()"
_MIN_RATIO = 50
_NUM_RUNS = 3
_FAST_EVERY = 10
_NUM_LONG_RUN = 20_000


def measure_spans(report: Report) -> None:
    """Run all measurements on spans."""
    report.add_section("Spans: time in the caller")
    for name in SPANS:
        _cost(report, name)
    _peer(report)
    report.add_section("Spans: time in the caller over a long run")
    _long_run(report)
    _growth(report)


def _cost(report: Report, name: str) -> None:
    title, limit_us = SPANS[name].title, _BUDGETS_US.get(name)
    try:
        result = measure_in_child("spans.calls", name)
    except ChildError as error:
        report.add_failure(title, error)
        if limit_us is not None:
            report.add_unmeasured(title, error)
        return
    cost = Spread.read(result["cost_ns"])
    budget = ""
    if limit_us is not None:
        budget = report.check_budget(f"{title}, time", cost.median / 1000, limit_us, " µs")
    report.add_row(title, time_text(cost.median), Spread.read(result["ratio"]), "append a tuple", budget=budget)
    spread = f"{time_text(cost.low)}–{time_text(cost.high)}"
    report.add_row("", spread, Spread.read(result["ratio_to_empty"]), "an empty `with`")


def _peer(report: Report) -> None:
    what = "training_iteration(), nv-one-logger relative to ours"
    try:
        result = measure_in_child("spans.nv_one_logger", str(DEFAULT_EVERY), str(NUM_COMPARED))
    except ChildError as error:
        report.add_failure(_PEER, error)
        report.add_unmeasured(what, error)
        return
    theirs = {name: Spread.read(value) for name, value in result["first"].items()}
    budget = report.check_budget(what, theirs["ratio"].median, _MIN_RATIO, "×", at_least=True)
    report.add_row(_PEER, time_text(theirs["cost_ns"].median), theirs["ratio"], "ours, alternating", budget=budget)


def _long_run(report: Report) -> None:
    title = "training_iteration(), a tight loop of 10⁶"
    try:
        runs = [measure_in_child("spans.long_run") for _ in range(_NUM_RUNS)]
    except ChildError as error:
        report.add_failure(title, error)
        return
    num_lost = sum(run["num_lost"] for run in runs)
    report.add_row(title, "", budget=f"{num_lost} record{'' if num_lost == 1 else 's'} lost" if num_lost else "")
    for part in ("first", "last"):
        cost, ratio = (Spread.of(run[f"{part}_{name}"] for run in runs) for name in ("ns", "ratio"))
        report.add_row(f"  the {part} {NUM_IN_BLOCK:,}", time_text(cost.median), ratio, "append a tuple")
    report.add_row("", "", Spread.of(run["last_ratio"] / run["first_ratio"] for run in runs), "the first")
    report.add_row("  memory, from 10⁵ to 10⁶", f"{max(run['growth_mib'] for run in runs):+.1f} MiB")


def _growth(report: Report) -> None:
    title = f"nv-one-logger, the same loop of {_NUM_LONG_RUN:,}"
    try:
        result = measure_in_child("spans.nv_one_logger", str(_FAST_EVERY), str(_NUM_LONG_RUN))
    except ChildError as error:
        report.add_failure(title, error)
        return
    report.add_row(title, "", budget=f"an update every {_FAST_EVERY}")
    first, last = ({name: Spread.read(value) for name, value in result[part].items()} for part in ("first", "last"))
    for part, costs in (("first", first), ("last", last)):
        cost, ratio = time_text(costs["cost_ns"].median), costs["ratio"]
        report.add_row(f"  the {part} {NUM_COMPARED:,}", cost, ratio, "ours, alternating")
    for what, name in (("", "to_floor"), ("  ours at the same time", "ours_to_floor")):
        report.add_row(what, "", last[name].over(first[name].median), "the first")
