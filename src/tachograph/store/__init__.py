"""Runs as columns, for fast charts. Knows records and journals, but nothing about the server."""

from tachograph.store._aggregates import MetricAggregates
from tachograph.store._chart_lines import Line, Mark
from tachograph.store._columns import Axis, Floats
from tachograph.store._completions import CompletionLocation, CompletionView, read_rows
from tachograph.store._group_lines import GroupCurve, average_lines
from tachograph.store._run import StoredRun
from tachograph.store._segment import SegmentError
from tachograph.store._source import SeriesSource
from tachograph.store._span_table import SpanCluster, SpanView
from tachograph.store._store import Store, annotations_changed_at

__all__ = [
    "Axis",
    "CompletionLocation",
    "CompletionView",
    "Floats",
    "GroupCurve",
    "SpanCluster",
    "Line",
    "Mark",
    "MetricAggregates",
    "SegmentError",
    "SeriesSource",
    "SpanView",
    "Store",
    "annotations_changed_at",
    "StoredRun",
    "average_lines",
    "read_rows",
]
