"""The section on profiling: timing functions and blocks, and polling for trace requests."""

from __future__ import annotations

from benchmarks.child import ChildError, measure_in_child
from benchmarks.measure import Spread
from benchmarks.report import Report, time_text
from benchmarks.spans.profile_calls import TIMED

__all__ = ["measure_profiling"]

_BUDGET_US = 2
_JUDGED = ("block", "function", "method")


def measure_profiling(report: Report) -> None:
    """Run all measurements on profiling."""
    report.add_section("Profiling: time in the caller")
    for name, timed in TIMED.items():
        try:
            result = measure_in_child("spans.profile_calls", name)
        except ChildError as error:
            report.add_failure(timed.title, error)
            if name in _JUDGED:
                report.add_unmeasured(timed.title, error)
            continue
        cost = Spread.read(result["cost_ns"])
        budget = ""
        if name in _JUDGED:
            budget = report.check_budget(f"{timed.title}, time", cost.median / 1000, _BUDGET_US, " µs")
        measured = f"{time_text(cost.median)}, best {time_text(result['best_ns'])}"
        report.add_row(timed.title, measured, Spread.read(result["ratio"]), "perf_counter twice", budget=budget)
