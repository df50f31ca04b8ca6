"""The JSON models of the API's requests and responses.

The OpenAPI document, `docs/api.md` and the dashboard's TypeScript types are generated from these classes: their
docstrings, and the docstrings under their fields, are what API users read. Field names are part of the API and must
not change.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tachograph.journal import RunState
from tachograph.reader import Energy, Failure, ParentRun, PluginUse
from tachograph.store import Line, Mark, SpanView

__all__ = [
    "CURSOR_PATTERN",
    "AlertView",
    "AlertsPage",
    "AttemptView",
    "CompareQuery",
    "CompletionQuery",
    "CompletionsPage",
    "ControlAnswer",
    "ControlRequest",
    "ControlView",
    "ControlsPage",
    "CopyView",
    "ErrorBody",
    "ErrorDetail",
    "ExportQuery",
    "GoodputView",
    "LoginForm",
    "LoginRequest",
    "LogoutRequest",
    "MetricView",
    "MetricsPage",
    "NoticeView",
    "Number",
    "OutputPage",
    "OutputQuery",
    "OutputRange",
    "OutputRow",
    "RecordQuery",
    "RecordsPage",
    "RequestIds",
    "RunDetail",
    "RunSummary",
    "RunsPage",
    "SeriesPage",
    "SeriesQuery",
    "SeriesView",
    "ServerHealth",
    "Severity",
    "SpanDetail",
    "SpanQuery",
    "SpanView",
    "StreamAlive",
    "TraceView",
    "TracesPage",
    "Whoami",
    "XAxis",
    "XMetric",
    "encode_number",
]

Number = float | Literal["NaN", "Infinity", "-Infinity"]
"""JSON has no NaN and no infinities: they are strings, as in the journal."""
Severity = Literal["info", "warning", "critical"]
Confidence = Literal["certain", "likely", "possible"]
XAxis = Annotated[
    Literal["step", "relative_step", "samples", "tokens", "epoch", "training_time", "relative", "time"],
    Meta(
        description="X axis: step, step counted from the first recorded one (`relative_step`), samples or tokens seen, "
        "epoch, seconds spent in training steps (`training_time`), seconds since the run started (`relative`), or "
        "Unix time."
    ),
]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
XMetric = Annotated[
    Name | None,
    Meta(
        description="Metric that is the x axis, instead of `x`. A point lies at the value of this metric at its step "
        "or, if there is none, at the last one before it in the same attempt. Points are in the order of their steps, "
        "also if the metric goes up and down."
    ),
]
CURSOR_PATTERN = "([0-9a-f]{1,16})((?:-[a-z_]{1,32}:[0-9]{1,15})*)"
"""The journal's generation, then the number of rows already sent of each stream."""
AxisValue = Annotated[float, Meta(ge=-1e18, le=1e18)]
Step = Annotated[int, Meta(ge=-(2**53), le=2**53)]
JournalRecord = Annotated[
    dict[str, Any], Meta(title="JournalRecord", description="A record with its `event`, its `time` and its fields.")
]


def encode_number(value: Any) -> Number | None:
    """Return a number in the form the API sends it; None if the value is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if math.isnan(value):
        return "NaN"
    return float(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


class ErrorDetail(msgspec.Struct):
    """Why a request failed."""

    code: str
    """A stable identifier for programs, such as `not_found`."""
    message: str
    """An explanation for people: the problem and how to fix it."""


class ErrorBody(msgspec.Struct):
    """The body of every error response."""

    error: ErrorDetail


class ServerHealth(msgspec.Struct):
    """The server is up."""

    status: Literal["ok"]
    version: str


class Whoami(msgspec.Struct):
    """Who makes a request. On a private dashboard, the name is empty and everything is allowed."""

    name: str
    id: str
    scopes: list[str]
    project: str | None
    """The only project that the key gives access to; null for all."""
    expires: float | None
    server: str
    """The version of the server."""


class LoginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The token that the server printed at startup, or an access key of a team's server."""

    token: Annotated[str, Meta(max_length=512)]


class LoginForm(msgspec.Struct):
    """How to log in to this server."""

    needs: Literal["token", "access_key"]
    """The token that the server printed at startup, or an access key of a team's server."""


class LogoutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing: the cookie says who logs out."""


class RunSummary(msgspec.Struct, kw_only=True):
    """A run as the list of runs shows it."""

    name: str
    state: RunState
    started: float | None = None
    updated: float | None = None
    duration_s: float | None = None
    step: int | None = None
    last_step_at: float | None = msgspec.field(default=None, name="stepped")
    """Time of the last recorded step."""
    max_steps: int | None = None
    progress: float | None = None
    """Fraction of steps completed, 0 to 1."""
    eta_s: float | None = None
    """Estimated seconds until the last step."""
    steps_per_sec: float | None = None
    train_loss: Number | None = None
    host: str | None = None
    tags: list[str] = []
    session_tag: str | None = None
    reason: str | None = None
    """Why the run ended, or why it is in this state."""
    size_bytes: int = 0
    num_dropped: int = 0
    """Records dropped by the recorder."""
    num_open_alerts: int = 0
    num_critical_alerts: int = 0
    """Open alerts that are critical."""
    annotations_changed_at: float | None = msgspec.field(default=None, name="annotated")
    """When its name, tags, note or other annotations changed last."""


class RunsPage(msgspec.Struct):
    """The runs in the log folder, newest first."""

    log_dir: str
    """The log folder, to be shown; several are joined with commas."""
    log_dirs: list[str]
    """All log folders."""
    version: str
    """Changes with the list; a live stream `after` this version reports only later changes."""
    runs: list[RunSummary]


class AttemptView(msgspec.Struct, kw_only=True):
    """One attempt: the part of a run that one process recorded."""

    index: int
    state: RunState
    started: float | None = None
    updated: float | None = None
    duration_s: float | None = None
    """Without changes of the wall clock, which `updated - started` includes."""
    first_step: int | None = None
    last_step: int | None = None
    num_steps: int = 0
    num_records: int = 0
    energy_kwh: float | None = None
    """The energy that it used, as far as it was measured."""
    reason: str | None = None


class GoodputView(msgspec.Struct, kw_only=True):
    """How the run's time was spent, in seconds."""

    share: float
    """Productive training time divided by wall time."""
    is_meaningful: bool
    """Whether the run is long enough for its share to say something: a minute."""
    wall_s: float
    parts_s: dict[str, float]


class NoticeView(msgspec.Struct, kw_only=True):
    """Data that the training code logged and that no chart shows."""

    field: str | None = None
    """The metric; null if it concerns whole records."""
    reason: str


class CopyView(msgspec.Struct, kw_only=True):
    """How far a team's server has received a run."""

    seen: float
    """When the client reported last, by the clock of the server."""
    lag_bytes: int = 0
    """How many bytes the client had not sent then."""
    skew_s: float | None = None
    """By how much the clock of the trainer's machine is ahead of that of the server."""


class StreamAlive(msgspec.Struct):
    """Sent when nothing has changed for a while, so that a client can tell a quiet stream from a broken one."""

    now: float
    """The server's clock, in Unix time."""


class RunDetail(RunSummary, kw_only=True):
    """A run with its config, attempts, goodput and environment, but without metrics."""

    version: str
    """Changes whenever a record is added."""
    indexed_share: float = msgspec.field(name="indexed")
    """Fraction of the journal read so far, 0 to 1."""
    run_id: str | None = None
    path: str
    copy: CopyView | None = None
    """Set if a team's server received the run; null for a run that was recorded in this folder."""
    perf_tag: list[str] = []
    attempts: list[AttemptView] = []
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    """Results of the whole run that the training code stated."""
    facts: dict[str, Any] = {}
    """Other facts about the run, such as model and LoRA settings."""
    system: dict[str, Any] = {}
    git: dict[str, Any] = {}
    code: dict[str, Any] = {}
    """The captured code of the last attempt: `git`, `diff`, `files`, `packages` and so on."""
    parents: list[ParentRun] = []
    """The runs or checkpoints that the run started from."""
    plugins: list[PluginUse] = []
    """The training plugins of the last attempt."""
    failure: Failure | None = None
    """Why the run failed or crashed."""
    before_first_record_s: float = 0.0
    """Seconds from the start of the program to the first record: goodput counts them, `duration_s` does not."""
    goodput: GoodputView | None = None
    phases_s: dict[str, float] = {}
    """Seconds of the training loop by phase."""
    energy: Energy | None = None
    """The energy that the run used; null if no counter could be read."""
    sampling: str | None = None
    """How much of the loop is recorded now, as a sentence; null if everything is."""
    num_records: dict[str, int] = {}
    """Number of records by kind."""
    num_lost_records: int = 0
    num_media_lost: int = 0
    """About how many media records were not stored when the process was killed."""
    num_bad_lines: int = 0
    """Unreadable journal lines."""
    notices: list[NoticeView] = []
    """Logged data that no chart shows, such as arrays and values of unknown types."""
    checkpoints: list[JournalRecord] = []


class MetricView(msgspec.Struct, kw_only=True):
    """A summary of one metric. `low` and `high` cover finite values only."""

    name: str
    kind: str
    count: int
    signal: str | None = None
    """What it measures under any of its usual names: `loss`, `val_loss`, `lr`, `grad_norm`, `step_s`, …"""
    same_as: str | None = None
    """The metric that has the same values under its usual name; this one need not be shown."""
    last: Number | None = None
    last_step: int | None = None
    low: float | None = None
    high: float | None = None
    num_not_finite: int = 0
    x_metric: str | None = None
    """The metric that the training code chose as the x axis of its chart, as with W&B's `define_metric`."""
    is_printed: bool = False
    """Whether the script only printed it, and its values were read from the output."""


class MetricsPage(msgspec.Struct):
    """All metrics of a run, in order of first appearance."""

    version: str
    indexed_share: float = msgspec.field(name="indexed")
    """Fraction of the journal read so far, 0 to 1."""
    metrics: list[MetricView]


class CompareQuery(msgspec.Struct):
    """Which runs to judge."""

    run: Annotated[list[Name], Meta(min_length=1, max_length=200)]
    """A run to judge; can be repeated, for repeats of one training."""
    against: Annotated[list[Name], Meta(min_length=1, max_length=200)]
    """A run to compare with; can be repeated."""
    anyway: bool = False
    """Whether to judge also what is not comparable."""


class SeriesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select metrics and a range of the x axis."""

    name: Annotated[list[Name], Meta(min_length=1, max_length=64, description="Metric name; can be repeated.")]
    x: XAxis = "step"
    x_metric: XMetric = None
    low: Annotated[AxisValue | None, Meta(description="Start of the range; defaults to the start of the run.")] = None
    high: Annotated[AxisValue | None, Meta(description="End of the range; defaults to the end of the run.")] = None
    points: Annotated[int, Meta(ge=16, le=20_000, description="Approximate maximum number of points per line.")] = 2_000
    after: Annotated[
        Annotated[str, Meta(max_length=2_000, pattern=f"^{CURSOR_PATTERN}$")] | None,
        Meta(description="`cursor` of an earlier response; returns only points recorded since."),
    ] = None


class SeriesView(msgspec.Struct, kw_only=True):
    """The points of one metric in the requested range."""

    name: str
    last: Number | None = None
    """The most recent value, even if it lies outside the range."""
    lines: list[Line]
    """One line per attempt and stream."""
    marks: list[Mark]
    """Values that are NaN or infinite."""
    reason: str | None = None
    """Why there are no points: the run lacks the metric, or what the x axis needs."""
    num_unplaced: int = 0
    """Number of points of the run that are left out because the metric on the x axis has no value at or before them."""


class SeriesPage(msgspec.Struct, kw_only=True):
    """The points of several metrics."""

    version: str
    indexed_share: float = msgspec.field(name="indexed")
    """Fraction of the journal read so far, 0 to 1."""
    cursor: str
    """Send this as `after` to get only newer points."""
    is_whole: bool
    """True if this is the complete range; false if the points continue an earlier response."""
    start: float
    """Unix time at which the run started."""
    series: list[SeriesView]


class ExportQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select the points to export. An export is never downsampled."""

    name: Annotated[list[Name], Meta(min_length=1, max_length=64, description="Metric name; can be repeated.")]
    format: Annotated[Literal["csv", "json"], Meta(description="CSV, or JSON with one object per line.")] = "csv"
    x: Annotated[
        XAxis,
        Meta(
            description="X axis of `low` and `high`. With `samples`, `tokens` and `training_time`, the file has a "
            "column with the positions."
        ),
    ] = "step"
    low: Annotated[AxisValue | None, Meta(description="Start of the range; defaults to the start of the run.")] = None
    high: Annotated[AxisValue | None, Meta(description="End of the range; defaults to the end of the run.")] = None


class SpanQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select a time range."""

    low: Annotated[AxisValue | None, Meta(description="Start of the range, in Unix time.")] = None
    high: Annotated[AxisValue | None, Meta(description="End of the range, in Unix time.")] = None
    points: Annotated[
        int, Meta(ge=16, le=20_000, description="Width in pixels; spans shorter than a pixel can be merged into heaps.")
    ] = 2_000
    most: Annotated[int, Meta(ge=1, le=50_000, description="Maximum number of individual spans.")] = 20_000


class SpanDetail(msgspec.Struct, kw_only=True):
    """The records of one span."""

    records: list[JournalRecord]
    """The span's own records and the events inside it, in order."""


class RecordQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select records by kind."""

    kind: Annotated[
        list[Name],
        Meta(max_length=32, description="Record kind; can be repeated. Defaults to all kinds except points and spans."),
    ] = []
    limit: Annotated[int, Meta(ge=1, le=5_000, description="Maximum number of records per kind.")] = 500
    routine: Annotated[bool, Meta(description="Include routine events that telemetry records every few seconds.")] = (
        False
    )


class RecordsPage(msgspec.Struct, kw_only=True):
    """Records, newest first, without points and spans. The server keeps the last 1,000 records of each kind."""

    version: str
    num_records: dict[str, int]
    """Number of records in the journal by kind."""
    num_left_out: int
    """Routine events omitted from `records`."""
    records: list[JournalRecord]


class CompletionQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select completions."""

    step_min: Annotated[Step | None, Meta(description="First step to include.")] = None
    step_max: Annotated[Step | None, Meta(description="Last step to include.")] = None
    search: Annotated[str, Meta(max_length=500, description="Text that a row must contain; case-insensitive.")] = ""
    table: Annotated[Name | None, Meta(description="Table to read; defaults to all tables.")] = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Maximum number of rows.")] = 200


class CompletionsPage(msgspec.Struct, kw_only=True):
    """Sampled prompts and completions, newest first."""

    version: str
    tables: list[str]
    """The run's tables, in order of first appearance."""
    columns: list[str]
    """All columns of the table. A row omits the columns it has no value for."""
    rows: list[dict[str, Any]]
    is_whole: bool
    """True if `rows` holds every match; false if older rows were omitted or not searched."""
    steps: list[int]
    """The steps that have rows, ascending; thinned out if there are very many."""
    num_rows: int
    """Number of rows in the table."""
    num_rows_of_steps: int
    """Number of rows in the requested steps, regardless of the search."""
    num_dropped: int
    """Rows dropped before they were recorded, because the buffer was full."""


class DumpCause(msgspec.Struct, kw_only=True):
    """The cause of a fault, as far as the evidence shows it."""

    kind: str
    """A word for the cause, such as `activation_overflow`."""
    text: str
    confidence: Confidence


class AlertView(msgspec.Struct, kw_only=True):
    """One alert: a rule's finding, from opened to resolved."""

    id: str
    rule: str
    severity: Severity
    """The highest severity the alert reached."""
    title: str
    message: str
    meaning: str
    """What the finding usually means."""
    advice: list[str]
    """Common remedies."""
    evidence: dict[str, Any]
    """Values, window and steps from the latest record; `metric` names the affected metric, if any."""
    occurrences: list[dict[str, Any]]
    """The latest recurrences while the alert was open."""
    num_occurrences: int
    attempt: int
    opened_time: float | None
    opened_step: int | None
    updated_time: float | None
    updated_step: int | None
    resolved_time: float | None
    resolved_step: int | None
    outcome: str
    """Why the alert was resolved."""
    cause: DumpCause | None
    """What caused the fault, if a dump shows it; the page of dumps has the evidence."""
    is_open: bool
    """False once the alert is resolved, or once the run resumes after its attempt ended."""
    judgement: Literal["", "right", "wrong"]
    """Whether a person called the alert right or wrong: the annotation `alert.<rule>@<opened_step>`."""


class AlertsPage(msgspec.Struct, kw_only=True):
    """The alerts of a run. Long texts and large evidence are shortened; the journal has them in full."""

    version: str
    num_open: int
    num_critical: int
    """Open alerts that are critical."""
    num_left_out: int
    """Alerts omitted from `alerts`, because there are too many."""
    alerts: list[AlertView]
    """Open alerts first, most severe first; then closed alerts, newest first."""


class DumpView(msgspec.Struct, kw_only=True):
    """Evidence that a run captured when something went wrong."""

    name: str
    reason: str
    """The rule of an alert, or `exception`, `hang`, `out_of_memory` and the like."""
    step: int | None
    time: float
    rank: int
    alert_id: str | None
    cause: DumpCause | None
    size_bytes: int
    parts: list[str]
    problems: list[str]
    """The parts that are missing, and why."""


class DumpsPage(msgspec.Struct, kw_only=True):
    """The dumps of a run, oldest first."""

    version: str
    dumps: list[DumpView]


class DumpDetail(msgspec.Struct, kw_only=True):
    """One dump with its parts by name. Long lists are shortened; the files have them in full."""

    dump: DumpView
    content: dict[str, Any]


class DumpQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select the rank that captured a dump."""

    rank: Annotated[int, Meta(ge=0, description="The rank that captured the dump.")] = 0


class TraceView(msgspec.Struct, kw_only=True):
    """A stored trace of the PyTorch profiler."""

    name: str
    """File name; use it to download the trace."""
    time: float
    """When the trace was stored."""
    first_step: int
    num_steps: int
    size_bytes: int
    duration_s: float | None = None
    """Duration of the profiled steps."""


class TracesPage(msgspec.Struct, kw_only=True):
    """The traces of a run, newest first. Request one with the control `profile_steps`."""

    version: str
    traces: list[TraceView]


class RankQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select ranks of a distributed run."""

    limit: Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of ranks; the worst come first.")] = 16


class RankHeatQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select what ranks are compared by."""

    quantity: Annotated[
        Literal["own", "wait", "data"],
        Meta(description="The own work of an iteration, the time that may be waiting, or the time for data."),
    ] = "own"


class RankRow(msgspec.Struct, kw_only=True):
    """One rank in its last attempt."""

    rank: int
    state: str
    host: str | None = None
    local_rank: int | None = None
    mesh: dict[str, int] = {}
    """Its position in the mesh of the job, such as ``{"data": 3, "pipeline": 1}``."""
    pid: int | None = None
    num_iterations: int | None = None
    mean_iteration_s: float | None = None
    """How long an iteration takes in its last window."""
    own_s: float | None = None
    """How much of that is its own work, free of waiting for other ranks."""
    wait_s: float | None = None
    """The rest, in which it may have waited for other ranks."""
    score: float | None = None
    """The usual own time of all ranks divided by the one of this rank: below 0.93 it is slow."""
    phase: str | None = None
    """What it is doing, while it runs."""
    phase_since: float | None = None
    """Since when, as a wall time."""
    collective: str | None = None
    """The function of `torch.distributed` that it is in."""
    location: str | None = None
    """The innermost line of the program itself."""
    error: str | None = None
    """The first line of its last error, or why it ended."""


class RankStacks(msgspec.Struct, kw_only=True):
    """Ranks that hung in the same place."""

    num_ranks: int
    ranks: list[int]
    """The first hundred of them."""
    lines: list[str]
    """The stack of the main thread, innermost call last."""


class RanksPage(msgspec.Struct, kw_only=True):
    """The ranks of a distributed run; none for a run of one process."""

    version: str
    num_ranks: int
    num_by_state: dict[str, int]
    ranks: list[RankRow]
    """Failed ranks first, then silent ones, then the slowest."""
    stacks: list[RankStacks]
    """Where ranks hung, the rarest place first."""


LineNumber = Annotated[int, Meta(ge=0, le=10**12)]


class OutputQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select lines of the console output."""

    offset: Annotated[
        LineNumber | None, Meta(description="Number of the first line; defaults to the last `limit` lines.")
    ] = None
    limit: Annotated[int, Meta(ge=0, le=2_000, description="Maximum number of lines.")] = 500
    search: Annotated[str, Meta(max_length=500, description="Text to find in all lines; case-insensitive.")] = ""


class OutputRow(msgspec.Struct, kw_only=True):
    """A line that the program printed."""

    number: int
    """Counted from the start of the run. Lines that were not kept count, too."""
    time: float | None
    stream: str
    """`stdout`, `stderr`, `output` if both went to the same place, or `notice` for a remark of Tachograph."""
    text: str


class OutputRange(msgspec.Struct):
    """Consecutive lines."""

    first: int
    """The number of the first line."""
    end: int
    """The number after the last line."""


class OutputPage(msgspec.Struct, kw_only=True):
    """The console output of a program under `tacho run`, with secrets masked."""

    version: str
    """Changes with the output; empty if none was recorded."""
    ranges: list[OutputRange]
    """The lines that are kept, in order. Those between two ranges were deleted to make room for newer ones."""
    rows: list[OutputRow]
    """The requested lines; fewer if they are very long."""
    partial: list[OutputRow]
    """Lines that are not complete yet, such as a progress bar."""
    num_matches: int
    """How many lines contain the text searched for."""
    matches: list[int]
    """Their numbers; the newest ones if there are very many."""


class ControlAnswer(msgspec.Struct, kw_only=True):
    """The training process's answer to a control request."""

    id: str | None
    """The id of the request."""
    control: str
    status: str
    time: float
    value: Any = None
    reason: str | None = None
    wait_s: float | None = None
    """Seconds until a pending request is applied."""


class ControlView(msgspec.Struct, kw_only=True):
    """A value that can be changed while the run is training."""

    name: str
    kind: Literal["bool", "int", "float"]
    value: float | bool | None = None
    initial: float | bool | None = None
    """The value that the training code started with; it can be requested even if it is out of range."""
    min: float | None = None
    max: float | None = None


class ControlsPage(msgspec.Struct, kw_only=True):
    """The controls of a run, and the answers to earlier requests."""

    version: str
    is_open: bool
    """Whether a training process accepts requests."""
    problem: str | None
    """Why the run accepts no requests from this server, although it may be running."""
    controls: list[ControlView]
    requests: list[str]
    """Actions that can be requested in addition to values, such as `checkpoint_now`."""
    answers: list[ControlAnswer]
    """Newest first."""
    changes: list[JournalRecord]
    """Applied changes, newest first."""


class ControlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """New values by control name; `true` for `checkpoint_now`, `dump_now` and `stop`, a number for `profile_steps`."""

    values: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=200)], bool | int | float], Meta(min_length=1, max_length=64)
    ]


class RequestIds(msgspec.Struct):
    """The request was written to the control file. The answer will carry the same id."""

    ids: dict[str, str]
    """Request id by control name."""
