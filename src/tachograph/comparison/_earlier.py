"""Find earlier runs that should be as fast as those compared, to learn from them how much such runs differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tachograph.catalog import Catalog, RunRow
from tachograph.comparison._evidence import RunEvidence

__all__ = ["earlier_rows", "similar_rows"]

_MAX_SIMILAR = 20


def similar_rows(
    catalog: Catalog, runs: Sequence[RunEvidence], *, log_dir: str | None = None, max_s: float | None = None
) -> list[RunRow]:
    """Return the last finished runs to learn the noise of compared runs from, oldest first.

    They have the `perf_tag` that all compared runs share, and started before the last of these.

    Args:
        catalog: where to look.
        runs: all runs of the comparison.
        log_dir: only runs of this log folder; None for all of the catalog.
        max_s: see `Catalog.rows`.
    """
    tags = set.intersection(*(set(run.perf_tags) for run in runs))
    before = max(run.started for run in runs)
    return earlier_rows(catalog, tags, before, _MAX_SIMILAR, without=runs, log_dir=log_dir, max_s=max_s)


def earlier_rows(
    catalog: Catalog,
    perf_tags: Collection[str],
    before: float,
    most: int,
    *,
    without: Sequence[RunEvidence] = (),
    log_dir: str | None = None,
    max_s: float | None = None,
) -> list[RunRow]:
    """Return the last finished runs with one of these tags that started before a time, oldest first.

    Args:
        catalog: where to look.
        perf_tags: the tags.
        before: a Unix time.
        most: how many runs to return.
        without: runs to leave out, and copies of them.
        log_dir: only runs of this log folder; None for all of the catalog.
        max_s: see `Catalog.rows`.
    """
    if not perf_tags:
        return []
    excluded_runs = {run.run_id or run.started for run in without}
    rows = [
        row
        for row in catalog.select("state:finished", columns=["perf_tag", "run_id"], max_s=max_s)
        if (log_dir is None or row.log_dir == log_dir)
        and not set(perf_tags).isdisjoint(str(row.get("perf_tag") or "").split(", "))
        and (started_at := row.get("started") or 0.0) < before
        and (row.get("run_id") or started_at) not in excluded_runs
    ]
    return rows[:most][::-1]
