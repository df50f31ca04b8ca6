"""From the journal to an exporter: a sink, with a cursor, that puts spans and events together again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.one_logger._exporter import Exporter
from tachograph.records import RESERVED_FIELDS
from tachograph.training import (
    Attributes,
    ErrorEvent,
    Event,
    Span,
    StandardSpanName,
    StandardTrainingJobSpanName,
    TelemetryDataError,
    TracingTimestamp,
)

__all__ = ["ExporterSink"]

_ATTEMPTS_AT_ONCE = 3
_MOST_ATTEMPTS = 12
_PAUSE_S = 0.02
_MOST_SPANS = 10_000
_STANDARD = {str(name): name for names in (StandardSpanName, StandardTrainingJobSpanName) for name in names}


class ExporterSink:
    """Calls an exporter for each record of spans and events.

    A call that raises is made again, at once and then with growing pauses; only what fails many times over is given
    up, and counted. The exporter itself is never given up.
    """

    def __init__(self, exporter: Exporter, index: int, report: Callable[[str, str, str], None]) -> None:
        self.name = f"exporter-{index}-{type(exporter).__name__}"
        self._exporter = exporter
        self._report = report
        self._run_id = ""
        self._spans: dict[str, Span] = {}
        self._num_done = 0
        self._num_failures = 0
        self._num_exported = 0
        self.num_lost = 0

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Remember the run; the exporter was initialized when the provider was configured."""
        del folder
        self._run_id = str(start.get("run_id", ""))

    def write(self, records: list[dict[str, Any]]) -> None:
        """Export records; after a failure the same records come again, and those that were exported are passed over."""
        for record in records[self._num_done :]:
            self._try(record)
            self._num_done += 1
            self._num_failures = 0
        self._num_done = 0

    def close(self) -> None:
        """Close the exporter."""
        self._exporter.close()

    def _try(self, record: dict[str, Any]) -> None:
        calls = self._calls(record)
        for call in calls:
            for attempt in range(_ATTEMPTS_AT_ONCE):
                try:
                    call()
                    self._num_exported += 1
                    break
                except Exception as error:
                    self._num_failures += 1
                    if self._num_failures >= _MOST_ATTEMPTS:
                        self._give_up(record, error)
                        return
                    if attempt == _ATTEMPTS_AT_ONCE - 1:
                        raise
                    time.sleep(_PAUSE_S * 2**attempt)

    def _give_up(self, record: dict[str, Any], error: Exception) -> None:
        self.num_lost += 1
        kind = "incomplete_telemetry_data" if self._num_exported else "no_telemetry_data"
        what = f"a {record['event']} record could not be exported: {type(error).__name__}: {error!s:.200}"
        self._report(kind, self.name, f"{what}; {self.num_lost} lost so far, all of them are in the journal")

    # Records as spans and events -----------------------------------------------------------------------------------

    def _calls(self, record: dict[str, Any]) -> list[Callable[[], None]]:
        event, exporter = record["event"], self._exporter
        if event == "span_start":
            span = self._begin(record)
            return [lambda: exporter.export_start(span)]
        if event == "span_stop":
            span = self._spans.get(str(record.get("span_id"))) or self._begin(record)
            _end(span, record)
            return [lambda: exporter.export_stop(span)]
        if event == "span":
            span = self._begin(record)
            _end(span, record)
            return [lambda: exporter.export_start(span), lambda: exporter.export_stop(span)]
        if event in {"event", "error"} and record.get("span_id") in self._spans:
            span = self._spans[record["span_id"]]
            if event == "error":
                error = _error(record)
                return [lambda: exporter.export_error(error, span)]
            happened = Event(str(record.get("name")), _moment(record), _attributes(record))
            span.keep_event(happened)
            return [lambda: exporter.export_event(happened, span)]
        if event == "telemetry_error" and not str(record.get("field", "")).startswith("exporter-"):
            fault = _fault(record)
            return [lambda: exporter.export_telemetry_data_error(fault)]
        return []

    def _begin(self, record: dict[str, Any]) -> Span:
        span_id = str(record.get("span_id"))
        if span_id in self._spans:
            return self._spans[span_id]  # it comes again after a failure
        began_s = float(record.get("time", 0.0))
        if record["event"] != "span_start":
            began_s -= float(record.get("duration_s", 0.0))
        name = str(record.get("name"))
        span = Span.create(
            _STANDARD.get(name, name),
            self._spans.get(str(record.get("parent_id"))),
            Attributes(record.get("attributes")),
            Attributes(record["start_attributes"]) if record.get("start_attributes") else None,
            TracingTimestamp(began_s, began_s),
        )
        if len(self._run_id) == len(span_id) == 16:
            span.more.id = uuid.UUID(hex=self._run_id + span_id)
        self._spans[span_id] = span
        while len(self._spans) > _MOST_SPANS:
            del self._spans[next(iter(self._spans))]
        return span


def _end(span: Span, record: dict[str, Any]) -> None:
    if span.stop_s is None:
        span.add_attributes(Attributes(record.get("attributes")))
        if record.get("status"):
            span.add_attribute("status", record["status"])
        stop_s = (span.start_s or 0.0) + float(record.get("duration_s", 0.0))
        stopped = Attributes(record["stop_attributes"]) if record.get("stop_attributes") else None
        span.stop(stopped, TracingTimestamp(stop_s, stop_s))


def _moment(record: dict[str, Any]) -> TracingTimestamp:
    time_s = float(record.get("time", 0.0))
    return TracingTimestamp(time_s, time_s)


def _attributes(record: dict[str, Any]) -> Attributes:
    own = RESERVED_FIELDS | {"name", "span_id", "global_step"}
    said = Attributes()
    for name, value in record.items():
        if name in own:
            continue
        try:
            said.add(name, value)
        except ConfigError:  # a list of mixed types, which is no attribute
            said.add(name, str(value))
    return said


def _error(record: dict[str, Any]) -> ErrorEvent:
    kind = record.get("error_type")
    return ErrorEvent(
        _moment(record),
        str(record.get("where") or record.get("error_message") or ""),
        str(kind) if kind else None,
        str(record.get("error_message", "")) if kind else None,
        str(record["traceback"]) if record.get("traceback") else None,
    )


def _fault(record: dict[str, Any]) -> TelemetryDataError:
    reason = f"{record.get('kind', '?')}: {record.get('field', '')} {record.get('reason', '')}"
    return TelemetryDataError(_moment(record), TelemetryDataError.ErrorType.INCOMPLETE_TELEMETRY_DATA, reason)
