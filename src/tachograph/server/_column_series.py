"""Series and metrics of runs whose journals are not read yet, from the column store of a team's server.

Reading a journal for the first time takes as long as it is large. The column store received the records when they
arrived, so it has them at once, for hundreds of runs with a few statements. The files stay the truth: a run is
answered from the tables only while they have more of its journal than this process has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from tachograph.exceptions import ColumnStoreError
from tachograph.journal import RunFolder
from tachograph.server._models import SeriesView, encode_number
from tachograph.server._views import resolve_range, shift_series
from tachograph.store import StoredRun, View

if TYPE_CHECKING:
    from tachograph.server.columns import ColumnStore, MetricLines

__all__ = ["ColumnStoreOf", "list_column_metrics", "read_column_series"]

ColumnStoreOf = Callable[[RunFolder], "ColumnStore | None"]
"""Returns the column store, if it has this run and can be reached."""

_USUAL_POINTS, _MAX_POINTS = 1_000_000, 4_000_000
"""The points that a request reads besides tiles: a million take about a second."""


class _UnreadRun(NamedTuple):
    key: str
    """Its key in the column store."""
    run: StoredRun


def read_column_series(
    runs: Iterable[StoredRun], query: Any, num_points: int, column_store: ColumnStoreOf
) -> dict[str, list[SeriesView]]:
    """Return the series of the runs that the tables have more of than was read, by the ids of the runs.

    Args:
        runs: the runs; ones that are read are left out.
        query: the metrics and the range, as in a `SeriesQuery`.
        num_points: the approximate maximum number of points per line.
        column_store: returns the column store of a run.
    """
    if query.x_metric is not None:
        return {}
    names = tuple(dict.fromkeys(query.name))
    series: dict[str, list[SeriesView]] = {}
    with contextlib.suppress(ColumnStoreError):  # it is down: the files have everything
        store, unread_runs = _find_unread(runs, column_store)
        if store is None:
            return {}
        from tachograph.server.columns import SeriesRequest

        requests, shifts = [], []
        for unread in unread_runs:
            with unread.run.lock:
                if query.x.startswith("relative") and not unread.run.digest.attempts:
                    continue  # the start is not known yet
                axis, low, high, shift = resolve_range(unread.run, query)
            if axis not in {"step", "time"}:
                return {}
            requests.append(SeriesRequest(unread.key, names, View(axis, low, high, num_points)))
            shifts.append((unread.run.id, shift))
        if not requests:
            return {}
        for (run_id, shift), lines_of_metrics in zip(
            shifts, store.series(requests, usual_points=_USUAL_POINTS, max_points=_MAX_POINTS), strict=True
        ):
            if not isinstance(lines_of_metrics, ColumnStoreError):
                series[run_id] = [_build_view(name, lines_of_metrics.get(name), shift) for name in names]
    return series


def list_column_metrics(runs: Iterable[StoredRun], column_store: ColumnStoreOf) -> dict[str, dict[str, str]]:
    """Return the metrics of the runs that the tables have more of than was read, by the ids of the runs.

    Each metric has the stream of its first record.
    """
    with contextlib.suppress(ColumnStoreError):
        store, unread_runs = _find_unread(runs, column_store)
        if store is not None:
            metrics = store.metrics([unread.key for unread in unread_runs])
            return {unread.run.id: metrics.get(unread.key, {}) for unread in unread_runs}
    return {}


def _find_unread(runs: Iterable[StoredRun], column_store: ColumnStoreOf) -> tuple[ColumnStore | None, list[_UnreadRun]]:
    """Return the column store, and the runs that it has more of than was read."""
    stores = [(run, column_store(run.folder)) for run in runs if run.indexed_share < 1.0]
    store = next((store for _, store in stores if store is not None), None)
    if store is None:
        return None, []
    from tachograph.server.columns import run_key  # a dashboard without a column store never needs it

    runs_by_key: dict[str, StoredRun] = {}
    for run, store_of_run in stores:
        if store_of_run is not None:
            runs_by_key.setdefault(run_key(run.folder.path, run.id), run)
    num_bytes = store.num_bytes(list(runs_by_key))
    return store, [
        _UnreadRun(key, run) for key, run in runs_by_key.items() if num_bytes.get(key, 0) > run.num_bytes_read
    ]


def _build_view(name: str, metric: MetricLines | None, shift: float) -> SeriesView:
    if metric is None:
        return SeriesView(name=name, last=None, lines=[], marks=[], reason=f"no metric {name!r} in this run")
    view = SeriesView(name=name, last=encode_number(metric.last), lines=metric.lines, marks=metric.marks)
    shift_series(view, shift)
    return view
