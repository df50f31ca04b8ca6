"""Read runs: state, metrics, spans, alerts, goodput and ranks, computed from the files in a run folder."""

from tachograph.reader._alerts import Alert, AlertHistory, worst_first
from tachograph.reader._control_requests import accepts_requests, request_control
from tachograph.reader._digest import Attempt, ControlState, RecordBatch, RunDigest, batch_records, times_of
from tachograph.reader._goodput import Goodput
from tachograph.reader._history import RunHistory, Series, read
from tachograph.reader._metrics import NOT_METRICS, MetricSummary
from tachograph.reader._overview import RunOverview, overview
from tachograph.reader._ranks import RankView, read_ranks
from tachograph.reader._spans import RecordedSpan, SpanGroup
from tachograph.reader._traces import TraceFile, list_traces, open_trace, trace_name

__all__ = [
    "Alert",
    "AlertHistory",
    "RecordBatch",
    "Attempt",
    "ControlState",
    "Goodput",
    "MetricSummary",
    "NOT_METRICS",
    "RankView",
    "RunDigest",
    "RunHistory",
    "RunOverview",
    "Series",
    "RecordedSpan",
    "SpanGroup",
    "TraceFile",
    "request_control",
    "batch_records",
    "accepts_requests",
    "list_traces",
    "open_trace",
    "overview",
    "read",
    "read_ranks",
    "times_of",
    "trace_name",
    "worst_first",
]
