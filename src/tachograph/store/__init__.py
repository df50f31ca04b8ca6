"""Runs as columns, for fast charts. Knows records and journals, but nothing about the server."""

from tachograph.store._aggregates import MetricAggregates, attempt_points, with_window_extremes
from tachograph.store._chart_lines import (
    MAX_RAW_POINTS,
    MIN_COARSE_POINTS,
    Line,
    Mark,
    View,
    break_at_marks,
    bucket_means,
    build_marks,
    choose_extremes,
)
from tachograph.store._columns import (
    CHUNK,
    MARK_KINDS,
    AnyAxis,
    AttemptRange,
    Axis,
    Floats,
    Integers,
    MetricAxis,
    SeriesPart,
    StreamRows,
)
from tachograph.store._completions import CompletionLocation, CompletionView, read_rows
from tachograph.store._group_lines import GroupCurve, average_lines
from tachograph.store._run import StoredRun, kind_of_stream
from tachograph.store._segment import SegmentError
from tachograph.store._source import SeriesSource
from tachograph.store._span_table import SpanCluster, SpanView
from tachograph.store._step_decoder import StepColumns, StepDecoder, split_lines
from tachograph.store._store import Store, annotations_changed_at
from tachograph.store._tail import SeriesStats, Tail
from tachograph.store._windows import build_lines_with_extremes

__all__ = [
    "CHUNK",
    "MARK_KINDS",
    "MAX_RAW_POINTS",
    "MIN_COARSE_POINTS",
    "AttemptRange",
    "AnyAxis",
    "Axis",
    "MetricAxis",
    "CompletionLocation",
    "CompletionView",
    "Floats",
    "GroupCurve",
    "Integers",
    "Line",
    "Mark",
    "MetricAggregates",
    "SegmentError",
    "SeriesPart",
    "SeriesSource",
    "SeriesStats",
    "SpanCluster",
    "SpanView",
    "StepColumns",
    "StepDecoder",
    "Store",
    "StoredRun",
    "StreamRows",
    "Tail",
    "View",
    "annotations_changed_at",
    "attempt_points",
    "average_lines",
    "break_at_marks",
    "bucket_means",
    "build_lines_with_extremes",
    "build_marks",
    "choose_extremes",
    "kind_of_stream",
    "read_rows",
    "split_lines",
    "with_window_extremes",
]
