"""The section on spans: what they cost the caller, whether that grows, and what those of nv-one-logger cost."""

from __future__ import annotations

from benchmarks._children import ChildError, ask
from benchmarks._measure import Spread
from benchmarks._report import Report, time_text
from benchmarks._span_calls import SPANS
from benchmarks._span_flatness import NUM_IN_BLOCK
from benchmarks._span_peer import DEFAULT_EVERY, NUM_LOOKED_AT

__all__ = ["measure_spans"]

_BUDGETS_US = {"iteration": 2, "phase": 1.5}
_PEER = "nv-one-logger, with training_iteration()"
_LEAST_RATIO = 50
_NUM_RUNS = 3
_FAST_EVERY = 10
_NUM_GROWING = 20_000


def measure_spans(report: Report) -> None:
    """Measure all of it."""
    report.section("Spans: the caller's time")
    for name in SPANS:
        _cost(report, name)
    _peer(report)
    report.section("Spans: the caller's time over a long run")
    _flatness(report)
    _growth(report)


def _cost(report: Report, name: str) -> None:
    title, limit_us = SPANS[name].title, _BUDGETS_US.get(name)
    try:
        result = ask("_span_calls", name)
    except ChildError as error:
        report.fault(title, error)
        if limit_us is not None:
            report.not_measured(title, error)
        return
    cost = Spread.read(result["cost_ns"])
    budget = ""
    if limit_us is not None:
        budget = report.judge(f"{title}, time", cost.median / 1000, limit_us, " µs")
    report.row(title, time_text(cost.median), Spread.read(result["ratio"]), "append of a tuple", budget=budget)
    spread = f"{time_text(cost.low)}–{time_text(cost.high)}"
    report.row("", spread, Spread.read(result["ratio_to_empty"]), "an empty `with`")


def _peer(report: Report) -> None:
    what = "training_iteration(), nv-one-logger's time to ours"
    try:
        result = ask("_span_peer", str(DEFAULT_EVERY), str(NUM_LOOKED_AT))
    except ChildError as error:
        report.fault(_PEER, error)
        report.not_measured(what, error)
        return
    theirs = {name: Spread.read(value) for name, value in result["first"].items()}
    budget = report.judge(what, theirs["ratio"].median, _LEAST_RATIO, "×", at_least=True)
    report.row(_PEER, time_text(theirs["cost_ns"].median), theirs["ratio"], "ours, in turns", budget=budget)


def _flatness(report: Report) -> None:
    title = "training_iteration(), a tight loop of 10⁶"
    try:
        runs = [ask("_span_flatness") for _ in range(_NUM_RUNS)]
    except ChildError as error:
        report.fault(title, error)
        return
    num_lost = sum(run["num_lost"] for run in runs)
    report.row(title, "", budget=f"{num_lost} records lost" if num_lost else "")
    for part in ("first", "last"):
        cost, ratio = (Spread.of(run[f"{part}_{name}"] for run in runs) for name in ("ns", "ratio"))
        report.row(f"  the {part} {NUM_IN_BLOCK:,}", time_text(cost.median), ratio, "append of a tuple")
    report.row("", "", Spread.of(run["last_ratio"] / run["first_ratio"] for run in runs), "the first")
    report.row("  memory, from 10⁵ to 10⁶", f"{max(run['growth_mib'] for run in runs):+.1f} MiB")


def _growth(report: Report) -> None:
    title = f"nv-one-logger, the same loop of {_NUM_GROWING:,}"
    try:
        result = ask("_span_peer", str(_FAST_EVERY), str(_NUM_GROWING))
    except ChildError as error:
        report.fault(title, error)
        return
    report.row(title, "", budget=f"an update every {_FAST_EVERY}")
    first, last = ({name: Spread.read(value) for name, value in result[part].items()} for part in ("first", "last"))
    for part, costs in (("first", first), ("last", last)):
        cost, ratio = time_text(costs["cost_ns"].median), costs["ratio"]
        report.row(f"  the {part} {NUM_LOOKED_AT:,}", cost, ratio, "ours, in turns")
    for what, name in (("", "to_floor"), ("  ours meanwhile", "ours_to_floor")):
        report.row(what, "", last[name].over(first[name].median), "the first")
