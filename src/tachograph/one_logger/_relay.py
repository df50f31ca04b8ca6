"""`ExporterSink`: exports the spans and events of a journal through a One Logger exporter.

The journal has flat records; an exporter expects `Span` objects with their events. The sink rebuilds a span from its
start and stop records and keeps it while it is open, and for a while after that, because an error may refer to a span
that has just ended. One record may need several calls of the exporter. The calls that are left are kept in `_calls`,
so that a retry repeats the failed call and no call that succeeded.

An exporter expects a span for every event. An event without one belongs to the application, if that is open. Otherwise
the sink creates a span for the run, named `run`, which starts with the first such event and stops with the run.

After an exporter has missed records, its `export_telemetry_data_error` is called as soon as it works again.
"""

from __future__ import annotations

import functools
import os
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from tachograph._base.guard import suppress
from tachograph.journal import RunFolder
from tachograph.one_logger._attribute_sets import ATTRIBUTE_SETS
from tachograph.one_logger._error_events import ErrorEvent, TelemetryDataError
from tachograph.one_logger._exporter import Exporter, UnreachableError
from tachograph.recorder import Run
from tachograph.records import BASELINE_SPEED, COLLECTIVES, RANK_MESH, RESERVED_FIELDS, finite_or_none
from tachograph.sinks import SinkDriver
from tachograph.spans import (
    EVENT_FIELDS,
    Attributes,
    Event,
    Span,
    StandardSpanName,
    StandardTrainingJobEventName,
    StandardTrainingJobSpanName,
    TracingTimestamp,
    attributes_of,
)

__all__ = ["ExporterSink", "attach_exporters"]

_MAX_ATTEMPTS_PER_WRITE = 3
_MAX_ATTEMPTS = 6
_PAUSE_S = 0.05
_MAX_ENDED_SPANS = 1_000
_RUN_SPAN_NAME = "run"
_RECORDER_EVENTS = frozenset({BASELINE_SPEED, COLLECTIVES, RANK_MESH})
"""Events that the recorder adds for its own rules; an exporter written for One Logger does not expect them."""
_STANDARD: dict[str, Enum] = {
    str(name): name
    for names in (StandardSpanName, StandardTrainingJobSpanName, StandardTrainingJobEventName)
    for name in names
}


class ExporterSink:
    """Calls an exporter for each record of a span or an event.

    A call that raises is repeated at once, and then after growing pauses. A record that fails too often, or that the
    exporter refuses for good, is dropped and counted; the exporter stays in use. An `UnreachableError` drops nothing.
    """

    def __init__(self, exporter: Exporter, name: str, report: Callable[[str, str, str], None]) -> None:
        self.name = name
        self._exporter = exporter
        self._report = report
        self._run_id = ""
        self._spans: dict[str, Span] = {}
        self._ended_span_ids: deque[str] = deque()
        self._run_span: Span | None = None
        """Stands for the run; None until the exporter has its start."""
        self._run_start_s = 0.0
        self._last_error: tuple[Any, Any] | None = None
        self._num_written = 0
        self._num_waiting = 0
        """Records that the exporter has not accepted after the last write."""
        self._calls: deque[Callable[[], None]] | None = None
        self._num_failures = 0
        self._num_exported = 0
        self.num_lost = 0
        self._latest_error = ""
        self._has_new_loss = False
        """Whether records were lost since the last loss was exported."""

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Store the run id. The exporter was initialized when the provider was configured."""
        del folder
        self._run_id = str(start.get("run_id", ""))
        self._run_start_s = self._run_start_s or _number(start, "time")

    def write(self, records: list[dict[str, Any]]) -> None:
        """Export records. After a failure the driver repeats them, and those already exported are skipped."""
        self._num_waiting = len(records) - self._num_written
        for record in records[self._num_written :]:
            self._export(record)
            self._num_written += 1
            self._num_waiting -= 1
            self._num_failures = 0
            self._calls = None
        self._num_written = 0
        self._export_loss()

    def close(self) -> None:
        """Report the missed records, to the journal and to the exporter, and close the exporter."""
        if self._num_waiting:
            self._add_loss(
                self._num_waiting,
                f"the run ended before {self._num_waiting} records were exported: {self._latest_error}; "
                "the journal has them, and the next job of the session exports them",
            )
        self._export_loss()
        try:
            self._exporter.close()
        except Exception as error:  # noqa: BLE001 - an exporter may raise anything, and may have kept records until now
            reason = f"{type(self._exporter).__name__}.close failed: {type(error).__name__}: {error!s:.200}"
            self._report(self._error_type().value, self.name, f"{reason}; the last records may be missing")

    def _export(self, record: dict[str, Any]) -> None:
        num_tries = 0
        while True:
            try:
                if self._calls is None:
                    self._calls = deque(self._calls_for(record))
                while self._calls:
                    self._calls[0]()
                    self._calls.popleft()
                    self._num_exported += 1
                    num_tries = self._num_failures = 0
                return
            except Exception as error:
                num_tries += 1
                self._num_failures += 1
                self._latest_error = f"{type(error).__name__}: {error!s:.200}"
                if isinstance(error, UnreachableError):
                    self._num_failures = 0
                    raise
                if self._num_failures >= _MAX_ATTEMPTS or getattr(error, "may_retry", True) is False:
                    self._drop(record)
                    return
                if num_tries >= _MAX_ATTEMPTS_PER_WRITE:
                    raise
                time.sleep(_PAUSE_S * (num_tries - 1))

    def _drop(self, record: dict[str, Any]) -> None:
        reason = f"dropped a {record['event']} record: {self._latest_error}"
        self._add_loss(1, f"{reason}; {self.num_lost + 1} lost so far, the journal has all of them")

    # Losses --------------------------------------------------------------------------------------------------------

    def _add_loss(self, num_records: int, reason: str) -> None:
        self.num_lost += num_records
        self._has_new_loss = True
        self._report(self._error_type().value, self.name, reason)

    def _export_loss(self) -> None:
        """Export how many records were missed so far, if that has changed and the exporter works again."""
        if not self._has_new_loss:
            return
        message = f"records not exported so far: {self.num_lost}; last error: {self._latest_error}"
        with suppress(Exception):  # tried again after the next records, and when the run ends
            self._exporter.export_telemetry_data_error(TelemetryDataError.create(self._error_type(), message))
            self._has_new_loss = False

    def _error_type(self) -> TelemetryDataError.ErrorType:
        kinds = TelemetryDataError.ErrorType
        return kinds.INCOMPLETE_TELEMETRY_DATA if self._num_exported else kinds.NO_TELEMETRY_DATA

    # Records to spans and events -----------------------------------------------------------------------------------

    def _calls_for(self, record: dict[str, Any]) -> list[Callable[[], None]]:
        event, exporter = record["event"], self._exporter
        if event == "span_start":
            span = self._start_span(record)
            return [lambda: exporter.export_start(span)]
        if event == "span_stop":
            span = self._spans.get(str(record.get("span_id"))) or self._start_span(record)
            self._stop_span(span, record)
            return [lambda: exporter.export_stop(span)]
        if event == "span":
            span = self._start_span(record)
            self._stop_span(span, record)
            return [lambda: exporter.export_start(span), lambda: exporter.export_stop(span)]
        if event == "event" and record.get("name") in _RECORDER_EVENTS:
            return []
        if event in {"event", "error"} and not _is_excluded(record) and not self._is_repeated(record):
            owner = self._spans.get(str(record.get("span_id"))) or self._application()
            return self._event_calls(record, owner) if owner is not None else self._run_event_calls(record)
        if event == "start":  # a new attempt: spans of one that was killed are still open
            self._spans.clear()
            self._ended_span_ids.clear()
            self._run_span, self._run_start_s = None, _number(record, "time")
        if event == "end" and self._run_span is not None:
            return [functools.partial(self._stop_run_span, self._run_span, _number(record, "time"))]
        if event == "telemetry_error" and not str(record.get("field", "")).startswith("exporter-"):
            data_error = _data_error(record, self._error_type())
            return [lambda: exporter.export_telemetry_data_error(data_error)]
        return []

    def _application(self) -> Span | None:
        """Return the application span, if one is open."""
        applications = (span for span in self._spans.values() if span.name is StandardSpanName.APPLICATION)
        return next((span for span in applications if span.stop_s is None), None)

    def _is_repeated(self, record: dict[str, Any]) -> bool:
        """Return whether a record repeats an error: one that ends the run was recorded in a span before."""
        if record["event"] != "error":
            return False
        last, self._last_error = self._last_error, (record.get("error_type"), record.get("error_message"))
        return record.get("fatal") is True and last == self._last_error

    def _event_calls(self, record: dict[str, Any], span: Span) -> list[Callable[[], None]]:
        if record["event"] == "error":
            return [functools.partial(self._exporter.export_error, _error_event(record), span)]
        name = str(record.get("name"))
        attributes = _attribute_set(name, _event_attributes(record))
        event = Event(_STANDARD.get(name, name), _timestamp(record), attributes)
        span.keep_event(event)
        return [functools.partial(self._exporter.export_event, event, span)]

    def _run_event_calls(self, record: dict[str, Any]) -> list[Callable[[], None]]:
        """Return the calls for an event of the run; the first one also starts the span of the run."""
        if self._run_span is not None:
            return self._event_calls(record, self._run_span)
        start_s = self._run_start_s or _number(record, "time")
        span = Span.create(_RUN_SPAN_NAME, start_time=TracingTimestamp(start_s, start_s))
        span.extras.id = uuid.uuid5(uuid.NAMESPACE_OID, f"{self._run_id} {start_s}")  # the same if it is repeated
        return [functools.partial(self._start_run_span, span), *self._event_calls(record, span)]

    def _start_run_span(self, span: Span) -> None:
        self._exporter.export_start(span)
        self._run_span = span

    def _stop_run_span(self, span: Span, stop_s: float) -> None:
        span.stop(None, TracingTimestamp(stop_s, stop_s))  # has no effect when the call is repeated
        self._exporter.export_stop(span)
        self._run_span = None

    def _start_span(self, record: dict[str, Any]) -> Span:
        span_id = str(record.get("span_id"))
        if span_id in self._spans:
            return self._spans[span_id]  # the record is repeated after a failure
        start_s = _number(record, "time")
        if record["event"] != "span_start":
            start_s -= _number(record, "duration_s")
        name = str(record.get("name"))
        span = Span.create(
            _STANDARD.get(name, name),
            self._spans.get(str(record.get("parent_id"))),
            _attribute_set(name, _section_attributes(record, "attributes")),
            _section_attributes(record, "start_attributes") or None,
            TracingTimestamp(start_s, start_s),
        )
        if len(self._run_id) == len(span_id) == 16:
            span.extras.id = uuid.UUID(hex=self._run_id + span_id)
        self._spans[span_id] = span
        return span

    def _stop_span(self, span: Span, record: dict[str, Any]) -> None:
        if span.stop_s is not None:
            return
        initial_attributes = span.attributes
        for name, attribute in _section_attributes(record, "attributes").items():
            if initial_attributes.get(name) != attribute:  # `updated_attributes` are those added or changed later
                span.add_attribute(name, attribute.value)
        if record.get("status"):
            span.add_attribute("status", str(record["status"]))
        stop_s = (span.start_s or 0.0) + max(0.0, _number(record, "duration_s"))
        span.stop(_section_attributes(record, "stop_attributes") or None, TracingTimestamp(stop_s, stop_s))
        self._ended_span_ids.append(str(record.get("span_id")))
        while len(self._ended_span_ids) > _MAX_ENDED_SPANS:  # the latest are kept for errors that refer to them
            self._spans.pop(self._ended_span_ids.popleft(), None)


def attach_exporters(run: Run, exporters: Sequence[Exporter]) -> list[SinkDriver]:
    """Drive initialized exporters from the journal of a run; close them if it records nothing."""
    drivers = []
    for index, exporter in enumerate(exporters):
        if run.folder is None:
            exporter.close()
            continue
        sink = ExporterSink(exporter, _cursor_name(exporter, index), run.report_follower_error)
        driver = SinkDriver(run.folder, sink, run.report_follower_error, from_start=not run.resumed)
        drivers.append(driver)
        run.add_follower(driver)
    return drivers


def _cursor_name(exporter: Exporter, index: int) -> str:
    """Return the name of an exporter's cursor, the same for later jobs of the session."""
    path = getattr(exporter, "path", None)
    identity = f"{zlib.crc32(os.path.abspath(path).encode()):08x}" if path is not None else str(index)
    return f"exporter-{type(exporter).__name__}-{identity}"


def _is_excluded(record: dict[str, Any]) -> bool:
    """Return whether an event belongs to a span that the filter excludes; an exception that ends one is exported."""
    return "span_name" in record and (record["event"] == "event" or not _is_exception(record))


def _is_exception(record: dict[str, Any]) -> bool:
    """Return whether an error was recorded because it ended a span, not by a call of `error`."""
    return str(record.get("where")).startswith("span ")


def _timestamp(record: dict[str, Any]) -> TracingTimestamp:
    time_s = _number(record, "time") or 1.0
    return TracingTimestamp(time_s, time_s)


def _number(record: dict[str, Any], name: str) -> float:
    return finite_or_none(record.get(name)) or 0.0


def _section_attributes(record: dict[str, Any], name: str) -> Attributes:
    values = record.get(name)
    return attributes_of(values, lambda problem: None) if isinstance(values, dict) else Attributes()


def _attribute_set(name: str, attributes: Attributes) -> Attributes:
    """Return the attributes of a span or an event as the set that belongs to its name."""
    return ATTRIBUTE_SETS.get(name, Attributes).merge(attributes)


def _event_attributes(record: dict[str, Any]) -> Attributes:
    record_fields = RESERVED_FIELDS | EVENT_FIELDS
    if "current_iteration" in record:
        record_fields |= {"global_step"}  # repeats current_iteration, for charts
    attribute_names = {f"{name}_": name for name in record_fields}
    values = {attribute_names.get(name, name): value for name, value in record.items() if name not in record_fields}
    return attributes_of(values, lambda problem: None)


def _error_event(record: dict[str, Any]) -> ErrorEvent:
    kind = record.get("error_type")
    where = str(record.get("where") or record.get("error_message") or "")
    return ErrorEvent(
        _timestamp(record),
        f"Error in {where.removeprefix('span ')}: " if _is_exception(record) else where,
        str(kind) if kind else None,
        str(record.get("error_message", "")) if kind else None,
        str(record["traceback"]) if record.get("traceback") else None,
    )


def _data_error(record: dict[str, Any], kind: TelemetryDataError.ErrorType) -> TelemetryDataError:
    reason = str(record.get("reason", ""))
    if record.get("kind") != "telemetry_data_error":  # not reported by the program, with a message of its own
        reason = " ".join(filter(None, (f"{record.get('kind', '?')}:", str(record.get("field", "")), reason)))
    return TelemetryDataError(_timestamp(record), kind, reason, _section_attributes(record, "attributes"))
