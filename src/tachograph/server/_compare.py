"""Judge whether runs differ; see `tachograph.comparison`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from tachograph.comparison import (
    ComparisonReport,
    VerdictRow,
    compare_groups,
    load_evidence,
    noise_line,
    verdict_rows,
)
from tachograph.records import mark_non_finite
from tachograph.store import StoredRun

__all__ = ["CompareQuery", "ComparisonPage", "VerdictLine", "build_comparison_page"]

RunName = Annotated[str, Meta(min_length=1, max_length=512)]


class CompareQuery(msgspec.Struct):
    """Which runs to judge."""

    run: Annotated[list[RunName], Meta(min_length=1, max_length=200)]
    """A run to judge; can be repeated, for repeats of one training."""
    against: Annotated[list[RunName], Meta(min_length=1, max_length=200)]
    """A run to compare with; can be repeated."""


class VerdictLine(msgspec.Struct):
    """A quantity, as text to show."""

    name: str
    title: str
    before: str
    after: str
    difference: str
    verdict: str
    sign: str
    """`good`, `bad`, `same`, `open`, or empty if the quantity is only reported."""
    notes: list[str]


class ComparisonPage(msgspec.Struct):
    """Whether the runs differ."""

    indexed: float
    """The share of the journals that has been read; ask again until it is 1."""
    report: ComparisonReport | None = None
    """Null until everything has been read."""
    lines: list[VerdictLine] = []
    """The same quantities in words."""
    noise: str = ""
    """What was assumed about the spread between runs."""


def build_comparison_page(open_run: Callable[[str], StoredRun], query: CompareQuery) -> ComparisonPage:
    """Judge whether runs differ from others."""
    both = [*query.against, *query.run]
    opened = {name: open_run(name) for name in dict.fromkeys(both)}
    indexed = min(run.indexed for run in opened.values())
    if indexed < 1.0:
        return ComparisonPage(indexed)
    evidence = {name: load_evidence(run) for name, run in opened.items()}
    report = compare_groups([evidence[name] for name in query.against], [evidence[name] for name in query.run])
    rows = verdict_rows(report)
    lines = [_line(metric.name, row) for metric, row in zip(report.metrics, rows, strict=True)]
    for change in report.config_diff:
        change.first[:], change.second[:] = mark_non_finite([list(change.first), list(change.second)])
    return ComparisonPage(indexed, report, lines, noise_line(report))


def _line(name: str, row: VerdictRow) -> VerdictLine:
    return VerdictLine(name, row.title, row.a, row.b, row.effect, row.verdict, row.sign, row.notes)
