"""The series of several runs in one response: one by one, or as means of groups.

Such a request may name hundreds of runs, most of which nobody has looked at before. New records of all of them are read
for a limited time: what is left is read by the next requests, and `indexed` tells the client to ask again.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec

from tachograph.catalog import Catalog, RunRow, group_rows
from tachograph.exceptions import RunNotFoundError
from tachograph.server._column_series import ColumnStoreOf, list_column_metrics, read_column_series
from tachograph.server._copy_fields import copy_fields
from tachograph.server._models import SeriesView, encode_number
from tachograph.server._overlay_models import (
    GroupedSeriesPage,
    GroupedSeriesQuery,
    GroupLine,
    MetricFacts,
    MetricsOfRun,
    OverlayPage,
    OverlayQuery,
    RunSeries,
    RunsMetricsPage,
    RunsMetricsQuery,
    SeriesGroup,
)
from tachograph.server._series_cache import SeriesCache
from tachograph.server._views import build_metrics_page, build_series, resolve_any_range, signal_name_of
from tachograph.store import Floats, MetricAxis, SegmentError, Store, StoredRun, average_lines, kind_of_stream

__all__ = ["build_grouped_series_page", "build_overlay_page", "build_runs_metrics_page"]

_MAX_REFRESH_S = 0.25
"""New records of one run are read for at most this long …"""
_MAX_TOTAL_REFRESH_S = 1.0
"""… and those of all runs for this long."""
_MAX_MAPPED_RUNS = 16
_MAX_POINTS = 100_000
"""The number of points of all lines together, unless the request states how many each should have."""
_CONTINUOUS_AXES = {"time", "relative", "training_time"}


class _OpenRun(NamedTuple):
    name: str
    run: StoredRun | None
    reason: str | None = None
    """Why the run could not be read."""


def build_overlay_page(
    store: Store, query: OverlayQuery, cache: SeriesCache, column_store: ColumnStoreOf = lambda folder: None
) -> OverlayPage:
    """Return the points of several runs.

    Args:
        store: The runs.
        query: The runs, the metrics and the range.
        cache: The series of earlier responses, of the same store.
        column_store: Returns the column store of a run.
    """
    names = list(dict.fromkeys(query.run))
    num_lines = len(names) * len(set(query.name))
    num_points = query.points or min(2_000, max(100, _MAX_POINTS // num_lines))
    cache_key = (tuple(query.name), query.x, query.x_metric, query.low, query.high, num_points)
    open_runs = list(_open_runs(store, names))
    outdated_runs = [run for name, run, _ in open_runs if run is not None and not cache.has(run, (name, *cache_key))]
    column_series = read_column_series(outdated_runs, query, num_points, column_store)
    # The tables may have such a run a moment later, without more of its journal having been read: do not cache it.
    absent_ids = {run.id for run in outdated_runs if run.indexed_share == 0.0} - column_series.keys()
    pages: list[RunSeries | msgspec.Raw] = []
    for name, run, reason in _release_each(open_runs):
        if run is None:
            pages.append(RunSeries(run=name, reason=reason))
            continue
        try:
            build = functools.partial(_build_run, name, run, query, num_points, column_series.get(run.id))
            pages.append(build() if run.id in absent_ids else cache.get(run, (name, *cache_key), build))
        except SegmentError as error:
            pages.append(RunSeries(run=name, reason=str(error)))
    return OverlayPage(runs=cast(list[RunSeries], pages), points=num_points)


def build_runs_metrics_page(
    store: Store, query: RunsMetricsQuery, column_store: ColumnStoreOf = lambda folder: None
) -> RunsMetricsPage:
    """Return the metrics of several runs."""
    indexes: dict[MetricFacts, int] = {}
    pages: list[MetricsOfRun] = []
    open_runs = list(_open_runs(store, list(dict.fromkeys(query.run))))
    column_metrics = list_column_metrics((run for _, run, _ in open_runs if run is not None), column_store)
    for name, run, reason in _release_each(open_runs):
        if run is None:
            pages.append(MetricsOfRun(run=name, exists=store.folders.resolve(name) is not None, reason=reason))
            continue
        try:
            page = build_metrics_page(run)
        except SegmentError as error:
            pages.append(MetricsOfRun(run=name, reason=str(error)))
            continue
        metrics = [copy_fields(MetricFacts, metric) for metric in page.metrics]
        metrics += _unread_metrics(column_metrics.get(run.id, {}), {metric.name for metric in metrics})
        run_indexes = [indexes.setdefault(metric, len(indexes)) for metric in metrics]
        has_media = run.media.num_records["media"] > 0
        pages.append(MetricsOfRun(run=name, metrics=run_indexes, indexed_share=page.indexed_share, has_media=has_media))
    return RunsMetricsPage(list(indexes), pages)


def _unread_metrics(streams: dict[str, str], read_names: set[str]) -> Iterator[MetricFacts]:
    """Yield the metrics of the column store that have not been read from the journal."""
    for name, stream in streams.items():
        if name not in read_names:
            yield MetricFacts(name=name, kind=kind_of_stream(stream), signal=signal_name_of(name))


def _build_run(
    name: str, run: StoredRun, query: OverlayQuery, num_points: int, column_series: list[SeriesView] | None
) -> RunSeries:
    with run.lock:
        series = build_series(run, query, num_points) if column_series is None else column_series
        return RunSeries(
            run=name, version=run.version, indexed_share=run.indexed_share, start=run.started_at, series=series
        )


def _open_runs(store: Store, names: list[str]) -> Iterator[_OpenRun]:
    """Yield runs with their new records, as far as time allows."""
    store.keep_open(names)
    left_s = _MAX_TOTAL_REFRESH_S
    for name in names:
        try:
            run = store.open(name)
            if left_s > 0:
                began_s = time.monotonic()
                run.refresh(min(left_s, _MAX_REFRESH_S))
                left_s -= time.monotonic() - began_s
        except RunNotFoundError as error:
            yield _OpenRun(name, None, str(error))
        except OSError as error:
            yield _OpenRun(name, None, f"cannot read the journal: {error.strerror or error}")
        else:
            yield _OpenRun(name, run)
            if len(names) > _MAX_MAPPED_RUNS:
                run.release()


def _release_each(open_runs: list[_OpenRun]) -> Iterator[_OpenRun]:
    """Yield runs; afterwards unmap the files of each if there are many."""
    for open_run in open_runs:
        yield open_run
        if open_run.run is not None and len(open_runs) > _MAX_MAPPED_RUNS:
            open_run.run.release()


def build_grouped_series_page(store: Store, catalog: Catalog, query: GroupedSeriesQuery) -> GroupedSeriesPage:
    """Return mean and range of a metric in each group of runs."""
    names = list(dict.fromkeys(query.run))
    points: dict[str, tuple[Floats, Floats]] = {}
    grids: dict[bytes, Floats] = {}
    reasons: dict[str, str] = {}
    runs_going_back: list[str] = []
    shares: list[float] = []
    for name, run, reason in _open_runs(store, names):
        if run is None:
            reasons[name] = reason or ""
            continue
        with run.lock:
            axis, low, high, shift = resolve_any_range(run, query)
            problem = (
                run.axis_problem(axis) if query.name in run.metric_names else f"no metric {query.name!r} in this run"
            )
            x, y = run.points_on(query.name, axis=axis, low=low, high=high)
            x = x - shift if shift else x
            # Runs of a sweep record the same steps: keep them once.
            points[run.id] = (grids.setdefault(hashlib.blake2b(x.data, digest_size=16).digest(), x), y)
            if isinstance(axis, MetricAxis) and run.goes_back(query.name, axis):
                runs_going_back.append(run.id)
            shares.append(run.indexed_share)
        if problem is not None:
            reasons[name] = problem
    rows = _rows_of(catalog, list(points), query.by)
    run_groups = group_rows(rows, list(dict.fromkeys(query.by)), [])
    is_continuous = query.x_metric is not None or query.x in _CONTINUOUS_AXES
    series_groups = []
    for group in run_groups:
        members = [points[run_id] for run_id in group.runs]
        num_with_points = sum(len(x) > 0 for x, _ in members)
        group_reason = _reason_without_mean(query, [run_id for run_id in runs_going_back if run_id in group.runs])
        if group_reason is not None:
            members = []
        curve = average_lines(members, is_continuous=is_continuous, num_points=query.points)
        line = GroupLine(
            x=curve.x.tolist(),
            mean=curve.mean.tolist(),
            min=curve.low.tolist(),
            max=curve.high.tolist(),
            count=curve.num_runs.tolist(),
        )
        series_groups.append(
            SeriesGroup(
                key=[_key_value(value) for value in group.key.values()],
                label=_label(group.key),
                runs=group.runs,
                num_with_points=num_with_points,
                lines=line,
                reason=group_reason,
            )
        )
    return GroupedSeriesPage(
        by=list(run_groups[0].key) if run_groups else query.by,
        groups=series_groups,
        reasons=reasons,
        indexed_share=min([*shares, catalog.indexed_share_for(query.by)]),
    )


def _reason_without_mean(query: GroupedSeriesQuery, runs: list[str]) -> str | None:
    """Return why there is no mean over the runs of a group, given those whose positions go up and down."""
    if not runs:
        return None
    others = f" and {len(runs) - 1} other runs" if len(runs) > 1 else ""
    return f"no mean: {query.x_metric!r} goes up and down in {runs[0]!r}{others}, so a position has several values"


def _rows_of(catalog: Catalog, ids: list[str], fields: list[str]) -> list[RunRow]:
    """Return the rows of runs with the fields to group them by."""
    wanted_ids = set(ids)
    rows = catalog.select("", columns=["config.*", *fields], archived=None, max_s=_MAX_TOTAL_REFRESH_S)
    return [row for row in rows if row.id in wanted_ids]


def _label(key: dict[str, Any]) -> str:
    return ", ".join(f"{name.removeprefix('config.')}={_text(value)}" for name, value in key.items())


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _key_value(value: Any) -> Any:
    return encode_number(value) if isinstance(value, float) else value
