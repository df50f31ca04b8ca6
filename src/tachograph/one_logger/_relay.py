"""From the journal to an exporter: a sink, with a cursor, that puts spans and events together again."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from tachograph.journal import RunFolder
from tachograph.one_logger._exporter import Exporter
from tachograph.records import RESERVED_FIELDS, finite_or_none
from tachograph.spans import (
    Attributes,
    ErrorEvent,
    Event,
    Span,
    StandardSpanName,
    StandardTrainingJobSpanName,
    TelemetryDataError,
    TracingTimestamp,
)
from tachograph.spans._attributes import attributes_of
from tachograph.spans._recorder import EVENT_FIELDS

__all__ = ["ExporterSink"]

_ATTEMPTS_AT_ONCE = 3
_MOST_ATTEMPTS = 6
_PAUSE_S = 0.05
_MOST_ENDED = 1_000
_STANDARD = {str(name): name for names in (StandardSpanName, StandardTrainingJobSpanName) for name in names}


class ExporterSink:
    """Calls an exporter for each record of spans and events.

    A call that raises is made again, at once and then with growing pauses; only what fails many times over is given
    up, and counted. The exporter itself is never given up.
    """

    def __init__(self, exporter: Exporter, name: str, report: Callable[[str, str, str], None]) -> None:
        self.name = name
        self._exporter = exporter
        self._report = report
        self._run_id = ""
        self._spans: dict[str, Span] = {}
        self._ended: deque[str] = deque()
        self._num_done = 0
        self._calls: deque[Callable[[], None]] | None = None
        self._num_failures = 0
        self._num_exported = 0
        self.num_lost = 0

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Remember the run; the exporter was initialized when the provider was configured."""
        del folder
        self._run_id = str(start.get("run_id", ""))

    def write(self, records: list[dict[str, Any]]) -> None:
        """Export records; after a failure the same records come again, and what was exported is passed over."""
        for record in records[self._num_done :]:
            self._try(record)
            self._num_done += 1
            self._num_failures = 0
            self._calls = None
        self._num_done = 0

    def close(self) -> None:
        """Close the exporter."""
        self._exporter.close()

    def _try(self, record: dict[str, Any]) -> None:
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
                if self._num_failures >= _MOST_ATTEMPTS:
                    self._give_up(record, error)
                    return
                if num_tries >= _ATTEMPTS_AT_ONCE:
                    raise
                time.sleep(_PAUSE_S * (num_tries - 1))

    def _give_up(self, record: dict[str, Any], error: Exception) -> None:
        self.num_lost += 1
        kind = "incomplete_telemetry_data" if self._num_exported else "no_telemetry_data"
        what = f"a {record['event']} record could not be exported: {type(error).__name__}: {error!s:.200}"
        self._report(kind, self.name, f"{what}; {self.num_lost} lost so far, all of them are in the journal")

    # Records as spans and events -----------------------------------------------------------------------------------

    def _calls_for(self, record: dict[str, Any]) -> list[Callable[[], None]]:
        event, exporter = record["event"], self._exporter
        if event == "span_start":
            span = self._begin(record)
            return [lambda: exporter.export_start(span)]
        if event == "span_stop":
            span = self._spans.get(str(record.get("span_id"))) or self._begin(record)
            self._end(span, record)
            return [lambda: exporter.export_stop(span)]
        if event == "span":
            span = self._begin(record)
            self._end(span, record)
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
        began_s = _number(record, "time")
        if record["event"] != "span_start":
            began_s -= _number(record, "duration_s")
        name = str(record.get("name"))
        span = Span.create(
            _STANDARD.get(name, name),
            self._spans.get(str(record.get("parent_id"))),
            _said(record, "attributes"),
            _said(record, "start_attributes") or None,
            TracingTimestamp(began_s, began_s),
        )
        if len(self._run_id) == len(span_id) == 16:
            span.extras.id = uuid.UUID(hex=self._run_id + span_id)
        self._spans[span_id] = span
        return span

    def _end(self, span: Span, record: dict[str, Any]) -> None:
        if span.stop_s is not None:
            return
        span.add_attributes(_said(record, "attributes"))
        if record.get("status"):
            span.add_attribute("status", str(record["status"]))
        stop_s = (span.start_s or 0.0) + max(0.0, _number(record, "duration_s"))
        span.stop(_said(record, "stop_attributes") or None, TracingTimestamp(stop_s, stop_s))
        self._ended.append(str(record.get("span_id")))
        while len(self._ended) > _MOST_ENDED:  # for what comes after a span's end, the latest are kept
            self._spans.pop(self._ended.popleft(), None)


def _moment(record: dict[str, Any]) -> TracingTimestamp:
    time_s = _number(record, "time") or 1.0
    return TracingTimestamp(time_s, time_s)


def _number(record: dict[str, Any], name: str) -> float:
    return finite_or_none(record.get(name)) or 0.0


def _said(record: dict[str, Any], name: str) -> Attributes:
    values = record.get(name)
    return attributes_of(values, lambda problem: None) if isinstance(values, dict) else Attributes()


def _attributes(record: dict[str, Any]) -> Attributes:
    own = RESERVED_FIELDS | EVENT_FIELDS
    if "current_iteration" in record:
        own |= {"global_step"}  # the same once more, for charts
    theirs = {f"{name}_": name for name in own}
    values = {theirs.get(name, name): value for name, value in record.items() if name not in own}
    return attributes_of(values, lambda problem: None)


def _error(record: dict[str, Any]) -> ErrorEvent:
    kind = record.get("error_type")
    where = str(record.get("where") or record.get("error_message") or "")
    return ErrorEvent(
        _moment(record),
        f"Error in {where.removeprefix('span ')}: " if where.startswith("span ") else where,
        str(kind) if kind else None,
        str(record.get("error_message", "")) if kind else None,
        str(record["traceback"]) if record.get("traceback") else None,
    )


def _fault(record: dict[str, Any]) -> TelemetryDataError:
    reason = f"{record.get('kind', '?')}: {record.get('field', '')} {record.get('reason', '')}"
    return TelemetryDataError(_moment(record), TelemetryDataError.ErrorType.INCOMPLETE_TELEMETRY_DATA, reason)
