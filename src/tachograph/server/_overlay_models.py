"""The JSON models of the series of several runs; see `_models` for the rules."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tachograph.server._models import AxisValue, Name, SeriesView, XAxis, XMetric
from tachograph.server._table_models import CellValue

__all__ = [
    "GroupLine",
    "GroupedSeriesPage",
    "GroupedSeriesQuery",
    "MetricFacts",
    "OverlayPage",
    "OverlayQuery",
    "MetricsOfRun",
    "RunSeries",
    "RunsMetricsPage",
    "RunsMetricsQuery",
    "SeriesGroup",
]

MAX_OVERLAY_RUNS = 500
RunNames = Annotated[
    list[Name], Meta(min_length=1, max_length=MAX_OVERLAY_RUNS, description="Name of a run; can be repeated.")
]
Points = Annotated[
    Annotated[int, Meta(ge=16, le=20_000)] | None,
    Meta(description="Approximate maximum number of points per line; defaults to fewer points for more lines."),
]


class OverlayQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select runs, metrics and a range of the x axis."""

    run: RunNames
    name: Annotated[list[Name], Meta(min_length=1, max_length=64, description="Metric name; can be repeated.")]
    x: XAxis = "step"
    x_metric: XMetric = None
    low: Annotated[AxisValue | None, Meta(description="Start of the range; defaults to the start of each run.")] = None
    high: Annotated[AxisValue | None, Meta(description="End of the range; defaults to the end of each run.")] = None
    points: Points = None


class RunsMetricsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Select runs."""

    run: RunNames


class MetricFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A metric without its values; see `MetricView` for the fields."""

    name: str
    kind: str
    signal: str | None = None
    same_as: str | None = None
    x_metric: str | None = None
    is_printed: bool = False


class MetricsOfRun(msgspec.Struct, kw_only=True):
    """The metrics of one run."""

    run: str
    metrics: list[int] = []
    """Indexes into the metrics of the page, in order of first appearance."""
    indexed_share: float = msgspec.field(default=1.0, name="indexed")
    """Fraction of the journal read so far, 0 to 1."""
    has_media: bool = False
    """Whether it has pictures, tables or other media in the part of the journal that was read."""
    exists: bool = True
    reason: str | None = None
    """Why the run could not be read; null if it was."""


class RunsMetricsPage(msgspec.Struct):
    """The metrics of several runs. Runs of a sweep have the same ones, so each is listed once."""

    metrics: list[MetricFacts]
    runs: list[MetricsOfRun]


class RunSeries(msgspec.Struct, kw_only=True):
    """The points of one run."""

    run: str
    version: str = ""
    """Changes whenever a record is added."""
    indexed_share: float = msgspec.field(default=1.0, name="indexed")
    """Fraction of the journal read so far, 0 to 1."""
    start: float = 0.0
    """Unix time at which the run started."""
    series: list[SeriesView] = []
    reason: str | None = None
    """Why the run could not be read; null if it was."""


class OverlayPage(msgspec.Struct, kw_only=True):
    """The points of several runs, in the order of the request."""

    runs: list[RunSeries]
    points: int
    """The approximate maximum number of points per line."""


class GroupedSeriesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select runs, the fields to group them by, a metric and a range of the x axis."""

    run: RunNames
    by: Annotated[
        list[Name],
        Meta(
            min_length=1,
            max_length=3,
            description="Field to group by; can be repeated. `config` stands for the whole config except seeds, names "
            "and paths.",
        ),
    ]
    name: Annotated[Name, Meta(description="Metric name.")]
    x: XAxis = "step"
    x_metric: XMetric = None
    low: Annotated[AxisValue | None, Meta(description="Start of the range; defaults to the start of each run.")] = None
    high: Annotated[AxisValue | None, Meta(description="End of the range; defaults to the end of each run.")] = None
    points: Annotated[int, Meta(ge=16, le=20_000, description="Approximate maximum number of points per group.")] = (
        1_000
    )


class GroupLine(msgspec.Struct, kw_only=True):
    """Mean and range of the runs of a group, as parallel lists.

    `x` has positions that runs recorded, at least two of them unless only one run of the group has points.
    """

    x: list[float]
    mean: list[float]
    min: list[float]
    max: list[float]
    count: list[int]
    """The number of runs with a value at each position."""


class SeriesGroup(msgspec.Struct, kw_only=True):
    """Runs that agree in the fields."""

    key: list[CellValue]
    """The value of each field of `by`."""
    label: str
    """The fields and their values as text."""
    runs: list[str]
    num_with_points: int
    """How many of the runs have points of the metric in the range."""
    lines: GroupLine
    reason: str | None = None
    """Why there is no mean although there are points: the metric on the x axis goes up and down in a run."""


class GroupedSeriesPage(msgspec.Struct, kw_only=True):
    """The groups, the largest first."""

    by: list[str]
    """The fields that the runs were grouped by; for `config`, the keys in which they differ."""
    groups: list[SeriesGroup]
    reasons: dict[str, str]
    """Why a run has no points, by its name: it does not exist, lacks the metric, or what the x axis needs."""
    indexed_share: float = msgspec.field(name="indexed")
    """Fraction of the runs whose journals and configs were read, 0 to 1."""
