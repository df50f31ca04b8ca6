"""The read side: everything that a run's records say, computed from its folder alone."""

from tachograph.reader._alerts import Alert, AlertBook, worst_first
from tachograph.reader._control_requests import ask_trainer, has_trainer
from tachograph.reader._digest import Alike, Attempt, ControlView, RunDigest, grouped, times_of
from tachograph.reader._goodput import Goodput
from tachograph.reader._history import RunHistory, Series, read
from tachograph.reader._metrics import NOT_METRICS, MetricSummary
from tachograph.reader._overview import RunOverview, overview
from tachograph.reader._ranks import RankView, find_job, read_ranks
from tachograph.reader._spans import Span, SpanGroup
from tachograph.reader._traces import TraceFile, list_traces, open_trace, trace_name

__all__ = [
    "Alert",
    "AlertBook",
    "Alike",
    "Attempt",
    "ControlView",
    "Goodput",
    "MetricSummary",
    "NOT_METRICS",
    "RankView",
    "RunDigest",
    "RunHistory",
    "RunOverview",
    "Series",
    "Span",
    "SpanGroup",
    "TraceFile",
    "ask_trainer",
    "find_job",
    "grouped",
    "has_trainer",
    "list_traces",
    "open_trace",
    "overview",
    "read",
    "read_ranks",
    "times_of",
    "trace_name",
    "worst_first",
]
