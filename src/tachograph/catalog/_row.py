"""A run as a row of a table: any fact, config key or aggregate of a metric by its dotted name."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from tachograph.catalog._annotations import Annotations
from tachograph.catalog._direction import direction_of
from tachograph.catalog._summary import CatalogSummary
from tachograph.journal import RunFolder
from tachograph.records import loss_names_in, metric_direction, result_name_in, signal_of
from tachograph.store import MetricAggregates

__all__ = [
    "AGGREGATES",
    "FACTS",
    "FULL_FACTS",
    "Fact",
    "FactKind",
    "RunRow",
    "SIGNAL_ANNOTATION",
    "StepValue",
    "needs_full",
    "reader_of",
    "result_direction",
    "result_fields",
    "step_value_of",
]

FactKind = Literal["text", "number", "time", "duration", "share", "bytes", "bool", "list"]

AGGREGATES: dict[str, str] = {
    "last": "the last value, also if it is NaN",
    "first": "the first value",
    "min": "the lowest finite value",
    "max": "the highest finite value",
    "mean": "the mean of all finite values",
    "median": "the median of all finite values",
    "tail": "the mean over the last tenth of the steps",
    "at_min": "the step of the lowest value",
    "at_max": "the step of the highest value",
    "best": "the lowest or the highest value, if the name of the metric tells what is better",
    "at_best": "the step of the best value",
    "nonfinite": "the number of NaN and infinite values",
}
SIGNAL_ANNOTATION = "custom.signal_"
"""Start of the annotation with the metric that a user named as a signal; see `tacho doctor --map`."""
_MAX_RESULT_FIELDS = 3
_STEP_VALUE = re.compile(r"(.+)@(\d{1,15})([kKM]?)", re.DOTALL)


class StepValue(NamedTuple):
    """The value of a metric at a step, as a field: ``loss@1000``."""

    metric: str
    step: int

    @property
    def key(self) -> str:
        """The field, always written in the same way."""
        return f"{self.metric}@{self.step}"


@functools.lru_cache(maxsize=10_000)
def step_value_of(field: str) -> StepValue | None:
    """Return the metric and the step of a field such as ``loss@1000`` or ``loss@10k``; None for other fields."""
    match = None if field in FACTS else _STEP_VALUE.fullmatch(field)
    if match is None or field.startswith(("config.", "summary.", "git.", "custom.")):
        return None
    return StepValue(match[1], int(match[2]) * {"": 1, "M": 1_000_000}.get(match[3], 1_000))


class RunRow:
    """The row of a run. The same object as long as nothing about the run changes."""

    __slots__ = ("_loss_name", "_result_name", "annotations", "children", "id", "log_dir", "name", "summary")

    def __init__(
        self, name: str, log_dir: str, summary: CatalogSummary, notes: Annotations, row_id: str | None = None
    ) -> None:
        self.id = name if row_id is None else row_id
        """The name, with the label of the log folder in front if several folders have a run of this name."""
        self.name = name
        """The folder of the run relative to its log folder, such as ``sweep-3/run-12``."""
        self.log_dir = log_dir
        self.summary = summary
        self.annotations = notes
        self.children: list[str] = []
        """The ids of the runs that started from this one, as far as summaries are full."""
        self._loss_name: str | None = ""
        self._result_name: str | None = ""

    def __repr__(self) -> str:
        return f"RunRow({self.id!r})"

    @property
    def folder(self) -> RunFolder:
        """The folder of the run."""
        return RunFolder(f"{self.log_dir}/{self.name}")

    def with_summary(self, summary: CatalogSummary, annotations: Annotations | None = None) -> RunRow:
        """Return a row of the same run with something changed."""
        row = RunRow(self.name, self.log_dir, summary, annotations or self.annotations, self.id)
        row.children = self.children
        return row

    def with_children(self, children: list[str]) -> RunRow:
        """Return a row of the same run with other children."""
        row = self.with_summary(self.summary)
        row.children = children
        return row

    def get(self, field: str, /) -> Any:
        """Return the value of a field, or None if the run lacks it."""
        return reader_of(field)(self)

    def has(self, field: str) -> bool:
        """Return whether the run has a field, also if an aggregate of its metric has no value."""
        if field in FACTS or self.get(field) is not None:
            return True
        name, dot, aggregate = field.rpartition(".")
        at = step_value_of(field)
        names = [name] if dot and aggregate in AGGREGATES else [] if at is None else [at.metric]
        return any(self.metric_name(name) is not None for name in names)

    def metric(self, name: str) -> MetricAggregates | None:
        """Return the aggregates of a metric; ``loss`` also means the other usual names of the training loss."""
        metric_name = self.metric_name(name)
        return None if metric_name is None else self.summary.metrics[metric_name]

    def metric_name(self, name: str) -> str | None:
        """Return the name of a metric in this run, or None if it has none of that name."""
        return name if name in self.summary.metrics else self.loss_name if name == "loss" else None

    @property
    def loss_name(self) -> str | None:
        """The name of the training loss, the best one if there are several."""
        if self._loss_name == "":
            mapped_name = self.annotations.values.get(f"{SIGNAL_ANNOTATION}loss")
            metrics = self.summary.metrics
            self._loss_name = mapped_name if mapped_name in metrics else next(iter(loss_names_in(metrics)), None)
        return self._loss_name

    @property
    def result_name(self) -> str | None:
        """The metric that tells how good the run is; None if it has none with a usual name."""
        if self._result_name == "":
            self._result_name = result_name_in(self.summary.metrics) or self.loss_name
        return self._result_name

    def missing_values(self, step_values: Iterable[StepValue]) -> list[StepValue]:
        """Return the values at steps that this run has, but that were not computed yet."""
        summary = self.summary
        return [
            at for at in step_values if at.key not in summary.step_values and self.metric_name(at.metric) is not None
        ]

    @property
    def config_fields(self) -> list[str]:
        """The fields of the config and of the stated results."""
        return [*(f"config.{key}" for key in self.summary.config), *(f"summary.{key}" for key in self.summary.results)]


def _annotation_reader(field: str, base: Callable[[RunRow], Any] = lambda row: None) -> Callable[[RunRow], Any]:
    def read(row: RunRow) -> Any:
        value = row.annotations.values.get(field)
        return base(row) if value is None else None if value == "" else value

    return read


def _loss(row: RunRow) -> float | None:
    name = row.loss_name
    return row.summary.overview.train_loss if name is None else row.summary.metrics[name].last


def _result(row: RunRow) -> float | None:
    name = row.result_name
    return None if name is None else getattr(row.summary.metrics[name], _result_aggregate(name))


def result_direction(name: str) -> int:
    """Return the direction of a metric that is a result; a loss with an unusual name is one that should fall.

    It is 0 for the losses of a GAN, which may rise while the training goes well.
    """
    is_adversarial = (signal_of(name) or ("",))[0] == "adversarial_loss"
    return 0 if is_adversarial else metric_direction(name) or -1


def _result_aggregate(name: str) -> Literal["min", "last", "max"]:
    direction = result_direction(name)
    return "max" if direction > 0 else "min" if direction < 0 else "last"


def result_fields(rows: Iterable[RunRow]) -> list[str]:
    """Return the fields of the results of runs, one for each metric that is a result, the most usual one first."""
    counts = Counter(name for row in rows if (name := row.result_name) is not None)
    return [f"{name}.{_result_aggregate(name)}" for name, _ in counts.most_common(_MAX_RESULT_FIELDS)] or ["result"]


def _num_alerts(row: RunRow) -> int:
    num_alerts = row.summary.num_alerts
    return row.summary.overview.num_open_alerts if num_alerts is None else num_alerts


def _parent_names(row: RunRow) -> list[str]:
    names = (parent.run_name or parent.checkpoint_path or parent.run_id for parent in row.summary.parents)
    return list(dict.fromkeys(name for name in names if name))


def _parent(row: RunRow) -> str | None:
    return next(iter(_parent_names(row)[::-1]), None)


def _ended_at(row: RunRow) -> float | None:
    return row.summary.overview.updated if row.summary.has_end else None


class Fact(NamedTuple):
    """A fact of a run, as a column of a table."""

    kind: FactKind
    meaning: str
    read: Callable[[RunRow], Any]


FACTS: dict[str, Fact] = {
    "name": Fact("text", "the folder of the run, relative to the log folder", lambda row: row.name),
    "display_name": Fact(
        "text",
        "the name given with `tacho rename`, or by the training code after its start",
        _annotation_reader("display_name", lambda row: row.summary.display_name),
    ),
    "state": Fact(
        "text", "running, finished, failed, interrupted, crashed or stale", lambda row: str(row.summary.overview.state)
    ),
    "project": Fact("text", "the project", _annotation_reader("project", lambda row: row.summary.project)),
    "group": Fact("text", "the group", _annotation_reader("group", lambda row: row.summary.group)),
    "job_type": Fact("text", "the kind of job, such as train or eval", lambda row: row.summary.job_type),
    "tags": Fact(
        "list",
        "tags of the training code and those added later",
        lambda row: row.annotations.merge_tags(row.summary.overview.tags),
    ),
    "note": Fact("text", "the note", _annotation_reader("note", lambda row: row.summary.note)),
    "archived": Fact("bool", "whether lists leave the run out", _annotation_reader("archived", lambda row: False)),
    "pinned": Fact("bool", "whether the run is pinned", _annotation_reader("pinned", lambda row: False)),
    "rating": Fact("number", "0 to 5", _annotation_reader("rating")),
    "color": Fact("text", "the color in charts", _annotation_reader("color")),
    "started": Fact("time", "when the first process started", lambda row: row.summary.overview.started),
    "updated": Fact("time", "the time of the last record", lambda row: row.summary.overview.updated),
    "ended": Fact("time", "when the run ended; missing while it is recorded", _ended_at),
    "duration": Fact("duration", "from the first to the last record", lambda row: row.summary.overview.duration_s),
    "steps": Fact("number", "the number of completed steps", lambda row: row.summary.overview.num_done),
    "max_steps": Fact("number", "the planned number of steps", lambda row: row.summary.overview.max_steps),
    "progress": Fact("share", "the share of completed steps", lambda row: row.summary.overview.progress),
    "loss": Fact("number", "the last training loss, under any of its usual names", _loss),
    "result": Fact(
        "number",
        "the best value of the first that the run has: validation loss or accuracy, test loss or accuracy, reward, "
        "training loss; of a GAN, the last loss of the generator",
        _result,
    ),
    "result_metric": Fact("text", "the name of that metric", lambda row: row.result_name),
    "step_time": Fact(
        "duration",
        "the median time of a step",
        lambda row: row.summary.step_time_s or row.summary.overview.sec_per_step,
    ),
    "goodput": Fact(
        "share", "the share of productive time, if iterations were marked", lambda row: row.summary.goodput
    ),
    "energy_kwh": Fact(
        "number",
        "the energy of GPUs and processors in kWh, as far as it was measured",
        lambda row: row.summary.energy_kwh,
    ),
    "alerts": Fact("number", "the number of alerts, also resolved ones", _num_alerts),
    "open_alerts": Fact("number", "the number of open alerts", lambda row: row.summary.overview.num_open_alerts),
    "critical_alerts": Fact(
        "number", "the number of open critical alerts", lambda row: row.summary.overview.num_critical_alerts
    ),
    "checkpoints": Fact("number", "the number of checkpoints", lambda row: row.summary.num_checkpoints),
    "attempts": Fact("number", "how many processes recorded the run", lambda row: row.summary.num_attempts),
    "parent": Fact("text", "the run that this one started from; of several, the last one", _parent),
    "parents": Fact("list", "all runs that this one started from", lambda row: _parent_names(row) or None),
    "children": Fact("list", "the runs that started from this one", lambda row: row.children or None),
    "host": Fact("text", "the machine", lambda row: row.summary.host),
    "gpus": Fact(
        "number",
        "the number of GPUs of the machine",
        lambda row: len(row.summary.gpus) if row.summary.is_full else None,
    ),
    "gpu": Fact("text", "their model", lambda row: ", ".join(dict.fromkeys(row.summary.gpus)) or None),
    "world_size": Fact("number", "the number of ranks", lambda row: row.summary.world_size),
    "ranks.dead": Fact(
        "number",
        "the number of ranks that failed or crashed",
        lambda row: row.summary.ranks and row.summary.ranks.num_dead,
    ),
    "ranks.cost": Fact(
        "share",
        "the share of an iteration in which the typical rank waits for the slowest one",
        lambda row: row.summary.ranks and row.summary.ranks.cost_share,
    ),
    "command": Fact("text", "the command line, secrets masked", lambda row: row.summary.command),
    "session_tag": Fact("text", "see [tags](tags.md)", lambda row: row.summary.overview.session_tag),
    "perf_tag": Fact("text", "see [tags](tags.md)", lambda row: row.summary.perf_tag),
    "reason": Fact("text", "why the run ended", lambda row: row.summary.overview.reason),
    "run_id": Fact("text", "the id, which a copy of the folder keeps", lambda row: row.summary.run_id),
    "size": Fact("bytes", "the size of the journal before compression", lambda row: row.summary.overview.size_bytes),
    "folder": Fact("text", "the log folder", lambda row: row.log_dir),
}
"""The facts of a run; the rest of its fields are ``git.*``, ``config.*``, ``summary.*``, ``custom.*`` and metrics."""

FULL_FACTS = frozenset(
    {"project", "group", "job_type", "step_time", "goodput", "alerts", "checkpoints", "attempts", "host", "gpus", "gpu"}
    | {
        "energy_kwh",
        "world_size",
        "ranks.dead",
        "ranks.cost",
        "command",
        "perf_tag",
        "run_id",
        "loss",
        "result",
        "result_metric",
        "parent",
        "parents",
        "children",
    }
)
"""The facts that need a full summary; the others are read from the ends of the journal."""


def needs_full(field: str) -> bool:
    """Return whether a field needs a full summary."""
    return field in FULL_FACTS or (field not in FACTS and not field.startswith("custom."))


@functools.lru_cache(maxsize=10_000)
def reader_of(field: str) -> Callable[[RunRow], Any]:
    """Return a function that returns the value of a field, or None if a run lacks it."""
    fact = FACTS.get(field)
    if fact is not None:
        return fact.read
    prefix, dot, rest = field.partition(".")
    if dot and prefix == "config":
        return lambda row: row.summary.config.get(rest)
    if dot and prefix == "summary":
        return lambda row: row.summary.results.get(rest)
    if dot and prefix == "git":
        return lambda row: row.summary.git.get(rest)
    if dot and prefix == "custom":
        return lambda row: row.annotations.values.get(field)
    return _metric_reader(field)


def _metric_reader(field: str) -> Callable[[RunRow], Any]:
    name, dot, aggregate = field.rpartition(".")
    is_aggregate = bool(dot) and aggregate in AGGREGATES
    if aggregate in {"best", "at_best"}:
        side = {-1: "min", 1: "max"}.get(direction_of(name))
        aggregate = aggregate.replace("best", side) if side else ""
    at = step_value_of(field)

    def read(row: RunRow) -> Any:
        if is_aggregate and (aggregates := row.metric(name)) is not None:
            return getattr(aggregates, aggregate) if aggregate else None
        aggregates = row.metric(field)
        if aggregates is not None:
            return aggregates.last
        return None if at is None else row.summary.step_values.get(at.key)

    return read
