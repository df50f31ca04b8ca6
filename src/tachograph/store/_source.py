"""The interface through which charts and tables read the metrics of a run, from files or from a database."""

from __future__ import annotations

from typing import Protocol

from tachograph.store._aggregates import MetricAggregates
from tachograph.store._chart_lines import Line, Mark
from tachograph.store._columns import Axis

__all__ = ["SeriesSource"]


class SeriesSource(Protocol):
    """The metrics of one run: `StoredRun` reads files, `tachograph.server.columns.ClickHouseRun` a database."""

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics."""
        ...

    def series(
        self,
        name: str,
        *,
        axis: Axis = "step",
        low: float | None = None,
        high: float | None = None,
        num_points: int = 2_000,
    ) -> tuple[list[Line], list[Mark]]:
        """Return the lines and marks of a metric in a view; see `StoredRun.series`."""
        ...

    def aggregates(self) -> dict[str, MetricAggregates]:
        """Return the aggregates of every metric, without points that a later attempt repeated."""
        ...
