"""Judge whether runs differ; see `tachograph.comparison`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from tachograph.catalog import Catalog
from tachograph.comparison import (
    ComparisonReport,
    RunEvidence,
    VerdictRow,
    compare_groups,
    load_earlier,
    load_evidence,
    noise_line,
    similar_rows,
    verdict_rows,
)
from tachograph.exceptions import RunNotFoundError
from tachograph.records import mark_non_finite
from tachograph.server._models import CompareQuery
from tachograph.store import SegmentError, Store, StoredRun

__all__ = ["ComparisonPage", "VerdictLine", "build_comparison_page"]

_MAX_LEARN_S = 1.0
"""Summaries and new records of earlier runs are read for at most this long; the next request continues."""
_UNREAD = "earlier runs like these are still being read: the noise may change"


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

    indexed_share: float = msgspec.field(name="indexed")
    """The share of the journals that has been read, with those the noise is learned from; ask again until it is 1."""
    report: ComparisonReport | None = None
    """Null until the compared runs have been read."""
    lines: list[VerdictLine] = []
    """The same quantities in words."""
    noise: str = ""
    """The spread between runs of each quantity, and whether it was assumed, observed or learned from earlier runs."""


def build_comparison_page(
    store: Store, catalog: Catalog, open_run: Callable[[str], StoredRun], query: CompareQuery
) -> ComparisonPage:
    """Judge whether runs differ from others."""
    both = [*query.against, *query.run]
    runs = {name: open_run(name) for name in dict.fromkeys(both)}
    indexed_share = min(run.indexed_share for run in runs.values())
    if indexed_share < 1.0:
        return ComparisonPage(indexed_share)
    evidence = {name: load_evidence(run) for name, run in runs.items()}
    earlier, indexed_share = _load_earlier(store, catalog, list(evidence.values()))
    report = compare_groups(
        [evidence[name] for name in query.against],
        [evidence[name] for name in query.run],
        earlier=earlier,
        ignores_refusals=query.anyway,
    )
    if indexed_share < 1.0:
        report.warnings.append(_UNREAD)
    rows = verdict_rows(report)
    lines = [_line(metric.name, row) for metric, row in zip(report.metrics, rows, strict=True)]
    for change in report.config_diff:
        change.first[:], change.second[:] = mark_non_finite([list(change.first), list(change.second)])
    return ComparisonPage(indexed_share, report, lines, noise_line(report))


def _load_earlier(store: Store, catalog: Catalog, runs: Sequence[RunEvidence]) -> tuple[list[RunEvidence], float]:
    """Return earlier runs to learn the noise from, as far as time allows, and the share that has been read."""
    deadline_s = time.monotonic() + _MAX_LEARN_S
    location = store.folders.resolve(max(runs, key=lambda run: run.started).name)
    rows = similar_rows(catalog, runs, log_dir=None if location is None else location[0], max_s=_MAX_LEARN_S / 2)
    store.keep_open([*(run.name for run in runs), *(row.id for row, _ in rows)])
    shares = [catalog.indexed_share_for(())]
    earlier = []
    for row, is_as_fast in rows:
        try:
            run = store.open(row.id)
            run.refresh(max(0.0, deadline_s - time.monotonic()))
            shares.append(run.indexed_share)
            if run.indexed_share == 1.0:
                loaded_run = load_earlier(run)
                earlier.append(loaded_run if is_as_fast else loaded_run.without_clock())
        except (RunNotFoundError, OSError, SegmentError):  # one damaged run does not stop the comparison
            continue
    indexed_share = sum(shares) / len(shares)
    return (earlier if indexed_share == 1.0 else []), indexed_share


def _line(name: str, row: VerdictRow) -> VerdictLine:
    return VerdictLine(name, row.title, row.a, row.b, row.effect, row.verdict, row.sign, row.notes)
