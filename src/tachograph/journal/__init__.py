"""The journal: one run folder, written by one process and read by many. Knows records, not who makes them."""

from tachograph.journal._alerts import Alert, AlertBook, worst_first
from tachograph.journal._appender import Appender
from tachograph.journal._claim import Claim, claim_run_folder, forget_claims, hold_run_folder
from tachograph.journal._control_file import (
    LOG_EVERY_MAX,
    LOG_EVERY_MIN,
    NOT_CONTROLS,
    PROFILE_STEPS_MAX,
    REQUESTS,
    ControlFile,
    ControlFileError,
    Request,
    is_number_of_steps,
    write_requests,
)
from tachograph.journal._digest import Alike, Attempt, ControlView, RunDigest, grouped, times_of
from tachograph.journal._folder import RunFolder, atomic_write, find_run, list_runs
from tachograph.journal._follower import JournalFollower, read_records
from tachograph.journal._goodput import Goodput
from tachograph.journal._history import RunHistory, Series, read
from tachograph.journal._liveness import Heartbeat, ProcessIdentity, RunState, state_at_end, this_process, uptime_s
from tachograph.journal._metrics import NOT_METRICS, MetricSummary
from tachograph.journal._mirror import CsvMirror, is_csv_current, rebuild_csv
from tachograph.journal._overview import RunOverview, overview
from tachograph.journal._ranks import RankView, find_job, read_ranks
from tachograph.journal._spans import Span, SpanGroup
from tachograph.journal._steering import ask_trainer, has_trainer
from tachograph.journal._traces import TraceFile, list_traces, open_trace, trace_name

__all__ = [
    "LOG_EVERY_MAX",
    "LOG_EVERY_MIN",
    "NOT_CONTROLS",
    "NOT_METRICS",
    "PROFILE_STEPS_MAX",
    "REQUESTS",
    "Alert",
    "AlertBook",
    "Alike",
    "Appender",
    "Attempt",
    "Claim",
    "ControlFile",
    "ControlFileError",
    "ControlView",
    "CsvMirror",
    "Goodput",
    "Heartbeat",
    "JournalFollower",
    "MetricSummary",
    "ProcessIdentity",
    "RankView",
    "Request",
    "RunDigest",
    "RunFolder",
    "RunHistory",
    "RunOverview",
    "RunState",
    "Series",
    "Span",
    "SpanGroup",
    "TraceFile",
    "ask_trainer",
    "atomic_write",
    "claim_run_folder",
    "find_job",
    "find_run",
    "forget_claims",
    "grouped",
    "has_trainer",
    "hold_run_folder",
    "is_csv_current",
    "is_number_of_steps",
    "list_runs",
    "list_traces",
    "open_trace",
    "overview",
    "read",
    "read_ranks",
    "read_records",
    "rebuild_csv",
    "state_at_end",
    "this_process",
    "times_of",
    "trace_name",
    "uptime_s",
    "worst_first",
    "write_requests",
]
