"""The run that `wandb.init` returns: W&B's interface over a run of ours.

Rows. W&B collects the values of a step into a row: ``log(values)`` completes the row and moves on to the next step,
``log(values, commit=False)`` adds to the row, ``log(values, step=n)`` moves on to the row of a step and leaves it open.
Here, values with a step are recorded at once, and readers join the rows of a step. Values that were added with
``commit=False`` are pending until the row is completed.

Steps. If an integration of ours observes the loop, its iterations are the steps of the run: a row is recorded at the
iteration in which it was logged; see `place_row`. W&B's count of rows, which `Run.step` returns, is then only a count.
"""

from __future__ import annotations

import glob as globbing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from gc import is_tracked
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tachograph._base.files import make_folder, make_link
from tachograph._base.guard import guard, reraise_from_signal_handler, suppress, warn
from tachograph.bridges.drop_in import (
    RunEndCallback,
    UnrecordedCalls,
    as_number,
    as_scalar,
    histogram,
    log_histogram,
    log_media,
    num_values,
    place_row,
)
from tachograph.bridges.wandb.facade.artifact import LoggedArtifact, find_artifact, safe_artifact_name
from tachograph.bridges.wandb.facade.config import RunConfig
from tachograph.bridges.wandb.facade.data_types import Histogram, Media, Table
from tachograph.bridges.wandb.facade.errors import CommError, UnsupportedError
from tachograph.bridges.wandb.facade.media_values import bare_media
from tachograph.bridges.wandb.facade.metric import DefinedMetric, define, step_metric_of, with_step_metrics
from tachograph.bridges.wandb.facade.plot import CustomChart
from tachograph.bridges.wandb.facade.summary import WandbSummary, copy_value
from tachograph.bridges.wandb.facade.table_rows import table_rows
from tachograph.bridges.wandb.logged_media import is_of_wandb, original_media
from tachograph.recorder import Run
from tachograph.records import METRIC_DEFINED, RUN_LABELED, AlertRecord, is_array

__all__ = ["AlertLevel", "OtherRecords", "WandbRun"]

_NUMBERS = frozenset({float, int, bool, str, type(None)})
_MAX_LIST = 32
_SEVERITIES = {"INFO": "info", "WARN": "warning", "ERROR": "critical"}


class OtherRecords(NamedTuple):
    """What else records the run of a script: `tacho run`."""

    script_names: set[str]
    """Gets the names of all metrics that the script logs, which nothing else needs to log."""
    is_duplicate: Callable[[], bool]
    """Returns whether the row that is being logged comes from a trainer whose values are recorded anyway."""


class AlertLevel(Enum):
    """Levels of `alert`."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class WandbRun:
    """A run with the attributes and methods of W&B's. Methods that have no meaning here warn once or raise."""

    __slots__ = (
        "_alert_times",
        "_artifacts",
        "_axes",
        "_config",
        "_entity",
        "_group",
        "_id",
        "_is_finished",
        "_is_ours",
        "_is_plain",
        "_job_type",
        "_last",
        "_logged_artifacts",
        "_metrics",
        "_name",
        "_not_recorded",
        "_notes",
        "_num_alerts",
        "_on_finish",
        "_once_keys",
        "_other_records",
        "_pending",
        "_project",
        "_run",
        "_start_s",
        "_step",
        "_step_column",
        "_summary",
        "_tags",
        "_used_artifacts",
        "settings",
    )

    disabled = False
    offline = True
    sweep_id = None
    sweep_url = None

    def __init__(
        self,
        run: Run,
        *,
        id: str,  # noqa: A002 - the name of the original
        config: Mapping[str, Any],
        is_ours: bool,
        on_finish: Any,
        settings: Any = None,
        name: str | None = None,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        notes: str | None = None,
        tags: Sequence[str] = (),
        first_step: int = 0,
    ) -> None:
        self._run = run
        self._id = id
        self._name = name or run.name
        self._project = project or "uncategorized"
        self._entity = entity or ""
        self._group = group or ""
        self._job_type = job_type or ""
        self._notes = notes
        self._tags = tuple(tags)
        self._start_s = time.time()
        self._config = RunConfig(config, run.update_config)
        self._last: dict[str, Any] = {}
        self._is_plain = True
        self._summary = WandbSummary(self._last, self._log_summary, lambda: self._step - 1, self._start_s)
        self._not_recorded = UnrecordedCalls(run)
        self._metrics: list[DefinedMetric] = []
        self._axes: dict[str, str | None] = {}
        """The x axis of each metric, as far as it is recorded."""
        self._pending: dict[str, Any] = {}
        self._step = first_step
        self._step_column: Mapping[str, int] = {}
        self._is_finished = False
        self._is_ours = is_ours
        self._on_finish = on_finish
        self._once_keys: set[str] = set()
        self._alert_times: dict[str, float] = {}
        self._artifacts: list[LoggedArtifact] = []
        """Artifacts that may not be stored yet."""
        self._logged_artifacts: list[LoggedArtifact] = []
        self._used_artifacts: list[LoggedArtifact] = []
        self._num_alerts = 0
        self._other_records: OtherRecords | None = None
        RunEndCallback(run, self._flush)
        self.settings = settings

    def __repr__(self) -> str:
        return f"<wandb.Run {self._name!r} recorded to {self._run.path!r}>"

    # Attributes ----------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The id, by which `resume` finds the run."""
        return self._id

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = str(name)
        self._run.event(RUN_LABELED, display_name=self._name)

    @property
    def project(self) -> str:
        """The project."""
        return self._project

    def project_name(self) -> str:
        """Return the project, as older code asks for it."""
        return self._project

    @property
    def entity(self) -> str:
        """The entity as it was given; it has no meaning here."""
        return self._entity

    @property
    def group(self) -> str:
        """The group."""
        return self._group

    @property
    def job_type(self) -> str:
        """The type of job."""
        return self._job_type

    @property
    def notes(self) -> str | None:
        """The notes."""
        return self._notes

    @notes.setter
    def notes(self, notes: str) -> None:
        self._notes = notes
        self._run.event(RUN_LABELED, notes="" if notes is None else str(notes))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags."""
        return self._tags

    @tags.setter
    def tags(self, tags: Sequence[str]) -> None:
        self._tags = (tags,) if isinstance(tags, str) else tuple(map(str, tags or ()))
        self._run.event(RUN_LABELED, tags=list(self._tags))

    @property
    def config(self) -> RunConfig:
        """The config."""
        return self._config

    @property
    def config_static(self) -> RunConfig:
        """A copy of the config."""
        return RunConfig(self._config.as_dict())

    @property
    def summary(self) -> WandbSummary:
        """The summary."""
        return self._summary

    @property
    def step(self) -> int:
        """The step of the current row."""
        return self._step

    @property
    def starting_step(self) -> int:
        """The first step of a new run."""
        return 0

    @property
    def start_time(self) -> float:
        """When the run started, in seconds since the epoch."""
        return self._start_s

    @property
    def resumed(self) -> bool:
        """Whether earlier attempts are in the same run."""
        return self._run.resumed

    @property
    def path(self) -> str:
        """Project and id."""
        return "/".join(filter(None, (self._entity, self._project, self._id)))

    @property
    def url(self) -> str:
        """The folder of the run: there is no page on the web."""
        return self._run.path or ""

    def get_url(self) -> str:
        """Return the same as `url`, as older code asks for it."""
        return self.url

    @property
    def project_url(self) -> str:
        """The folder of all runs."""
        return os.path.dirname(self.url)

    def get_project_url(self) -> str:
        """Return the same as `project_url`, as older code asks for it."""
        return self.project_url

    @property
    def dir(self) -> str:
        """A folder for files of the run; created on first use."""
        if self._run.folder is None:
            return tempfile.gettempdir()
        files = self._run.folder.path / "files"
        with guard("creating a folder"):
            make_folder(files, below=self._run.folder.path)
        return str(files)

    # Logging -------------------------------------------------------------------------------------------------------

    def share_with(self, other_records: OtherRecords) -> None:
        """Log rows with regard to what else records the run."""
        self._other_records = other_records
        self._is_plain = False

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        """Record a row of values; see the module. Never raises."""
        # The fast path. A dict that the garbage collector does not track holds only numbers and texts.
        if (
            self._is_plain
            and step is None
            and commit is None
            and type(data) is dict
            and not is_tracked(data)
            and "global_step" not in data
            and self._run.span_recorder is None
        ):
            self._run.log(data, self._step)
            self._step += 1
            self._last.update(data)
            return
        with guard("logging a row"):
            self._log(data, step, commit)
            self._is_plain = not (
                self._pending or self._metrics or self._is_finished or self._other_records is not None
            )

    def _log(self, data: Any, step: Any, commit: bool | None) -> None:
        if self._is_finished:
            self._warn_once("log", "the run has finished; further values are dropped")
            return
        if not isinstance(data, Mapping):
            self._run.report_error("value_not_stored", "log", f"expected a dict, got {type(data).__name__}")
            return
        if step is not None:
            number = _integer(step)
            if number is None:
                self._run.report_error("value_not_stored", "step", f"step={step!r:.80} is not an integer")
            step = number
        if step is None and commit is False:
            self._pending.update({name: copy_value(value) for name, value in data.items()})
        elif step is None:
            row = self._complete_row(data)
            self._write(_row_step(row), row)
            self._step += 1
        else:
            self._log_at(step, dict(data), bool(commit))

    def _log_at(self, step: int, row: dict[str, Any], commit: bool) -> None:
        """Record values of a step."""
        if step < self._step - 1:
            self._warn_once("log(step=…)", "steps go back; the values are kept, W&B would drop them")
        if commit:
            row = self._complete_row(row)
        elif self._pending and step > self._step:
            self._write(None, self._complete_row({}))
        if row:
            self._write(step, row)
        self._step = max(self._step, step + 1 if commit else step)

    def _complete_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        pending, self._pending = self._pending, {}
        return {**pending, **row}

    def _write(self, script_step: int | None, row: dict[str, Any]) -> None:
        """Record a row, with the step that the script states."""
        row = {key if type(key) is str else str(key): value for key, value in row.items()}
        step, step_column = self._place(script_step)
        self._step_column = step_column
        row = with_step_metrics(row, self._metrics, self._last)
        for metric in self._metrics:
            if metric.summary and metric.name.endswith("*"):
                self._define_summaries(metric, row)
        values = self._plain_values(row, "", step)
        if values.get("global_step", step) != step:
            values["global_step_"] = values.pop("global_step")  # the record has a step of its own
        others = self._other_records
        if values and not (others is not None and others.is_duplicate()):
            self._run.log({**values, **step_column}, step)
            if others is not None:
                others.script_names.update(values)
            if self._metrics:
                self._record_axes(values)
        self._summary.add_row({name: copy_value(value) for name, value in values.items()})

    def _place(self, script_step: int | None = None) -> tuple[int, dict[str, int]]:
        step, step_column = place_row(self._run, "wandb", script_step, self._step)
        return (self._step if step is None else step), step_column

    def _plain_values(self, row: Mapping[Any, Any], prefix: str, step: int) -> dict[str, Any]:
        """Return the values of a row that belong into a step record; record the others in their own way."""
        values: dict[str, Any] = {}
        for key, value in row.items():
            name = str(key)
            if type(value) in _NUMBERS:
                values[name] = value
            elif isinstance(value, Mapping):
                if inner := self._plain_values(value, f"{prefix}{name}/", step):
                    values[name] = inner
            elif not self._record_rich(f"{prefix}{name}", value, step):
                values[name] = list(value) if isinstance(value, (set, frozenset, tuple)) else as_scalar(value)
        return values

    def record_media(self, name: str, value: Any, step: int | None) -> None:
        """Record an object of W&B, ours or the original one, for a run whose numbers are logged in another way."""
        with guard("recording media"):
            self._record_rich(name, value, step)

    def _record_rich(self, name: str, value: Any, step: int | None) -> bool:
        """Record a value that is more than a number; return whether it was one."""
        if isinstance(value, CustomChart):
            if value.media is not None:
                self._log_media(name, value.media, step)
                return True
            self._run.event("chart", step=step, tag=name, kind=value.kind, title=value.title, **value.fields)
            value = value.table
        if isinstance(value, Table):
            self._record_table(name, value, step)
        elif isinstance(value, Histogram) or (is_of_wandb(value) and hasattr(value, "histogram")):
            num_not_finite = getattr(value, "num_not_finite", 0)
            more = {"num_not_finite": num_not_finite} if num_not_finite else {}
            log_histogram(self._run, name, value.histogram, value.bins, step=step, **more)
        elif isinstance(value, Media):
            self._record_media(name, [value], step)
        elif isinstance(value, (list, tuple)) and any(isinstance(item, (Media, Table, Histogram)) for item in value):
            self._record_media(name, [item for item in value if not isinstance(item, (Table, Histogram))], step)
            for index, item in enumerate(value):
                if isinstance(item, (Table, Histogram)):
                    self._record_rich(f"{name}/{index}", item, step)
        elif is_of_wandb(value):
            self._record_media(name, value if isinstance(value, (list, tuple)) else [value], step)
        elif (media := bare_media(value)) is not None:
            self._log_media(name, media, step)
        elif is_array(value) and num_values(value) > _MAX_LIST:
            counts, edges, num_not_finite = histogram(value, _MAX_LIST)
            log_histogram(self._run, name, counts, edges, step=step, num_not_finite=num_not_finite)
        else:
            return False
        return True

    def _log_summary(self, values: Mapping[str, Any]) -> None:
        """Record values of the summary. Media and tables are recorded at the last step."""
        with guard("recording a summary"):
            step, self._step_column = self._place(max(self._step - 1, 0))
            plain = self._plain_summary(values, "", step)
            if plain or not values:
                self._run.log_summary(plain)

    def _plain_summary(self, values: Mapping[str, Any], prefix: str, step: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, Mapping) and value:
                if inner := self._plain_summary(value, f"{prefix}{name}/", step):
                    plain[name] = inner
            elif type(value) in _NUMBERS or is_array(value) or not self._record_rich(f"{prefix}{name}", value, step):
                plain[name] = value
        return plain

    def _log_media(self, name: str, media: Any, step: int | None) -> None:
        log_media(self._run, name, media, step, self._step_column)

    def _record_media(self, name: str, values: Sequence[Any], step: int | None) -> None:
        """Record pictures and the like under one name; count the values that cannot be recorded."""
        items: list[Any] = []
        for value in values:
            media, problem = _convert(value)
            if media is None:
                self._not_recorded.count(type(value).__name__, problem)
            else:
                items += media if isinstance(media, list) else [media]
        if items:
            self._log_media(name, items, step)

    def _record_table(self, name: str, table: Table, step: int | None) -> None:
        """Record a table. One that is logged again has grown: only the new rows are recorded."""
        begin = table.num_recorded.get((self._id, name), 0)
        rows, has_media, problems = table_rows(table, begin)
        for column, problem in problems.items():
            if (key := f"cells of {name}, {column}") not in self._once_keys:
                self._once_keys.add(key)
                self._run.report_error("value_not_stored", f"{name}.{column}", problem)
        if has_media:
            from tachograph.media import Table as MediaTable

            self._log_media(name, MediaTable(rows), step)
        else:
            self._run.log_completions(rows, step=step, table=name)
        table.num_recorded[self._id, name] = len(table.data)

    def define_metric(
        self,
        name: str,
        step_metric: str | DefinedMetric | None = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> DefinedMetric:
        """Choose the x axis and the summary of a metric, or of all metrics that start like ``name*``.

        Raises:
            Error: if an argument is invalid.
        """
        metric = define(name, step_metric, summary, goal, hidden)
        self._metrics = [each for each in self._metrics if each.name != metric.name] + [metric]
        self._is_plain = False
        if metric.summary and not metric.name.endswith("*"):
            self._define_summary(metric.name, metric)
        kinds = list(metric.summary) or None
        fields: dict[str, Any] = {**metric._asdict(), "name": None, "metric": metric.name, "summary": kinds}
        self._run.event(METRIC_DEFINED, **{key: value for key, value in fields.items() if value is not None})
        self._axes[metric.name] = metric.step_metric
        with guard("defining the axes of metrics"):
            self._record_axes(self._last)
        return metric

    def _record_axes(self, values: Mapping[Any, Any], prefix: str = "") -> None:
        """Record the x axis of each metric that was logged, once: readers need not know which rows a pattern means."""
        for key, value in values.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                self._record_axes(value, f"{name}/")
                continue
            step_metric = step_metric_of(name, self._metrics)
            if step_metric != self._axes.get(name):
                self._axes[name] = step_metric
                axis = {"step_metric": step_metric} if step_metric is not None else {}
                self._run.event(METRIC_DEFINED, step=None, metric=name, **axis)

    def _define_summary(self, name: str, metric: DefinedMetric) -> None:
        if metric.summary not in (("last",), ("copy",)):  # which is the last value anyway
            self._summary.define(name, metric.summary, metric.goal)

    def _define_summaries(self, metric: DefinedMetric, row: Mapping[str, Any]) -> None:
        for name in row:
            key = f"summary of {name}"
            if metric.matches(str(name)) and key not in self._once_keys:
                self._once_keys.add(key)
                self._define_summary(str(name), metric)

    def alert(
        self, title: str, text: str = "", level: str | AlertLevel | None = None, wait_duration: Any = None
    ) -> None:
        """Open an alert in the run, which is sent like an alert of a rule; the same title once per `wait_duration`."""
        with guard("recording an alert"):
            wait_s = wait_duration.total_seconds() if hasattr(wait_duration, "total_seconds") else wait_duration or 60
            now_s = time.monotonic()
            if now_s - self._alert_times.get(title, -float("inf")) < wait_s:
                return
            self._alert_times[title] = now_s
            self._num_alerts += 1
            name = level.value if isinstance(level, AlertLevel) else str(level or "INFO").upper()
            record = AlertRecord(
                id=f"user-{self._num_alerts}",
                rule="user",
                status="opened",
                severity=_SEVERITIES.get(name, "info"),
                title=str(title),
                message=str(text) or None,
                global_step=self._place()[0],
            ).to_record()
            self._run.add_record("alert", {key: value for key, value in record.items() if key != "event"})

    # Files ---------------------------------------------------------------------------------------------------------

    def save(
        self,
        glob_str: str | os.PathLike[str] | None = None,
        base_path: str | os.PathLike[str] | None = None,
        policy: str = "live",
        glob: bool = True,
    ) -> list[str]:
        """Link files into the folder of the run; return the paths of the links."""
        links: list[str] = []
        with guard("linking files"):
            if glob_str is None or self._run.folder is None:
                return links
            pattern = os.fspath(glob_str)
            base = os.path.abspath(base_path) if base_path else None
            folder = Path(self.dir)
            for path in globbing.glob(pattern, recursive=True) if glob else [pattern]:
                source = Path(os.path.abspath(path))
                relative = Path(os.path.relpath(source, base)) if base else Path(source.name)
                if ".." in relative.parts or not source.exists():
                    continue
                make_folder(folder / relative.parent, below=self._run.folder.path)
                link = folder / relative
                if not os.path.lexists(link):
                    make_link(link, source, below=self._run.folder.path)
                links.append(str(link))
        return links

    def log_artifact(
        self,
        artifact_or_path: Any,
        name: str | None = None,
        type: str | None = None,  # noqa: A002 - the name of the original
        aliases: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        **_options: Any,
    ) -> LoggedArtifact:
        """Store an artifact, or a file or folder as one, in a thread; `wait` of the result waits for it.

        Raises:
            TypeError: if it is neither.
            ValueError: if there is no such file, or the name is invalid.
        """
        artifact = artifact_or_path
        if isinstance(artifact, (str, os.PathLike)):
            path = os.fspath(artifact)
            name = name or safe_artifact_name(f"run-{self._id}-{os.path.basename(path.rstrip('/'))}")
            artifact = LoggedArtifact(name, type or "unspecified")
            if os.path.isfile(path):
                artifact.add_file(path)
            elif os.path.isdir(path):
                artifact.add_dir(path)
            elif "://" in path:
                artifact.add_reference(path)
            elif not self.disabled:
                raise ValueError(
                    f"path must be a file, directory or external reference like s3://bucket/path: {path!r}"
                )
        elif is_of_wandb(artifact):
            artifact = _copy_artifact(artifact)
        if not isinstance(artifact, LoggedArtifact):
            raise TypeError("You must pass an instance of wandb.Artifact or a valid file path to log_artifact")
        artifact.tags = list(tags or artifact.tags)
        artifact.log_to(self._run, [aliases] if isinstance(aliases, str) else list(aliases or ()))
        self._artifacts = [*(each for each in self._artifacts if each.is_draft()), artifact]
        _add_once(self._logged_artifacts, artifact)
        return artifact

    upsert_artifact = finish_artifact = log_artifact

    def log_model(
        self, path: Any, name: str | None = None, aliases: Sequence[str] | None = None, **_options: Any
    ) -> None:
        """Store a file or a folder as an artifact of the type `model`."""
        self.log_artifact(path, name, "model", aliases)

    def use_artifact(
        self,
        artifact_or_name: Any,
        type: str | None = None,  # noqa: A002 - the name of the original
        aliases: Sequence[str] | None = None,
        use_as: str | None = None,
    ) -> LoggedArtifact:
        """Return an artifact that a run on this machine has logged, by its name, and record that this run uses it.

        Raises:
            CommError: if there is none.
            ValueError: if it has another type.
        """
        artifact = artifact_or_name
        if isinstance(artifact, LoggedArtifact):
            if artifact.is_draft() and not any(each is artifact for each in self._artifacts):
                self.log_artifact(artifact, aliases=aliases)
            artifact.wait()
        else:
            log_dir = self._run.folder.path.parent if self._run.folder is not None else self._run.settings.log_dir
            name = str(artifact_or_name).rpartition("/")[2].partition(":")[0]
            for logged_artifact in self._artifacts:
                if logged_artifact.collection_name == name:
                    logged_artifact.wait()
            artifact = find_artifact(log_dir, str(artifact_or_name), type)
        artifact.record_use(self._run)
        _add_once(self._used_artifacts, artifact)
        return artifact

    def logged_artifacts(self, per_page: int = 100) -> list[LoggedArtifact]:
        """Return the artifacts that this process has logged with the run."""
        return list(self._logged_artifacts)

    def used_artifacts(self, per_page: int = 100) -> list[LoggedArtifact]:
        """Return the artifacts that this process has used with the run."""
        return list(self._used_artifacts)

    def use_model(self, name: str, *_arguments: Any, **_options: Any) -> str:
        """Download a model that a run on this machine has logged, and return the path of its file or folder."""
        artifact = self.use_artifact(name)
        return artifact.file() if artifact.file_count == 1 else artifact.download()

    def link_artifact(self, artifact: LoggedArtifact, target_path: str, aliases: Sequence[str] | None = None) -> Any:
        """Store an artifact also under another name: the last part of the path."""
        if artifact.is_draft() and not any(each is artifact for each in self._artifacts):
            self.log_artifact(artifact)
        return artifact.link(target_path, aliases)

    def link_model(
        self,
        path: Any,
        registered_model_name: str,
        name: str | None = None,
        aliases: Sequence[str] | None = None,
    ) -> Any:
        """Store a file or a folder as a model, also under the name of a registered model."""
        return self.link_artifact(self.log_artifact(path, name, "model"), registered_model_name, aliases)

    def restore(self, name: str, *_arguments: Any, **_options: Any) -> Any:
        """Raise, because files are not stored."""
        raise UnsupportedError(f"restore({name!r:.80}): files are not stored; open the file yourself")

    # Methods that only warn ------------------------------------------------------------------------------------------

    def watch(self, models: Any = None, *_arguments: Any, **_options: Any) -> list[Any]:
        """Warn once: gradients are not recorded this way."""
        self._warn_once("watch", "gradients are not recorded; tachograph.watch(model, optimizer) records their norm")
        return []

    def unwatch(self, models: Any = None) -> None:
        """Do nothing."""

    def log_code(self, *_arguments: Any, **_options: Any) -> None:
        """Warn once: the commit is recorded, the code is not."""
        self._warn_once("log_code", "code is not stored; the run has the git commit")

    def mark_preempting(self) -> None:
        """Record that the process is about to be stopped."""
        self._run.event("preempting")

    def display(self, *_arguments: Any, **_options: Any) -> bool:
        """Warn once: a notebook cannot show the run; `tacho ui` does."""
        self._warn_once("display", "run `tacho ui` to see the run")
        return False

    def to_html(self, *_arguments: Any, **_options: Any) -> str:
        """Return the path of the run."""
        return self.url

    def status(self) -> Any:
        """Return nothing: there is nothing to synchronise."""
        return None

    def pin_config_keys(self, *_arguments: Any, **_options: Any) -> None:
        """Do nothing."""

    def _label(self, *_arguments: Any, **_options: Any) -> None:
        """Do nothing: the Trainer of Hugging Face tells W&B its name here."""

    def write_logs(self, text: str) -> None:
        """Record a text as an event."""
        self._run.event("text", tag="logs", text=text)

    def _warn_once(self, name: str, reason: str) -> None:
        if name not in self._once_keys:
            self._once_keys.add(name)
            warn("wandb.%s: %s", name, reason)

    # The end -------------------------------------------------------------------------------------------------------

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Wait until all artifacts are stored, and end the run; it has failed if the exit code is not zero."""
        for artifact in self._artifacts:
            with suppress(CommError):  # reported by the thread that stores it
                artifact.wait()
        self._finish(None, exit_code)

    def join(self, exit_code: int | None = None) -> None:
        """End the run, as older code does."""
        self.finish(exit_code)

    def _finish(self, error: BaseException | None, exit_code: int | None = None) -> None:
        if self._is_finished:
            return
        with guard("finishing a run"):
            self._flush()
        self._is_finished, self._is_plain = True, False
        if self._is_ours and exit_code:
            self._run.finish("failed", reason=f"exit code {exit_code}")
        elif self._is_ours:
            self._run.__exit__(None if error is None else type(error), error, None)
        self._on_finish(self)

    def _flush(self) -> None:
        """Record the pending values and the aggregates. Called when the run ends, however it ends."""
        if self._is_finished:
            return
        if self._pending:
            self._write(None, self._complete_row({}))
        results = self._summary.take_results()
        if results:
            self._run.log_summary(results)

    def __enter__(self) -> WandbRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._finish(error)


def _copy_artifact(original: Any) -> LoggedArtifact:
    """Return an artifact with the files of one of the real package wandb."""
    artifact = LoggedArtifact(original.name.partition(":")[0], original.type, original.description, original.metadata)
    for path, entry in original.manifest.entries.items():
        if entry.ref is not None:
            artifact.add_reference(entry.ref, path)
        else:
            artifact.add_file(entry.local_path, path)
    return artifact


def _add_once(artifacts: list[LoggedArtifact], artifact: LoggedArtifact) -> None:
    if all(each is not artifact for each in artifacts):
        artifacts.append(artifact)


def _convert(value: Any) -> tuple[Any, str]:
    """Return an object of W&B's classes, ours or the original ones, as media; None and the reason if it has none."""
    if isinstance(value, Media):
        return value.media, value.problem
    try:
        return (original_media(value) if is_of_wandb(value) else bare_media(value)), Media.problem
    except Exception as error:  # noqa: BLE001 - whatever is in the object
        reraise_from_signal_handler(error)
        return None, f"cannot be recorded: {error}"


def _row_step(row: Mapping[str, Any]) -> int | None:
    """Return the `global_step` in a row if it has one, because W&B then plots the row against it."""
    return _integer(row.get("global_step"))


def _integer(value: Any) -> int | None:
    try:
        number = as_number(value)
        return int(number) if number is not None and int(number) == number else None
    except (TypeError, ValueError, OverflowError):
        return None
