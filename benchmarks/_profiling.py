"""The section on timing one's own functions and blocks, and on waiting for somebody to ask for a trace."""

from __future__ import annotations

from benchmarks._children import ChildError, ask
from benchmarks._measure import Spread
from benchmarks._profile_calls import TIMED
from benchmarks._report import Report, time_text

__all__ = ["measure_profiling"]

_BUDGET_US = 2
_JUDGED = ("block", "function", "method")


def measure_profiling(report: Report) -> None:
    """Measure all of it."""
    report.section("Profiling: the caller's time")
    for name, timed in TIMED.items():
        try:
            result = ask("_profile_calls", name)
        except ChildError as error:
            report.fault(timed.title, error)
            if name in _JUDGED:
                report.not_measured(timed.title, error)
            continue
        cost = Spread.read(result["cost_ns"])
        budget = ""
        if name in _JUDGED:
            budget = report.judge(f"{timed.title}, time", cost.median / 1000, _BUDGET_US, " µs")
        measured = f"{time_text(cost.median)}, best {time_text(result['best_ns'])}"
        report.row(timed.title, measured, Spread.read(result["ratio"]), "perf_counter twice", budget=budget)
