"""MLflow: parameters, metrics, tags, references to checkpoints and artifacts, samples, media, and the state of a run.

The MLflow run is found by its tag `tachograph.run_id`, which it has from its creation. So the attempts of a run, and
deliveries that are repeated after a crash, continue the same MLflow run. Everything else is written so that repeating
it changes nothing: a tag or a file is replaced by the same content, and a database stores an equal point once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import posixpath
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Before the import. Nothing is sent to others without consent.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# MLflow would retry for minutes before it raises an error. The driver retries as well, and records the error first.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")

import mlflow
import msgspec
from mlflow import MlflowClient, environment_variables
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from tachograph._base.files import replace_file
from tachograph.bridges.mlflow.media_files import PICTURES_TAG, TABLES_TAG, MlflowFile, media_files
from tachograph.bridges.mlflow.options import check_options
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.records import CONFIG_CHANGED, SUMMARY, flatten, is_number, step_of
from tachograph.sinks import scalar_metrics

__all__ = ["MlflowSink"]

_RUN_ID_TAG = "tachograph.run_id"

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_MAX_METRICS_PER_REQUEST = 1_000
_MAX_PARAMS_PER_REQUEST = 100
_MAX_PARAM_CHARS = 6_000
_MAX_TAG_CHARS = 8_000
_MAX_NAME_CHARS = 250
_MAX_TABLE_ROWS = 1_000
_INTERRUPT_REASON = re.compile(r"KeyboardInterrupt|SIG[A-Z]+|killed by .*")
"""Reasons of an end that someone asked for."""


class _Content(msgspec.Struct):
    """The content of some records for MLflow."""

    tags: dict[str, str] = {}
    params: list[Any] = []
    metrics: list[Any] = []
    files: dict[str, Any] = {}
    """Contents by path."""
    media: list[tuple[dict[str, Any], int, int]] = []
    """Records with their step and time."""
    state: dict[str, Any] | None = None
    """The `end` record, or `{"status": "running"}` after a start."""


class MlflowSink:
    """Sends a run to a tracking server or database of MLflow.

    Args:
        tracking_uri: the server or database; `MLFLOW_TRACKING_URI` or MLflow's default if not given.
        experiment: the experiment, which is created if it does not exist; `MLFLOW_EXPERIMENT_ID`,
            `MLFLOW_EXPERIMENT_NAME` or "tachograph" if not given.
        artifacts: whether to store small files: references to checkpoints and artifacts, and tables of samples.
        media: whether to store pictures, tables, texts, pages, sounds and videos that were logged as media, too.
    """

    name = "mlflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        artifacts: bool = True,
        media: bool = False,
    ) -> None:
        check_options(tracking_uri, experiment, artifacts, media)
        self._media = media
        self._folder: RunFolder | None = None
        self._tracking_uri = tracking_uri or mlflow.get_tracking_uri()
        self._experiment = experiment
        self._artifacts = artifacts
        self.on_rejected: Callable[[int, str, str], None] = lambda num_items, items, reason: None
        self._client: Any = None
        self._run_id = ""
        self._params: dict[str, str] = {}
        self._step = 0
        self._time_ms: int | None = None
        self._rows: dict[str, deque[dict[str, Any]]] = {}
        self._tables: dict[str, None] = {}
        """The paths of tables, the newest last."""
        _check_uri(self._tracking_uri)

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Find the MLflow run of this run, or create it."""
        self._folder = folder
        self._client = MlflowClient(self._tracking_uri)
        experiment_id = self._find_experiment()
        run_id = str(start.get("run_id") or folder.name)
        # `_name` has no quotes, which the filter could not escape.
        runs = self._client.search_runs([experiment_id], f"tags.`{_RUN_ID_TAG}` = '{_name(run_id)}'", max_results=1)
        if runs:
            run = runs[0]
        else:
            time_ms = _to_ms(start.get("time"))
            tags = {_RUN_ID_TAG: _name(run_id)}
            run = self._client.create_run(experiment_id, start_time=time_ms, tags=tags, run_name=folder.name)
        self._run_id = run.info.run_id
        self._params = dict(run.data.params)
        with contextlib.suppress(ValueError, TypeError, KeyError):  # not from us
            self._tables |= dict.fromkeys(table["path"] for table in json.loads(run.data.tags.get(TABLES_TAG, "[]")))

    def _find_experiment(self) -> str:
        if self._experiment is None and (experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID")):
            return experiment_id
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "tachograph"
        experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(name))

    def replay(self, records: Iterable[dict[str, Any]]) -> None:
        """Find the latest step, for records without one, and the latest samples."""
        for record in records:
            self._set_step_and_time(record)
            if record["event"] == "completions":
                self._add_rows(record)

    def write(self, records: list[dict[str, Any]]) -> None:
        """Send the records: parameters and tags first, then points, files and the state."""
        content = _Content()
        for record in records:
            self._set_step_and_time(record)
            self._add(record, content)
        tags = [RunTag(_name(name), text[:_MAX_TAG_CHARS]) for name, text in content.tags.items()]
        for batch in _batches(content.params):
            self._send("params", batch)
        for batch in _batches(tags):
            self._send("tags", batch)
        for batch in _batches(content.metrics, _MAX_METRICS_PER_REQUEST):
            self._send("metrics", batch)
        if self._artifacts:
            for path, value in content.files.items():
                self._client.log_dict(self._run_id, value, path)
        for record, step, time_ms in content.media:
            self._send_media(record, step, time_ms)
        if content.state is not None:
            self._set_state(content.state)

    def _send(self, items: str, batch: list[Any]) -> None:
        """Send a batch. If the server rejects an item, such as a parameter that another program has set, find it."""
        try:
            self._client.log_batch(self._run_id, **{items: batch})
        except MlflowException as error:
            is_rejected = error.error_code in {"INVALID_PARAMETER_VALUE", "BAD_REQUEST"}
            if not is_rejected or self._client.get_run(self._run_id).info.lifecycle_stage != "active":
                raise  # a deleted run rejects everything
            if len(batch) == 1:
                self.on_rejected(1, items, f"{batch[0].key}: {str(error).strip().splitlines()[0]}")
                return
            middle = len(batch) // 2
            self._send(items, batch[:middle])
            self._send(items, batch[middle:])

    def _send_media(self, record: dict[str, Any], step: int, time_ms: int) -> None:
        """Store the files of a record, then the tags by which MLflow finds pictures and tables."""
        tags: dict[str, str] = {}
        for file in media_files(record, self._folder, step, time_ms):
            if self._store_file(file):
                if file.is_table:
                    tags[TABLES_TAG] = self._add_table(file.path)
                elif file.path.startswith("images/"):
                    tags[PICTURES_TAG] = "True"
        if tags:
            self._send("tags", [RunTag(name, text) for name, text in tags.items()])

    def _store_file(self, file: MlflowFile) -> bool:
        """Store a file; return False if its path cannot be used, which no repetition would change."""
        parent, name = posixpath.split(file.path)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            replace_file(path, file.data, below=Path(folder))
            try:
                self._client.log_artifact(self._run_id, str(path), parent)
            except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
                self.on_rejected(1, "media", f"{file.path}: {error.strerror}")
                return False
        return True

    def _add_table(self, path: str) -> str:
        """Return the tag that names the tables, with one more; it has as many of the latest as fit."""
        self._tables.pop(path, None)
        self._tables[path] = None
        while True:
            text = json.dumps([{"path": each, "type": "table"} for each in self._tables])
            if len(text) <= _MAX_TAG_CHARS or len(self._tables) == 1:
                return text
            del self._tables[next(iter(self._tables))]

    def _set_step_and_time(self, record: dict[str, Any]) -> None:
        self._time_ms = _to_ms(record.get("time")) or self._time_ms
        step = step_of(record)
        self._step = self._step if step is None else step

    def _add(self, record: dict[str, Any], content: _Content) -> None:
        content.metrics += self._points(scalar_metrics(record))
        match record["event"]:
            case "start":
                content.state = {"status": "running"}
                content.tags |= _tags_of_start(record)
                self._add_config(_dict(record.get("config")), content)
            case "end":
                content.state = record
            case "event":
                self._add_event(record, content)
            case "checkpoint" if record.get("checkpoint_path"):
                path = str(record["checkpoint_path"])
                content.files[f"checkpoints/{self._step}-{_digest(path)}.json"] = record
                content.tags["tachograph.checkpoint"] = path
                if record.get("is_best"):
                    content.tags["tachograph.best_checkpoint"] = path
            case "completions" if self._artifacts:
                path = self._add_rows(record)
                content.files[path] = _to_table(self._rows[path])
                content.tags[TABLES_TAG] = self._add_table(path)
            case "media" if self._media:
                content.media.append((record, self._step, self._time_ms or 0))

    def _add_event(self, record: dict[str, Any], content: _Content) -> None:
        name = record.get("name")
        if name == CONFIG_CHANGED:
            self._add_config(_dict(record.get("config")), content)
        elif name == SUMMARY:
            results = flatten(_dict(record.get("summary")))
            content.metrics += self._points({f"summary/{key}": value for key, value in results.items()})
            texts = {key: value for key, value in results.items() if value is not None and not is_number(value)}
            content.tags |= {f"tachograph.summary.{key}": _text(value) for key, value in texts.items()}
        elif name == "artifact" and record.get("artifact"):
            content.files[f"artifacts/{_name(str(record['artifact'])).replace('/', '.')}.json"] = record

    def _points(self, values: Mapping[str, Any]) -> Iterator[Metric]:
        for name, value in values.items():
            if is_number(value):
                yield Metric(_name(name), float(value), self._time_ms or 0, self._step)

    def _add_config(self, config: dict[str, Any], content: _Content) -> None:
        """Add the parameters that are new. MLflow's are immutable, so a changed value becomes a tag."""
        for name, value in flatten(config).items():
            key, text = _name(name), _text(value)[:_MAX_PARAM_CHARS]
            if key not in self._params:
                self._params[key] = text
                content.params.append(Param(key, text))
            elif self._params[key] != text:
                content.tags[f"tachograph.config.{name}"] = text

    def _add_rows(self, record: dict[str, Any]) -> str:
        """Add samples to their table and return its path; the table keeps the latest."""
        path = f"{_name(str(record.get('table', 'completions'))).replace('/', '.')}.json"
        rows = self._rows.setdefault(path, deque(maxlen=_MAX_TABLE_ROWS))
        rows.extend(row for row in record.get("rows") or () if isinstance(row, dict) and row not in rows)
        return path

    def _set_state(self, end: dict[str, Any]) -> None:
        status = end.get("status")
        if status == "running":
            self._client.update_run(self._run_id, status="RUNNING")
            return
        state = "FINISHED" if status == "finished" else "FAILED"
        if state == "FAILED" and _INTERRUPT_REASON.fullmatch(str(end.get("reason"))):
            state = "KILLED"
        self._client.set_terminated(self._run_id, state, _to_ms(end.get("time")) or self._time_ms)

    def close(self) -> None:
        """Mark the run as failed if nothing has ended it."""
        if self._client is not None and self._client.get_run(self._run_id).info.status == "RUNNING":
            self._set_state({"status": "crashed"})


def _to_table(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return rows in the form of MLflow's tables."""
    rows = list(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return {"columns": columns, "data": [[row.get(column) for column in columns] for row in rows]}


def _check_uri(uri: str) -> None:
    """Raise an error for an address that cannot be used, without connecting: creating a database takes seconds."""
    scheme = uri.partition(":")[0].partition("+")[0] if "://" in uri or uri.startswith("file:") else ""
    if scheme in _DATABASES:
        missing = [package for package in ("sqlalchemy", "alembic") if find_spec(package) is None]
        if missing:
            raise ConfigError(f"{uri.partition(':')[0]}: MLflow needs more packages: pip install {' '.join(missing)}")
    elif scheme in {"", "file"} and uri not in {"databricks", "uc"}:
        allows_files = getattr(environment_variables, "MLFLOW_ALLOW_FILE_STORE", None)
        if allows_files is not None and not allows_files.get():
            raise ConfigError(
                f"tracking_uri {uri!r} is a folder, which MLflow supports only with MLFLOW_ALLOW_FILE_STORE=true; "
                "use a database, such as sqlite:///mlflow.db"
            )
    else:
        MlflowClient(uri)  # raises an error for an unknown scheme


def _tags_of_start(record: dict[str, Any]) -> dict[str, str]:
    git = _dict(record.get("git"))
    command = record.get("command")
    tags = {
        "mlflow.note.content": record.get("notes"),
        "mlflow.source.name": " ".join(map(str, command)) if isinstance(command, list) else command,
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
        "mlflow.source.git.repoURL": git.get("remote"),
        "tachograph.tags": ", ".join(map(str, record.get("tags") or ())),
        "tachograph.session_tag": record.get("session_tag"),
        "tachograph.perf_tag": record.get("perf_tag"),
        "tachograph.host": record.get("host"),
    }
    return {name: str(value) for name, value in tags.items() if value}


def _name(name: str) -> str:
    """Return a name that MLflow accepts, different for different names, and unchanged where possible."""
    legal = re.sub(r"[^/\w.\- :]", lambda match: f"_x{ord(match[0]):x}_", name) or "_"
    if posixpath.normpath(legal) != legal or legal.startswith(("/", "..")) or legal == ".":
        legal = legal.replace("/", "_x2f_").replace(".", "_x2e_")  # it would be another path than it seems
    if len(legal) > _MAX_NAME_CHARS:
        legal = f"{legal[: _MAX_NAME_CHARS - 9]}-{_digest(name)}"
    return legal


def _text(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, (list, dict)) else str(value)


def _digest(text: Any) -> str:
    return hashlib.blake2b(str(text).encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _to_ms(time_s: Any) -> int | None:
    return max(round(time_s * 1_000), 0) if is_number(time_s) and math.isfinite(time_s) else None


def _batches(items: list[Any], size: int = _MAX_PARAMS_PER_REQUEST) -> Iterator[list[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
