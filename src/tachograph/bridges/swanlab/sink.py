"""SwanLab: metrics, config, samples, texts, histograms, media and state of a run.

Steps. SwanLab keeps one value per metric and step, and ignores a second one. A run that is resumed from a checkpoint
repeats steps, so each step is sent as itself plus an offset, which grows when a metric goes back to an earlier step:
the repeated part follows after everything sent before. The metric `global_step` is always the step of the run.
Metrics that are sampled by time, such as system metrics, take the next free step instead.

Delivery. `swanlab.log` only queues; threads of SwanLab write its file and upload. `write` therefore waits until SwanLab
has stored the values and, online, until the server has confirmed them. Otherwise the cursor of the sink would cover
values that may still be lost. If that takes too long, `write` raises and the driver repeats it: the offset is then the
same as before, so SwanLab ignores the values that it already has. The next attempt finds the offset in the journal.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
import swanlab

from tachograph._base.files import make_folder
from tachograph.bridges.exported_media import exported_histograms
from tachograph.bridges.swanlab.media_values import histogram_chart, media_values, table_of
from tachograph.bridges.swanlab.options import check_dashboard, check_options, missing_key
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.records import CONFIG_CHANGED, SUMMARY, flatten
from tachograph.sinks import scalar_metrics

__all__ = ["SwanLabSink"]

_MAX_NAME_CHARS = 512
_MAX_DESCRIPTION_CHARS = 1024
_MAX_TAGS = 30
_INTERRUPTS = {"KeyboardInterrupt", "SIGINT", "SIGTERM", "SIGHUP"}
_SAMPLED_KINDS = {"system", "profile"}
_STEP = "global_step"
_CONFIRM_TIMEOUT_S = 30.0
_QUIET_S = 5.0
"""SwanLab drops a value that it cannot store. If its queue makes no progress for this long, nothing more will come."""


class _SentState(msgspec.Struct):
    """The steps and rows that were sent to SwanLab; see the module."""

    offset: int = 0
    largest: int = -1
    """The largest step."""
    last: dict[str, int] = {}
    """The last step of each metric."""
    rows: dict[str, deque[dict[str, Any]]] = {}
    """The latest rows of each table."""

    def copy(self) -> _SentState:
        """Return a copy, so that a failed `write` changes nothing."""
        rows = {name: deque(table, table.maxlen) for name, table in self.rows.items()}
        return _SentState(self.offset, self.largest, dict(self.last), rows)


class SwanLabSink:
    """Sends a run to SwanLab. SwanLab's own settings and environment variables are the defaults.

    Args:
        project: the project; SwanLab's own setting, else "tachograph" if not given.
        workspace: the user or organization that owns the project.
        mode: `cloud` (or `online`), `local`, `offline` or `disabled`.
        experiment_name: the name of the experiment; the name of the run if not given.
        description: the description of the experiment; the notes of the run if not given.
        api_key: the key for `cloud`, if neither the environment nor `swanlab login` provides it.
        api_host: the address of a private server.
        web_host: the address of its web pages, if that differs.
        log_dir: SwanLab's folder; the run folder's `swanlab/`, or SwanLab's own default for `local`, if not given.
        completions: whether to send samples of prompts and answers.
        max_rows: the number of rows in a table of samples: the latest ones.
        media: whether to send pictures, animations, tables, texts and histograms that were logged as media, too.
    """

    name = "swanlab"

    def __init__(
        self,
        project: str | None = None,
        workspace: str | None = None,
        mode: str | None = None,
        experiment_name: str | None = None,
        description: str | None = None,
        api_key: str | None = None,
        api_host: str | None = None,
        web_host: str | None = None,
        log_dir: str | None = None,
        completions: bool = True,
        max_rows: int = 128,
        media: bool = False,
    ) -> None:
        check_options(
            project, workspace, mode, experiment_name, description, api_key, api_host, web_host, log_dir, completions,
            max_rows, media,
        )  # fmt: skip
        self._media = media
        self._folder: RunFolder | None = None
        self._project = project
        self._workspace = workspace
        self._name = experiment_name
        self._description = description
        self._log_dir = log_dir
        self._completions = completions
        self._max_rows = max_rows
        # A private server has its API and its pages at the same address, unless both are given. Without this, an
        # address of the pages alone would send the run to the public server.
        hosts = {"api_host": api_host or web_host, "web_host": web_host}
        self._settings = _read_settings({"mode": mode, "api_key": api_key, **hosts})
        self._mode: Any = self._settings.mode
        _check_mode(self._settings)
        with contextlib.suppress(AttributeError):
            swanlab.pkg.console.c.quiet = True  # its output would mix with the output of `tacho sync`
        self._run: Any = None
        self._queue = _FlushCounter()
        self._sent_state = _SentState()
        self._end: dict[str, Any] = {}
        """The `end` record of the current attempt, also if it could not be delivered yet."""

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Start the experiment, or resume the one with the id of the run."""
        self._folder = folder
        if self._run is not None and self._run.alive:
            return  # SwanLab itself retries its unsent values; finishing the experiment would wait for them
        if self._mode == "online":
            # Not left to `swanlab.init`, which first creates a folder, at each attempt.
            swanlab.login(api_key=self._settings.api_key, host=self._settings.api_host, relogin=True)
        if self._log_dir is None and self._mode != "local":
            make_folder(folder.path / "swanlab", below=folder.path)  # SwanLab would follow a link
        description = self._description or str(start.get("notes") or "")
        self._queue = _FlushCounter()
        self._run = swanlab.init(
            mode=self._mode,
            project=self._project or self._settings.project.name or "tachograph",
            workspace=self._workspace,
            name=(self._name or folder.name)[:_MAX_NAME_CHARS],
            description=description[:_MAX_DESCRIPTION_CHARS] or None,
            tags=[str(tag)[:_MAX_NAME_CHARS] for tag in start.get("tags") or ()][:_MAX_TAGS] or None,
            id=start.get("run_id"),
            resume="allow",
            log_dir=self._log_dir or (None if self._mode == "local" else str(folder.path / "swanlab")),
            settings=_process_settings(self._settings),
            callbacks=[self._queue],
        )

    def replay(self, records: Iterable[dict[str, Any]]) -> None:
        """Find the steps, the config and the latest samples that earlier attempts have sent."""
        state = _SentState()
        for record in records:
            _assign_step(state, record, self._names_of_media(record) or self._values(record, state))
        self._sent_state = state

    def write(self, records: list[dict[str, Any]]) -> None:
        """Log the values that SwanLab can show, and wait until they are stored."""
        state = self._sent_state.copy()
        for record in records:
            values = self._values(record, state)
            step = _assign_step(state, record, values)
            if values:
                self._queue.num_expected += len(values)
                self._run.log(values, step=step)
        self._wait_until_stored()
        self._sent_state = state

    def close(self) -> None:
        """Finish the experiment with the state that the run ended in."""
        if self._run is None or not self._run.alive:
            return
        run, self._run = self._run, None
        reason = str(self._end.get("reason") or "")
        if self._end.get("status") == "finished":
            run.finish()
        elif reason in _INTERRUPTS:
            run.finish(state="aborted", error=reason)
        else:
            run.finish(state="crashed", error=reason or "the process ended without recording how")

    # The content of records ------------------------------------------------------------------------------------------

    def _values(self, record: dict[str, Any], state: _SentState) -> dict[str, Any]:
        """Return the values to log for a record; pass on the config."""
        values: dict[str, Any] = scalar_metrics(record)
        match record["event"]:
            case "start":
                self._end = {}
                if isinstance(record.get("config"), dict):
                    self._run.config.update(record["config"])
            case "end":
                self._end = record
            case "profile":
                values = _durations(record)
            case "completions":
                values = self._table(record, state) if self._completions else {}
            case "media" if self._media:
                value = media_values(record, self._folder)
                values = {} if value is None else {str(record.get("name")): value}
            case "histograms" if self._media:
                charts = {name: histogram_chart(*histogram) for name, *histogram in exported_histograms(record)}
                values = {name: chart for name, chart in charts.items() if chart is not None}
            case "event":
                values = self._values_of_event(record)
            case "alert" if record.get("status") == "opened":
                text = f"{record.get('title')}\n{record.get('message') or ''}".strip()
                values = {"alerts": swanlab.Text(text, caption=str(record.get("severity")))}
        return {key: value for name, value in values.items() if (key := _key(name))}

    def _names_of_media(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the names of media that an earlier attempt sent, without reading their files."""
        names: list[Any] = []
        if self._media and record["event"] == "media":
            names = [record.get("name")]
        elif self._media and record["event"] == "histograms" and isinstance(record.get("values"), dict):
            names = list(record["values"])
        return {key: None for name in names if (key := _key(str(name)))}

    def _values_of_event(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the values to log for an event; pass on changes of the config."""
        name, tag = record.get("name"), str(record.get("tag"))
        if name == CONFIG_CHANGED and isinstance(record.get("config"), dict):
            self._run.config.update(record["config"])
        elif name == SUMMARY and isinstance(record.get("summary"), dict):
            results = flatten(record["summary"])
            return {f"summary/{key}": value for key, value in results.items() if type(value) in (int, float)}
        elif name == "text" and isinstance(record.get("text"), str):
            return {tag: swanlab.Text(record["text"])}
        elif name == "histogram":
            chart = histogram_chart(record.get("counts"), record.get("edges"))
            return {} if chart is None else {tag: chart}
        return {}

    def _table(self, record: dict[str, Any], state: _SentState) -> dict[str, Any]:
        """Return samples as a table. SwanLab shows one table per step, so it has the latest ones of earlier records."""
        name = str(record.get("table", "completions"))
        rows = state.rows.setdefault(name, deque(maxlen=self._max_rows))
        rows.extend(row for row in record.get("rows") or () if isinstance(row, dict))
        columns = list(dict.fromkeys(str(column) for row in rows for column in row))
        return {name: table_of(columns, rows)} if columns else {}

    # Delivery --------------------------------------------------------------------------------------------------------

    def _wait_until_stored(self) -> None:
        """Wait until the values are in SwanLab's file and, online, on the server; see the module.

        SwanLab has no public method for that; the wait is skipped in versions without the private ones.

        Raises:
            ConnectionError: if the server has not confirmed everything in time.
        """
        if self._mode == "disabled":
            return
        self._queue.wait()
        with contextlib.suppress(Exception):
            self._run._core._store.ensure_flushed()
        deadline_s = time.monotonic() + _CONFIRM_TIMEOUT_S
        while num_unsent := self._num_unsent():
            if time.monotonic() > deadline_s:
                raise ConnectionError(f"{num_unsent} values have not reached {self._settings.api_host}")
            time.sleep(0.05)

    def _num_unsent(self) -> int:
        if self._mode == "online":
            with contextlib.suppress(Exception):
                stats = self._run._core.get_operation_stats().stats
                return int(stats.total_records - stats.uploaded_records)
        return 0


class _FlushCounter(swanlab.Callback):  # type: ignore[misc]
    """Counts the values that SwanLab has taken from its queue."""

    name = "tachograph"

    def __init__(self) -> None:
        self.num_expected = 0
        self._num_flushed = 0
        self._progress = threading.Condition()

    def on_scalar_flush(self, scalar_records: Any, *args: Any, **kwargs: Any) -> None:
        self._add(len(scalar_records))

    def on_media_flush(self, media_records: Any, *args: Any, **kwargs: Any) -> None:
        self._add(len(media_records))

    def _add(self, count: int) -> None:
        with self._progress:
            self._num_flushed += count
            self._progress.notify_all()

    def wait(self) -> None:
        """Wait until SwanLab has taken everything, or makes no progress any more."""
        with self._progress:
            while self._num_flushed < self.num_expected:
                if not self._progress.wait(_QUIET_S):
                    self._num_flushed = self.num_expected


def _read_settings(options: dict[str, str | None]) -> Any:
    """Return SwanLab's settings: these options, else its environment variables, files and login."""
    try:
        return swanlab.Settings(**{name: value for name, value in options.items() if value is not None})
    except ValueError as error:  # pydantic's own text quotes the values
        problems: list[Any] = getattr(error, "errors", list)()
        names = ", ".join(".".join(map(str, one.get("loc", ()))) or str(one.get("msg")) for one in problems)
        raise ConfigError(f"SwanLab rejects its settings{f': {names}' if names else ''}") from None


def _check_mode(settings: Any) -> None:
    """Check that the key or the package that a mode needs is there.

    Raises:
        ConfigError: with the remedy.
    """
    if settings.mode == "online" and not settings.api_key:
        raise missing_key(settings.api_host)
    if settings.mode == "local":
        check_dashboard()


def _process_settings(settings: Any) -> Any:
    """Return settings that keep SwanLab from describing this process instead of the training process."""
    options = settings.model_dump(include={"api_key", "api_host", "web_host"}, exclude_none=True)
    kind = swanlab.Settings
    probes = dict.fromkeys(("runtime", "requirements", "conda", "git", "swanlab", "monitor"), False)
    probe = kind.Probe(**{name: value for name, value in probes.items() if name in kind.Probe.model_fields})
    return kind(**options, interactive=False, terminal=kind.Terminal(proxy_type="none"), probe=probe)


def _assign_step(state: _SentState, record: dict[str, Any], values: dict[str, Any]) -> int:
    """Return the step at which to log the values of a record, and add `global_step` to them; see the module."""
    step = record.get(_STEP)
    if record["event"] in _SAMPLED_KINDS or not isinstance(step, int) or step < 0:
        at = step + state.offset if isinstance(step, int) and step >= 0 else max(state.largest, 0)
        at = max([at, *(state.last.get(key, -1) + 1 for key in values)])
    else:
        if any(step + state.offset < state.last.get(key, -1) for key in values):
            state.offset = state.largest + 1 - step
        at = step + state.offset
        if values:
            state.largest = max(state.largest, at)
            values[_STEP] = step
    for key in values:
        state.last[key] = max(state.last.get(key, -1), at)
    return at


def _key(name: str) -> str:
    """Return a name as SwanLab accepts it."""
    return re.sub(r"[\x00-\x1f\x7f]", "_", name).strip(" ./")[:_MAX_NAME_CHARS].rstrip(" ./")


def _durations(record: dict[str, Any]) -> dict[str, Any]:
    """Return the mean durations of profiled code under the names that SwanLab users know."""
    names = {name for name in scalar_metrics(record) if f"{name}/count" in record}
    return {f"profiling/Time taken: {name.removeprefix('profiling/')}": record[name] for name in names}
