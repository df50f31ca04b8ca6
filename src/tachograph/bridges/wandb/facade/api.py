"""`wandb.Api`: read the runs of a log folder with the interface of W&B. Read-only.

A path is ``project/id``, ``entity/project/id`` or only the id; the entity is ignored. A run that was not recorded with
`tachograph.wandb` has its name as id, and no project.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, overload

from tachograph._base.guard import suppress
from tachograph._base.settings import resolve_settings
from tachograph.bridges.wandb.facade.artifact import LoggedArtifact, find_artifact
from tachograph.bridges.wandb.facade.errors import CommError, NotAvailableError, UnsupportedError
from tachograph.journal import list_runs
from tachograph.journal.artifacts import ArtifactVersion, list_artifacts
from tachograph.reader import RunHistory, read
from tachograph.records import ARTIFACT, ARTIFACT_USED, METRIC_KINDS, finite_or_none, flatten, is_number, step_of

__all__ = ["LocalApi", "RecordedRun", "RecordedRuns"]

_OUR_FIELDS = frozenset(
    {
        "cpu_mem_rss_mb",
        "event",
        "global_step",
        "gpu_mem_allocated",
        "gpu_mem_reserved",
        "nan_inf_detected",
        "samples_per_sec",
        "sec_per_step",
        "time",
    }
)
"""Fields of a step record that the script did not log."""
_STATES = {"stale": "running"}
_MISSING = object()


class LocalApi:
    """Finds runs on this machine.

    Args:
        options: arguments of W&B, such as `timeout` and `api_key`, which have no effect here.
    """

    def __init__(
        self, overrides: Mapping[str, Any] | None = None, *, log_dir: str | None = None, **options: Any
    ) -> None:
        self._log_dir = log_dir or resolve_settings({}).log_dir
        self.default_entity = str((overrides or {}).get("entity") or "")

    def runs(
        self,
        path: str | None = None,
        filters: Mapping[str, Any] | None = None,
        order: str = "+created_at",
        per_page: int = 50,
        **_options: Any,
    ) -> RecordedRuns:
        """Return the runs of a project, or all runs, that match filters such as ``{"config.lr": {"$gt": 0.1}}``.

        Raises:
            UnsupportedError: for an operator of a filter that is not supported.
        """
        project = path.strip("/").rpartition("/")[2] if path else None
        runs = [run for run in self._all() if project is None or run.project == project]
        matches = [run for run in runs if _matches(run, filters or {})]
        return RecordedRuns(_sort_runs(matches, order))

    def run(self, path: str) -> RecordedRun:
        """Return a run by its path, or by its id or name alone.

        Raises:
            CommError: if there is none.
        """
        *_, project, name = ["", *path.strip("/").removeprefix("runs/").replace("/runs/", "/").split("/")]
        for run in self._all():
            if name in (run.id, run.folder.name) and (not project or project == run.project):
                return run
        raise CommError(f"Could not find run {path!r} in {self._log_dir!r}")

    def artifact(self, name: str, type: str | None = None) -> LoggedArtifact:  # noqa: A002 - the name of the original
        """Return an artifact that a run on this machine has logged: `name`, `name:v2` or `name:best`.

        Raises:
            CommError: if there is none.
            ValueError: if it has another type.
        """
        return find_artifact(self._log_dir, name, type)

    def artifacts(
        self,
        type_name: str | None = None,
        name: str | None = None,
        per_page: int = 50,
        tags: Any = None,
    ) -> list[LoggedArtifact]:
        """Return the versions of an artifact, newest first; without a name, of all artifacts of a type."""
        versions = list_artifacts(self._log_dir, name=None if name is None else name.rpartition("/")[2])
        matches = [version for version in reversed(versions) if type_name in (None, version.type)]
        return [LoggedArtifact.from_version(version) for version in matches]

    artifact_versions = artifacts

    def artifact_exists(self, name: str, type: str | None = None) -> bool:  # noqa: A002 - the name of the original
        """Return whether there is such an artifact."""
        try:
            self.artifact(name, type)
        except (CommError, ValueError):
            return False
        return True

    def run_of(self, version: ArtifactVersion) -> RecordedRun | None:
        """Return the run that logged a version, or None."""
        runs = (run for run in self._all() if version.run_id is not None and run.run_id == version.run_id)
        return next(runs, None)

    def users_of(self, version: ArtifactVersion) -> list[RecordedRun]:
        """Return the runs that used a version."""
        wanted_name = str(version)
        return [run for run in self._all() if wanted_name in run.artifact_names(ARTIFACT_USED)]

    def _all(self) -> list[RecordedRun]:
        return [RecordedRun(read(folder.path)) for folder in list_runs(self._log_dir)]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotAvailableError(f"Api.{name} is not available here: only runs and artifacts can be read")


LoggedArtifact.open_api = staticmethod(lambda log_dir: LocalApi(log_dir=log_dir))


class RecordedRuns(Sequence["RecordedRun"]):
    """Runs in order."""

    def __init__(self, runs: list[RecordedRun]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, index: int) -> RecordedRun: ...

    @overload
    def __getitem__(self, index: slice) -> list[RecordedRun]: ...

    def __getitem__(self, index: int | slice) -> RecordedRun | list[RecordedRun]:
        return self._runs[index]

    def __repr__(self) -> str:
        return f"<Runs ({len(self)})>"


class RecordedRun:
    """A run that was recorded on this machine."""

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self.folder = history.folder
        facts = history.facts
        self.id = str(facts.get("wandb_id") or history.name)
        self.run_id = facts.get("run_id")
        self.name = history.name
        self.display_name = self.name
        self.entity = str(facts.get("entity") or "")
        self.project = str(facts.get("project") or "")
        self.group = facts.get("group")
        self.job_type = facts.get("job_type")
        self.notes = facts.get("notes")
        start = history.attempts[0].start if history.attempts else {}
        self.started_s = finite_or_none(start.get("time")) or 0.0
        tags = facts.get("tags")
        self.tags = list(tags) if isinstance(tags, list) else []
        self.config = dict(history.config)

    def __repr__(self) -> str:
        return f"<Run {'/'.join(self.path)} ({self.state})>"

    @property
    def path(self) -> list[str]:
        """Entity, project and id."""
        return [self.entity, self.project, self.id]

    @property
    def url(self) -> str:
        """The folder of the run."""
        return self.folder.path.as_uri()

    @property
    def state(self) -> str:
        """`running`, `finished`, `failed` or `crashed`."""
        state = str(self._history.state)
        return _STATES.get(state, state)

    @property
    def created_at(self) -> str:
        """When the run started, in UTC."""
        return datetime.fromtimestamp(self.started_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The last value of every metric, and the results of the run."""
        last_row = self._rows[-1] if self._rows else {}
        last_values = {name: metric.last for name, metric in self._history.metrics.items() if _is_logged(name)}
        row_fields = {name: value for name, value in last_row.items() if name in {"_step", "_runtime", "_timestamp"}}
        return {**last_values, **row_fields, **self._history.summary}

    @property
    def summary_metrics(self) -> dict[str, Any]:
        """The summary."""
        return self.summary

    @property
    def lastHistoryStep(self) -> int:  # noqa: N802 - the name of the original
        """The last step, or -1."""
        return int(self._rows[-1]["_step"]) if self._rows else -1

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """The values that were logged, one row per step, in the order of the steps."""
        rows: dict[int, dict[str, Any]] = {}
        step = 0
        for record in self._history.records():
            if record["event"] not in METRIC_KINDS or record["event"] == "system":
                continue
            record_step = step_of(record)
            step = step if record_step is None else record_step
            values = {name: value for name, value in record.items() if _is_logged(name)}
            if values:
                row = rows.setdefault(step, {"_step": step})
                time_s = record["time"]
                row |= {**values, "_timestamp": time_s, "_runtime": time_s - self.started_s}
        return [rows[step] for step in sorted(rows)]

    def scan_history(
        self, keys: Sequence[str] | None = None, page_size: int = 1000, min_step: int = 0, max_step: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows; with keys, only these, of rows that have all of them."""
        for row in self._rows:
            if row["_step"] < min_step or (max_step is not None and row["_step"] >= max_step):
                continue
            if keys is None:
                yield dict(row)
            elif all(key in row for key in keys):
                yield {key: row[key] for key in keys}

    def history(
        self,
        samples: int = 500,
        keys: Sequence[str] | None = None,
        x_axis: str = "_step",
        pandas: bool = True,
        stream: str = "default",
    ) -> Any:
        """Return rows as a DataFrame, or as a list of dicts; at most `samples` of them, evenly spaced.

        Raises:
            UnsupportedError: for the stream of system metrics.
        """
        if stream != "default":
            raise UnsupportedError("only the rows that were logged can be read; use tachograph.read for the system")
        rows = list(self.scan_history(None if keys is None else [x_axis, *keys]))
        if len(rows) > samples:
            last = len(rows) - 1
            rows = [rows[round(index * last / max(samples - 1, 1))] for index in range(samples)]
        if not pandas:
            return rows
        try:
            import pandas as pd
        except ImportError:
            return rows  # as W&B does
        return pd.DataFrame(rows)

    def files(self, names: Sequence[str] | None = None, **_options: Any) -> list[RecordedFile]:
        """Return the files of the run folder."""
        files = [RecordedFile(path, self.folder.path) for path in sorted(self.folder.path.rglob("*")) if path.is_file()]
        return [file for file in files if names is None or file.name in names]

    def file(self, name: str) -> RecordedFile:
        """Return a file of the run folder."""
        return RecordedFile(self.folder.path / name, self.folder.path)

    def artifact_names(self, event: str) -> list[str]:
        """Return the artifacts that the run logged or used, by the name of the event: ``model:v0``."""
        records = [record for record in self._history.records("event") if record.get("name") == event]
        return list(dict.fromkeys(f"{record.get('artifact')}:{record.get('version')}" for record in records))

    def logged_artifacts(self, per_page: int = 100) -> list[LoggedArtifact]:
        """Return the artifacts that the run logged and that still exist."""
        return self._artifacts(ARTIFACT)

    def used_artifacts(self, per_page: int = 100) -> list[LoggedArtifact]:
        """Return the artifacts that the run used and that still exist."""
        return self._artifacts(ARTIFACT_USED)

    def _artifacts(self, event: str) -> list[LoggedArtifact]:
        artifacts = []
        for name in self.artifact_names(event):
            with suppress(CommError):
                artifacts.append(find_artifact(self.folder.path.parent, name))
        return artifacts

    def load(self, force: bool = False) -> None:
        """Read the run again."""
        self.__init__(read(self.folder.path))  # type: ignore[misc] # with everything that is cached
        for name in ("summary", "_rows"):
            self.__dict__.pop(name, None)

    def _fail(self, *_arguments: Any, **_options: Any) -> NoReturn:
        raise NotAvailableError("a recorded run cannot be changed here; use the command tacho")

    update = delete = upload_file = log_artifact = use_artifact = _fail


class RecordedFile:
    """A file of a run folder."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self.name = path.relative_to(root).as_posix()
        self.size = path.stat().st_size if path.exists() else 0

    def __repr__(self) -> str:
        return f"<File {self.name}>"

    def download(self, root: str | os.PathLike[str] = ".", replace: bool = False, exist_ok: bool = False) -> Any:
        """Return the file, opened for reading. It is on this machine already."""
        return open(self._path, encoding="utf-8", errors="replace")


def _is_logged(name: str) -> bool:
    return name not in _OUR_FIELDS and not name.startswith("window/")


# Filters -------------------------------------------------------------------------------------------------------------


def _matches(run: RecordedRun, filters: Mapping[str, Any]) -> bool:
    """Return whether a run matches a filter in the style of MongoDB."""
    for name, condition in filters.items():
        if name in ("$and", "$or", "$nor"):
            results = [_matches(run, part) for part in condition]
            is_met = {"$and": all(results), "$or": any(results), "$nor": not any(results)}[name]
        elif name.startswith("$"):
            raise UnsupportedError(f"the operator {name!r} of a filter is not supported")
        else:
            is_met = _meets(_value_of(run, name), condition)
        if not is_met:
            return False
    return True


def _value_of(run: RecordedRun, name: str) -> Any:
    """Return the value that a filter or an order names, or a mark if the run has none."""
    root, _, rest = name.partition(".")
    if root in ("config", "summary_metrics", "summary"):
        values = run.config if root == "config" else run.summary
        rest = rest.removesuffix(".value") if root == "config" else rest
        if rest in values:
            return values[rest]
        return flatten(values).get(rest.replace(".", "/"), _MISSING)
    names = {"displayName": "display_name", "createdAt": "created_at", "jobType": "job_type", "name": "id"}
    return getattr(run, names.get(name, name), _MISSING)


def _meets(value: Any, condition: Any) -> bool:
    if not isinstance(condition, Mapping) or not any(str(name).startswith("$") for name in condition):
        return _equals(value, condition)
    for name, operand in condition.items():
        if name not in _OPERATORS:
            raise UnsupportedError(f"the operator {name!r} of a filter is not supported")
        if not _OPERATORS[name](value, operand):
            return False
    return True


def _equals(value: Any, operand: Any) -> bool:
    """Compare as MongoDB does: a list equals each of its items, and a missing value equals None."""
    if value is _MISSING:
        return operand is None
    return bool(value == operand or (isinstance(value, list) and operand in value))


def _is_comparable(value: Any, operand: Any) -> bool:
    return (is_number(value) and isinstance(operand, (int, float))) or (
        isinstance(value, str) and isinstance(operand, str)
    )


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": _equals,
    "$ne": lambda value, operand: not _equals(value, operand),
    "$gt": lambda value, operand: _is_comparable(value, operand) and value > operand,
    "$gte": lambda value, operand: _is_comparable(value, operand) and value >= operand,
    "$lt": lambda value, operand: _is_comparable(value, operand) and value < operand,
    "$lte": lambda value, operand: _is_comparable(value, operand) and value <= operand,
    "$in": lambda value, operand: any(_equals(value, one) for one in operand),
    "$nin": lambda value, operand: not any(_equals(value, one) for one in operand),
    "$exists": lambda value, operand: (value is not _MISSING) == bool(operand),
    "$regex": lambda value, operand: isinstance(value, str) and re.search(operand, value) is not None,
    "$not": lambda value, operand: not _meets(value, operand),
}


def _sort_runs(runs: list[RecordedRun], order: str) -> list[RecordedRun]:
    """Sort by one value, such as `-created_at` or `+summary_metrics.loss`; runs without it are last."""
    name = {"created_at": "started_s", "createdAt": "started_s"}.get(order.lstrip("+-"), order.lstrip("+-"))
    with_value = [(value, run) for run in runs if is_number(value := _value_of(run, name)) or isinstance(value, str)]
    without_value = [run for run in runs if not any(run is other for _, other in with_value)]
    kinds = {isinstance(value, str) for value, _ in with_value}
    key: Callable[[tuple[Any, RecordedRun]], Any] = (lambda pair: pair[0]) if len(kinds) == 1 else lambda pair: 0
    return [run for _, run in sorted(with_value, key=key, reverse=order.startswith("-"))] + without_value
