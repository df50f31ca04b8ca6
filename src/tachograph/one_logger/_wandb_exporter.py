"""`WandBExporterSync` and `WandBExporterAsync`: attributes of spans and events as W&B metrics.

W&B has no spans. The attributes of a span are logged when it starts and stops, the attributes of an event when it
occurs, under names that a `MetricNamingStrategy` chooses.

Both exporters are called in a thread of their own, and run the client of W&B in a child process: it meets neither the
W&B runs of the program nor its exit. A server that cannot be reached delays the program by `_OPEN_WAIT_S` once. The
child keeps connecting, and records wait in the journal until it has succeeded.
"""

from __future__ import annotations

import itertools
import os
import queue
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tachograph._base.detached import DetachedProcess
from tachograph._base.guard import faults
from tachograph._base.threads import TelemetryThread
from tachograph._base.typed import decode_json
from tachograph.exceptions import ConfigError
from tachograph.one_logger._error_events import ErrorEvent, TelemetryDataError
from tachograph.one_logger._exporter import BaseExporter, ExportError, UnreachableError
from tachograph.one_logger._wandb_process import WandbReply, WandbRequest
from tachograph.spans import Attribute, Attributes, Event, Span

__all__ = [
    "Config",
    "FlatMetricNamingStrategy",
    "HierarchicalMetricNamingStrategy",
    "MetricNamingStrategy",
    "WandBExporterAsync",
    "WandBExporterSync",
]

_DEFAULT_HOST = "https://api.wandb.ai"
_IMPORT_TIMEOUT_S = 120.0
_OPEN_WAIT_S = 5.0
"""How long `initialize` waits for the W&B run. A wrong key or a missing one is found sooner."""
_RETRY_WAIT_S = 1.0
"""How long a record waits for the W&B run before the exporter's thread pauses."""
_LOG_TIMEOUT_S = 60.0
_FINISH_TIMEOUT_S = 120.0


@dataclass
class Config:
    """The W&B run of an exporter. An empty field comes from W&B's own settings, such as `WANDB_API_KEY`."""

    entity: str = ""
    host: str = _DEFAULT_HOST
    api_key: str = field(default="", repr=False)
    project: str = "one-logger-tracking"
    run_name: str = field(default_factory=lambda: str(uuid.uuid4()))
    save_dir: str = "./wandb"
    tags: list[str] = field(default_factory=lambda: ["e2e_metrics_enabled"])


class MetricNamingStrategy(ABC):
    """Chooses the name of a metric for an attribute."""

    @abstractmethod
    def from_span_attribute(self, span: Span, attribute: Attribute) -> str:
        """Return the name for an attribute of a span."""

    @abstractmethod
    def from_event_attribute(self, span: Span, event: Event, attribute: Attribute) -> str:
        """Return the name for an attribute of an event."""


class HierarchicalMetricNamingStrategy(MetricNamingStrategy):
    """Joins the names of span, event and attribute: `training_loop.training_metrics_update.latest_loss`."""

    def __init__(self, separator: str = ".") -> None:
        self._separator = separator

    def from_span_attribute(self, span: Span, attribute: Attribute) -> str:
        """Return the name for an attribute of a span."""
        return self._separator.join((span.name_str, attribute.name))

    def from_event_attribute(self, span: Span, event: Event, attribute: Attribute) -> str:
        """Return the name for an attribute of an event."""
        return self._separator.join((span.name_str, event.name_str, attribute.name))


class FlatMetricNamingStrategy(MetricNamingStrategy):
    """Uses the name of the attribute, so that attributes with the same name share a metric."""

    def from_span_attribute(self, span: Span, attribute: Attribute) -> str:
        """Return the name for an attribute of a span."""
        del span
        return attribute.name

    def from_event_attribute(self, span: Span, event: Event, attribute: Attribute) -> str:
        """Return the name for an attribute of an event."""
        del span, event
        return attribute.name


class _WandBExporter(BaseExporter):
    """Builds metrics and logs them.

    Args:
        config: the W&B run: a `Config`, or a dict with its fields.
        metric_naming_strategy: names the metrics; `HierarchicalMetricNamingStrategy` by default.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        metric_naming_strategy: MetricNamingStrategy | None = None,
    ) -> None:
        super().__init__()
        try:
            self._config = config if isinstance(config, Config) else Config(**(config or {}))
        except TypeError as error:
            fields = ", ".join(Config.__dataclass_fields__)
            raise ConfigError(f"config must be a Config or a dict with the fields {fields}: {error}") from None
        if metric_naming_strategy is not None and not isinstance(metric_naming_strategy, MetricNamingStrategy):
            raise ConfigError(
                f"metric_naming_strategy must be a MetricNamingStrategy, got {type(metric_naming_strategy).__name__}"
            )
        self._naming = metric_naming_strategy or HierarchicalMetricNamingStrategy()
        self._client: _WandbProcess | None = None
        self._exit_code = 0

    def initialize(self) -> None:
        """Start the W&B run. If the server does not answer for a while, the run is started as soon as it does.

        Raises:
            ExportError: if W&B is not installed or refuses the config.
        """
        config = asdict(self._config)
        if config["host"] == _DEFAULT_HOST:
            config["host"] = ""  # so that WANDB_BASE_URL applies
        config["save_dir"] = os.path.abspath(config["save_dir"])  # the program may change its working directory
        try:
            self._client = _WandbProcess(config)
        except ImportError as error:
            raise ExportError(f"W&B is not installed ({error}): pip install 'tachograph[wandb]'") from error
        self._exit_code = 0
        super().initialize()

    def export_start(self, span: Span) -> None:
        """Log the attributes of a span and of its start."""
        self._log(self._span_metrics(span) | self._event_metrics(span.start_event, span))

    def export_stop(self, span: Span) -> None:
        """Log the attributes of a span and of its stop."""
        stop = span.stop_event
        if stop is None:
            raise ExportError(f"span {span.name_str!r} has not stopped")
        self._log(self._span_metrics(span) | self._event_metrics(stop, span))

    def export_event(self, event: Event, span: Span) -> None:
        """Log the attributes of an event."""
        self._log(self._event_metrics(event, span))

    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Log an error of the training code; the W&B run ends as failed."""
        self._exit_code = 1
        self._log(self._event_metrics(event, span))

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Log a fault of telemetry itself."""
        self._log({f"{error.name_str}.{name}": value for name, value in error.attributes.to_json().items()})

    def close(self) -> None:
        """Finish the W&B run."""
        client, self._client = self._client, None
        super().close()
        if client is not None:
            client.finish(self._exit_code)

    def _span_metrics(self, span: Span) -> dict[str, Any]:
        values = span.attributes.to_json()
        return {self._naming.from_span_attribute(span, item): values[item.name] for item in _items(span.attributes)}

    def _event_metrics(self, event: Event, span: Span) -> dict[str, Any]:
        values = event.attributes.to_json()
        items = _items(event.attributes)
        return {self._naming.from_event_attribute(span, event, item): values[item.name] for item in items}

    def _log(self, metrics: dict[str, Any]) -> None:
        self._check_state()
        if metrics and self._client is not None:
            self._client.log(metrics)


def _items(attributes: Attributes) -> list[Attribute]:
    return list(attributes.values())


class WandBExporterAsync(_WandBExporter):
    """Logs to W&B with a client in a child process, which ends after the program."""


class WandBExporterSync(_WandBExporter):
    """The same as `WandBExporterAsync`, because a client in this process could delay its exit."""


class _WandbProcess:
    """The client in a child process. Each call waits for its reply, so that a refused record is known."""

    def __init__(self, config: dict[str, Any]) -> None:
        try:
            self._process = DetachedProcess("tachograph.one_logger._wandb_process", "exporter", "wandb")
        except faults(OSError) as error:
            raise ExportError(f"the process of the W&B exporter cannot be started: {error}") from error
        self._numbers = itertools.count()
        self._replies: queue.SimpleQueue[WandbReply | None] = queue.SimpleQueue()
        self._is_open = False
        self._open_error = ""
        """Why the last attempt to start the run failed."""
        TelemetryThread(self._read_replies, name="tachograph-wandb-exporter").start()
        try:
            self._call(_IMPORT_TIMEOUT_S, "import")
            self._open_number = self._send("open", config, os.getpid())
            if not self._wait_until_open(_OPEN_WAIT_S) and self._open_error:
                raise ExportError(self._open_error)
        except ExportError as error:
            self._abandon()
            if "ImportError" in str(error) or "ModuleNotFoundError" in str(error):
                raise ImportError(str(error)) from None
            raise

    def log(self, metrics: dict[str, Any]) -> None:
        if not self._wait_until_open(_RETRY_WAIT_S):
            raise UnreachableError(self._open_error or "W&B has not started the run yet")
        self._call(_LOG_TIMEOUT_S, "log", metrics)

    def finish(self, exit_code: int) -> None:
        if not self._wait_until_open(_RETRY_WAIT_S):
            self._abandon()
            return
        try:
            self._call(_FINISH_TIMEOUT_S, "finish", exit_code)
        finally:
            self._process.close_requests()

    def _abandon(self) -> None:
        self._process.kill()
        self._process.close_requests()

    def _wait_until_open(self, timeout_s: float) -> bool:
        """Return whether the run has started; the child process repeats an attempt that fails."""
        if not self._is_open:
            reply = self._reply_to(self._open_number, timeout_s)
            if reply is not None:
                self._is_open, self._open_error = not reply.error, reply.error
        return self._is_open

    def _read_replies(self) -> None:
        for line in self._process.replies():
            self._replies.put(decode_json(line, WandbReply))
        self._replies.put(None)

    def _send(self, method: str, *arguments: Any) -> int:
        number = next(self._numbers)
        self._process.send(WandbRequest(number, method, arguments))
        return number

    def _call(self, timeout_s: float, method: str, *arguments: Any) -> None:
        reply = self._reply_to(self._send(method, *arguments), timeout_s)
        if reply is None:
            raise ExportError(f"W&B did not finish a call of {method} within {timeout_s:g} s")
        if reply.error:
            raise ExportError(reply.error)

    def _reply_to(self, number: int, timeout_s: float) -> WandbReply | None:
        """Wait for the reply to a request; return None at the timeout."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                reply = self._replies.get(timeout=max(deadline_s - time.monotonic(), 0.0))
            except queue.Empty:
                return None
            if reply is None:
                self._replies.put(None)  # for the next call
                raise ExportError("the process of the W&B exporter has ended")
            if reply.number == number:  # not the reply to a call that took too long
                return reply
