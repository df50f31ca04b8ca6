"""What the API says and takes. The OpenAPI document and `docs/api.md` are made of these classes."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tachograph.journal import RunState
from tachograph.store import Line, Mark, SpanView

__all__ = [
    "CURSOR_PATTERN",
    "AlertView",
    "Alerts",
    "Answer",
    "AttemptView",
    "CompletionQuery",
    "Completions",
    "Control",
    "ControlRequest",
    "Controls",
    "ErrorBody",
    "Export",
    "Goodput",
    "Health",
    "Login",
    "Metric",
    "Metrics",
    "Number",
    "RecordQuery",
    "Records",
    "Requested",
    "RunDetail",
    "RunLine",
    "Runs",
    "SeriesQuery",
    "SeriesView",
    "Severity",
    "SpanDetail",
    "SpanQuery",
    "SpanView",
    "TraceView",
    "Traces",
    "Views",
    "number",
]

Number = float | Literal["NaN", "Infinity", "-Infinity"]
"""JSON has no NaN and no infinity: they are said as texts, as in the journal."""
Severity = Literal["info", "warning", "critical"]
XAxis = Literal["step", "time", "relative", "epoch"]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
CURSOR_PATTERN = "([0-9a-f]{1,16})((?:-[a-z_]{1,32}:[0-9]{1,15})*)"
Place = Annotated[float, Meta(ge=-1e18, le=1e18)]
Step = Annotated[int, Meta(ge=-(2**53), le=2**53)]


def number(value: Any) -> Number | None:
    """Return a number as the API says it, or None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if math.isnan(value):
        return "NaN"
    return float(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


class Fault(msgspec.Struct):
    """What went wrong."""

    code: str
    """A word for programs, such as `not_found`."""
    message: str
    """A sentence for people: what was wrong and what to do."""


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: Fault


class Health(msgspec.Struct):
    """The server is up."""

    status: Literal["ok"]
    version: str


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The token that the server printed when it started."""

    token: Annotated[str, Meta(max_length=512)]


class RunLine(msgspec.Struct, kw_only=True):
    """One line of the list of runs."""

    name: str
    state: RunState
    started: float | None = None
    updated: float | None = None
    duration_s: float | None = None
    step: int | None = None
    stepped: float | None = None
    """When the last step was recorded."""
    max_steps: int | None = None
    progress: float | None = None
    """Share of the steps that are done."""
    eta_s: float | None = None
    """Seconds until the last step, at the present pace."""
    steps_per_sec: float | None = None
    train_loss: Number | None = None
    host: str | None = None
    tags: list[str] = []
    session_tag: str | None = None
    reason: str | None = None
    size_bytes: int = 0
    num_dropped: int = 0
    """Records that telemetry had to drop."""
    num_open_alerts: int = 0
    """What rules found wrong and is not resolved."""
    num_critical_alerts: int = 0
    """Those of the open alerts that are critical."""


class Runs(msgspec.Struct):
    """The runs of the log folder, the newest first."""

    log_dir: str
    runs: list[RunLine]


class AttemptView(msgspec.Struct, kw_only=True):
    """What one process recorded of a run."""

    index: int
    state: RunState
    started: float | None = None
    updated: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    num_steps: int = 0
    num_records: int = 0
    reason: str | None = None


class Goodput(msgspec.Struct, kw_only=True):
    """Where the time of a run went, in seconds."""

    share: float
    """Training that counts, of the time that was reported."""
    wall_s: float
    parts_s: dict[str, float]


class RunDetail(RunLine, kw_only=True):
    """All that is known of a run, but for its points."""

    version: str
    """Another one whenever something was recorded."""
    indexed: float
    """Which part of the journal was read so far."""
    run_id: str | None = None
    path: str
    perf_tag: list[str] = []
    attempts: list[AttemptView] = []
    config: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    """What is known of model, LoRA and training set-up."""
    system: dict[str, Any] = {}
    git: dict[str, Any] = {}
    goodput: Goodput | None = None
    phases_s: dict[str, float] = {}
    """Seconds of training loops by phase."""
    num_records: dict[str, int] = {}
    num_lost_records: int = 0
    num_bad_lines: int = 0
    checkpoints: list[dict[str, Any]] = []


class Metric(msgspec.Struct, kw_only=True):
    """A metric in a few numbers; the extremes are over finite values."""

    name: str
    kind: str
    count: int
    last: Number | None = None
    last_step: int | None = None
    low: float | None = None
    high: float | None = None
    num_not_finite: int = 0


class Metrics(msgspec.Struct):
    """Every metric of a run, in order of appearance."""

    version: str
    indexed: float
    metrics: list[Metric]


class SeriesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which points of which metrics."""

    name: Annotated[list[Name], Meta(min_length=1, max_length=64, description="Metrics; may be given several times.")]
    x: Annotated[XAxis, Meta(description="The axis: step, unix time, seconds since the run began, or epoch.")] = "step"
    low: Annotated[Place | None, Meta(description="Where the view begins; without it, where the run does.")] = None
    high: Annotated[Place | None, Meta(description="Where the view ends.")] = None
    points: Annotated[int, Meta(ge=16, le=20_000, description="About how many points at most, for each line.")] = 2_000
    after: Annotated[
        Annotated[str, Meta(max_length=2_000, pattern=f"^{CURSOR_PATTERN}$")] | None,
        Meta(description="The `cursor` of an earlier answer: only what was recorded since."),
    ] = None


class SeriesView(msgspec.Struct, kw_only=True):
    """A metric in a view."""

    name: str
    last: Number | None = None
    """The value that was recorded last, whether it is in the view or not."""
    lines: list[Line]
    marks: list[Mark]


class Views(msgspec.Struct, kw_only=True):
    """Metrics in a view."""

    version: str
    indexed: float
    cursor: str
    """To be given as `after` to get what is recorded from now on."""
    is_whole: bool
    """Whether this is the whole view; otherwise it is to be added to what is known."""
    start: float
    """When the run began, in unix time."""
    series: list[SeriesView]


class Export(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which points to export, every one of them."""

    name: Annotated[list[Name], Meta(min_length=1, max_length=64, description="Metrics; may be given several times.")]
    format: Annotated[Literal["csv", "json"], Meta(description="CSV, or JSON with one object per line.")] = "csv"
    x: Annotated[XAxis, Meta(description="The axis that `low` and `high` are on.")] = "step"
    low: Place | None = None
    high: Place | None = None


class SpanQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which spans."""

    low: Annotated[Place | None, Meta(description="Unix time at which the view begins.")] = None
    high: Annotated[Place | None, Meta(description="Unix time at which the view ends.")] = None
    points: Annotated[int, Meta(ge=16, le=20_000, description="Pixels: shorter spans may be put into heaps.")] = 2_000
    most: Annotated[int, Meta(ge=1, le=50_000, description="How many spans one by one, at most.")] = 20_000


class SpanDetail(msgspec.Struct, kw_only=True):
    """Everything that was recorded of a span."""

    records: list[dict[str, Any]]
    """Its own records and the events in it, in order."""


class RecordQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which records."""

    kind: Annotated[
        list[Name], Meta(max_length=32, description="Kinds of records; without it, all but points and spans.")
    ] = []
    limit: Annotated[int, Meta(ge=1, le=5_000, description="The latest ones of each kind, at most.")] = 500
    routine: Annotated[bool, Meta(description="With the events that telemetry notes for itself every few seconds.")] = (
        False
    )


class Records(msgspec.Struct, kw_only=True):
    """Records, the newest first. Points and spans are not among them; of each kind the last 1,000 are known."""

    version: str
    num_records: dict[str, int]
    """How many there are of each kind in the journal."""
    num_left_out: int
    """Routine events that are not in the list."""
    records: list[dict[str, Any]]


class CompletionQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which completions."""

    step_min: Annotated[Step | None, Meta(description="Only those of this step or later ones.")] = None
    step_max: Annotated[Step | None, Meta(description="Only those of this step or earlier ones.")] = None
    search: Annotated[str, Meta(max_length=500, description="Only those that say this somewhere, in any case.")] = ""
    table: Annotated[Name | None, Meta(description="Only those of this table; without it, of all.")] = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="How many, at most.")] = 200


class Completions(msgspec.Struct, kw_only=True):
    """Samples of what the model was given and what came of it, the newest first."""

    version: str
    tables: list[str]
    """The tables of the run, in order of appearance."""
    columns: list[str]
    """Every column of the table; a row lacks those that it does not have."""
    rows: list[dict[str, Any]]
    is_whole: bool
    """Whether these are all that were asked for; otherwise the older ones are left out, or were not searched."""
    steps: list[int]
    """The steps of which there are rows, in order; of very many, some."""
    num_rows: int
    """How many rows the table has in all."""
    num_rows_of_steps: int
    """How many of them are of the steps that were asked for, whatever was searched."""
    num_dropped: int
    """Rows that were dropped before they were recorded, because there were too many."""


class AlertView(msgspec.Struct, kw_only=True):
    """A fault that a rule found, told once: what is wrong, since when, and whether it still is."""

    id: str
    rule: str
    severity: Severity
    """The worst it came to."""
    title: str
    message: str
    meaning: str
    """What it usually means."""
    advice: list[str]
    """What people do about it."""
    evidence: dict[str, Any]
    """Numbers, window and steps, as of the last record; `metric` names the metric concerned, if there is one."""
    occurrences: list[dict[str, Any]]
    """The last times that the fault came back while the alert was open."""
    num_occurrences: int
    attempt: int
    opened_time: float | None
    opened_step: int | None
    updated_time: float | None
    updated_step: int | None
    resolved_time: float | None
    resolved_step: int | None
    outcome: str
    """Why it was resolved."""
    is_open: bool
    """Whether it was neither resolved nor left behind by a process that ended before a resume."""


class Alerts(msgspec.Struct, kw_only=True):
    """What rules found wrong with a run. Long texts and much evidence are cut; the records have all of it."""

    version: str
    num_open: int
    num_critical: int
    """Those of the open ones that are critical."""
    num_left_out: int
    """Alerts that are not in the list, since there are too many."""
    alerts: list[AlertView]
    """The open ones first, the worst before the rest, then the others, the newest first."""


class TraceView(msgspec.Struct, kw_only=True):
    """What torch's profiler saw of some steps, stored in a file."""

    name: str
    """Of the file, to download it by."""
    time: float
    """When it was stored."""
    first_step: int
    num_steps: int
    size_bytes: int
    duration_s: float | None = None
    """How long the steps took."""


class Traces(msgspec.Struct, kw_only=True):
    """The traces of a run, the newest first. They are taken on request: `profile_steps` of the controls."""

    version: str
    traces: list[TraceView]


class Answer(msgspec.Struct, kw_only=True):
    """What the trainer said to a request."""

    id: str | None
    control: str
    status: str
    time: float
    value: Any = None
    reason: str | None = None
    wait_s: float | None = None
    """How long it will be before a pending one is taken."""


class Control(msgspec.Struct, kw_only=True):
    """A value that can be steered."""

    name: str
    kind: Literal["bool", "int", "float"]
    value: float | bool | None = None
    min: float | None = None
    max: float | None = None


class Controls(msgspec.Struct, kw_only=True):
    """What can be steered, and what the trainer answered."""

    version: str
    is_open: bool
    """Whether there is a trainer to ask."""
    controls: list[Control]
    requests: list[str]
    """What can be asked for besides values."""
    answers: list[Answer]
    """The newest first."""
    changes: list[dict[str, Any]]
    """The changes that were made, the newest first."""


class ControlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Wanted values by name of the control; `true` for `checkpoint_now` and `stop`, a number for `profile_steps`."""

    values: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=200)], bool | int | float], Meta(min_length=1, max_length=64)
    ]


class Requested(msgspec.Struct):
    """The request is in the file that the trainer reads; its answer will bear the id."""

    ids: dict[str, str]
