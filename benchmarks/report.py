"""The table of results, followed by the budgets that are met and missed."""

from __future__ import annotations

from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.measure import Spread

__all__ = ["Report", "seconds_text", "time_text"]

_MIN_WIDTH = 150


class _Budget(NamedTuple):
    title: str
    limit: str
    value: str
    is_met: bool | None
    """None if it could not be measured."""


class Report:
    """Collects rows and budget results."""

    def __init__(self) -> None:
        self._budgets: list[_Budget] = []
        self._table = Table(box=box.SIMPLE_HEAD, title="Cost of recording and of the dashboard", title_justify="left")
        self._table.add_column("benchmark", no_wrap=True)
        for title in ("measured", "ratio", "quartiles"):
            self._table.add_column(title, justify="right", no_wrap=True)
        self._table.add_column("baseline")
        self._table.add_column("× ours", justify="right", no_wrap=True)
        self._table.add_column("budget, note")

    def add_section(self, title: str) -> None:
        """Start a group of rows."""
        self._table.add_section()
        self._table.add_row(Text(title, style="bold"))

    def add_row(
        self,
        title: str,
        measured: str,
        ratio: Spread | None = None,
        baseline: str = "",
        *,
        ours: Spread | None = None,
        budget: str = "",
    ) -> None:
        """Add a row; `ours` is the ratio of Tachograph to the same baseline."""
        cells = ("", "") if ratio is None else (_times(ratio.median), f"{_times(ratio.low)}–{_times(ratio.high)}")
        versus = _times(ratio.median / ours.median) if ratio and ours else ""
        self._table.add_row(f"  {title}", measured, *cells, baseline, versus, budget)

    def add_failure(self, title: str, reason: object) -> None:
        """Add a row for a failed measurement."""
        self._table.add_row(f"  {title}", Text(str(reason), style="red"))

    def check_budget(self, title: str, value: float, limit: float, unit: str, *, at_least: bool = False) -> str:
        """Compare a value with its upper (or lower) limit and return the budget as text for the row."""
        is_met = value >= limit if at_least else value <= limit
        bound = f"at {'least' if at_least else 'most'} {limit:g}{unit}"
        self._budgets.append(_Budget(title, bound, f"{value:.3g}{unit}", is_met))
        return f"{'≥' if at_least else '≤'} {limit:g}{unit}"

    def add_unmeasured(self, title: str, reason: object) -> None:
        """Add a budget that could not be checked."""
        self._budgets.append(_Budget(title, "", str(reason), None))

    def print(self, console: Console) -> None:
        """Print everything, wide enough to be readable in a log file."""
        if console.width < _MIN_WIDTH and not console.is_terminal:
            console.width = _MIN_WIDTH
        console.print(self._table)
        for title, verdict in (("met", True), ("missed", False), ("not measured", None)):
            budgets = [budget for budget in self._budgets if budget.is_met is verdict]
            if budgets:
                console.print(f"Budgets {title}:", style="bold")
            for budget in budgets:
                limit = f" of {budget.limit}" if budget.limit else ""
                console.print(f"  {budget.title}: {budget.value}{limit}", highlight=False)


def time_text(time_ns: float) -> str:
    """Return a time in a suitable unit."""
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if time_ns >= size_ns:
            return f"{time_ns / size_ns:.3g} {unit}"
    return f"{time_ns:.0f} ns"


def seconds_text(values: list[float]) -> str:
    """Return the median, with minimum and maximum if there are several values."""
    median = Spread.of(values).median
    unit, size = ("s", 1) if median >= 1 else ("ms", 1000)
    spread = f" ({size * min(values):.3g}–{size * max(values):.3g})" if len(values) > 1 else ""
    return f"{size * median:.3g}{spread} {unit}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.1f}×" if ratio >= 10 else f"{ratio:.2f}×"
