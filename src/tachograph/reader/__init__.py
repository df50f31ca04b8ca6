"""Read runs: state, metrics, spans, alerts, goodput and ranks, computed from the files in a run folder."""

from tachograph.reader._alerts import Alert, AlertHistory, worst_first
from tachograph.reader._batches import RecordBatch, batch_records, times_of
from tachograph.reader._checkpoint_origin import CHECKPOINT_RUN_FILE, find_parent, read_stamp, write_stamp
from tachograph.reader._checkpoints import ParentRun, SavedCheckpoint, checkpoint_records, parents_of, saved_checkpoints
from tachograph.reader._control_requests import accepts_requests, request_control
from tachograph.reader._digest import Attempt, ControlState, RunDigest, set_step_metric
from tachograph.reader._energy import Energy
from tachograph.reader._failure import Failure, crash_reason
from tachograph.reader._goodput import Goodput
from tachograph.reader._history import (
    HasPath,
    RunHistory,
    Series,
    find_readable_run,
    read,
)
from tachograph.reader._media import (
    HistogramLocation,
    MediaFile,
    MediaIndex,
    MediaItem,
    MediaLocation,
    MediaName,
    RecordedHistogram,
    RunMedia,
    has_media,
    is_media_file,
    locate_histograms,
    locate_media,
    open_media,
    read_histograms,
    read_media_records,
    read_table_rows,
)
from tachograph.reader._metrics import (
    NOT_METRICS,
    MetricSummary,
    cover_windows,
    find_copies,
)
from tachograph.reader._output import (
    OutputFollower,
    OutputLine,
    OutputPart,
    output_text,
    output_version,
    read_output,
)
from tachograph.reader._overview import RunOverview, overview, overview_with_heartbeat
from tachograph.reader._plugins import PluginChange, PluginUse
from tachograph.reader._rank_heat import RankHeat, read_rank_heat
from tachograph.reader._rank_stacks import StackGroup, read_stacks
from tachograph.reader._ranks import RankTotals, RankView, read_rank_samples, read_ranks, summarise_ranks, worst_ranks
from tachograph.reader._spans import RecordedSpan, SpanGroup
from tachograph.reader._traces import TraceFile, list_traces, open_trace, trace_name

__all__ = [
    "Alert",
    "AlertHistory",
    "Attempt",
    "ControlState",
    "Energy",
    "Failure",
    "Goodput",
    "HasPath",
    "HistogramLocation",
    "MediaFile",
    "MediaIndex",
    "MediaItem",
    "MediaLocation",
    "MediaName",
    "MetricSummary",
    "NOT_METRICS",
    "OutputFollower",
    "OutputLine",
    "OutputPart",
    "ParentRun",
    "PluginChange",
    "PluginUse",
    "CHECKPOINT_RUN_FILE",
    "RankHeat",
    "RankTotals",
    "RankView",
    "StackGroup",
    "RecordBatch",
    "RecordedSpan",
    "RunDigest",
    "RunHistory",
    "RecordedHistogram",
    "RunMedia",
    "RunOverview",
    "SavedCheckpoint",
    "Series",
    "SpanGroup",
    "TraceFile",
    "accepts_requests",
    "batch_records",
    "checkpoint_records",
    "cover_windows",
    "crash_reason",
    "find_copies",
    "find_parent",
    "find_readable_run",
    "has_media",
    "is_media_file",
    "locate_histograms",
    "locate_media",
    "open_media",
    "read_histograms",
    "read_media_records",
    "read_table_rows",
    "list_traces",
    "open_trace",
    "output_text",
    "output_version",
    "overview",
    "overview_with_heartbeat",
    "parents_of",
    "read",
    "read_output",
    "read_rank_samples",
    "read_rank_heat",
    "read_ranks",
    "read_stacks",
    "read_stamp",
    "request_control",
    "saved_checkpoints",
    "times_of",
    "trace_name",
    "set_step_metric",
    "worst_first",
    "write_stamp",
    "summarise_ranks",
    "worst_ranks",
]
