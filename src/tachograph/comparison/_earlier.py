"""Find earlier runs like those compared, to learn from them how much such runs differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from tachograph.catalog import Catalog, RunRow
from tachograph.comparison._evidence import RunEvidence
from tachograph.comparison._groups import training_key

__all__ = ["SimilarRow", "earlier_rows", "similar_rows"]

_MAX_SIMILAR = 20


class SimilarRow(NamedTuple):
    """An earlier run to learn the noise of compared runs from."""

    row: RunRow
    is_as_fast: bool
    """Whether it should be as fast as the compared runs: it has their `perf_tag`. Otherwise only its loss counts."""


def similar_rows(
    catalog: Catalog, runs: Sequence[RunEvidence], *, log_dir: str | None = None, max_s: float | None = None
) -> list[SimilarRow]:
    """Return the last finished runs to learn the noise of compared runs from, oldest first.

    They have the `perf_tag` that all compared runs share, or the config of one of them except for its seed, and
    started before the last of the compared runs.

    Args:
        catalog: where to look.
        runs: all runs of the comparison.
        log_dir: only runs of this log folder; None for all of the catalog.
        max_s: see `Catalog.rows`.
    """
    tags = set.intersection(*(set(run.perf_tags) for run in runs))
    before = max(run.started for run in runs)
    keys = {key for run in runs if (key := training_key(run.config))}
    rows = _finished_rows(catalog, before, without=runs, log_dir=log_dir, max_s=max_s) if tags or keys else []
    similar: list[SimilarRow] = []
    num_tagged = num_repeats = 0
    for row in rows:
        if num_tagged < _MAX_SIMILAR and _has_tag(row, tags):
            num_tagged += 1
            similar.append(SimilarRow(row, is_as_fast=True))
        elif num_repeats < _MAX_SIMILAR and training_key(row.summary.config) in keys:
            num_repeats += 1
            similar.append(SimilarRow(row, is_as_fast=False))
    return similar[::-1]


def earlier_rows(
    catalog: Catalog, perf_tags: Collection[str], before: float, most: int, *, without: Sequence[RunEvidence] = ()
) -> list[RunRow]:
    """Return the last finished runs with one of these tags that started before a time, oldest first.

    Args:
        catalog: where to look.
        perf_tags: the tags.
        before: a Unix time.
        most: how many runs to return.
        without: runs to leave out, and copies of them.
    """
    rows = _finished_rows(catalog, before, without=without) if perf_tags else []
    return [row for row in rows if _has_tag(row, perf_tags)][:most][::-1]


def _finished_rows(
    catalog: Catalog,
    before: float,
    *,
    without: Sequence[RunEvidence],
    log_dir: str | None = None,
    max_s: float | None = None,
) -> list[RunRow]:
    """Return the finished runs that started before a time, the newest first."""
    excluded_runs = {run.run_id or run.started for run in without}
    return [
        row
        for row in catalog.select("state:finished", columns=["perf_tag", "run_id"], max_s=max_s)
        if (log_dir is None or row.log_dir == log_dir)
        and (started_at := row.get("started") or 0.0) < before
        and (row.get("run_id") or started_at) not in excluded_runs
    ]


def _has_tag(row: RunRow, perf_tags: Collection[str]) -> bool:
    return not set(perf_tags).isdisjoint(str(row.get("perf_tag") or "").split(", "))
