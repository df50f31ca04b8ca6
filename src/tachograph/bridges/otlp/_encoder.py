"""`OtlpEncoder`: turns the records of a journal into spans, log records and data points.

Traces. OTLP has a span only when it ends, and backends handle a trace as a unit, so a trace that lasts for days is of
little use. Each checkpoint therefore starts a new trace:

    attempt 1   trace 0: run ─ application ─ training_loop ─ checkpoint_save …
                trace 1: checkpoint_interval ─ validation_loop …      (linked to trace 0)
                trace 2: checkpoint_interval ─ …                      (linked to trace 0)
    attempt 2   trace 0: run ─ …                                      (linked to trace 0 of attempt 1)

Trace 0 lasts from the start of an attempt to its first checkpoint, and has the long spans in it. Its root, `run`, is
the whole attempt. A span belongs to the trace in which its start was recorded. If its parent is in an earlier trace,
its parent is the root of its own trace, and a link refers to the real one.

Announcements. A long span has a log record named `tachograph.span_start` as soon as it starts, with its trace and span
ids. The span itself follows under the same ids when it ends. If the process was killed, the next attempt completes its
spans, with the status `died`.

State. The attempt, the interval and the open spans depend on earlier records. `OtlpEncoder` has no other state, so a
copy of it can be dropped if a delivery fails, and passing it the earlier records again restores it.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tachograph.bridges.otlp._ids import RUN_SPAN, root_span_id, span_id_bytes, trace_id_bytes
from tachograph.bridges.otlp._resource import resource_of
from tachograph.bridges.otlp._values import MAX_INT, any_value, double, key_values, nanoseconds, utf8
from tachograph.records import METRIC_KINDS, RESERVED_FIELDS, finite_or_none
from tachograph.sinks import scalar_metrics

__all__ = ["OtlpMessages", "OtlpEncoder"]

_INTERVAL_SPAN = "checkpoint_interval"
_CHECKPOINT_SAVED = "save_checkpoint_success"
_STEP_METRIC = "tachograph.global_step"
_ALERT_SEVERITIES = {
    "info": SeverityNumber.SEVERITY_NUMBER_INFO,
    "warning": SeverityNumber.SEVERITY_NUMBER_WARN,
    "critical": SeverityNumber.SEVERITY_NUMBER_ERROR,
}
_FAILURES = frozenset({"error", "failed", "crashed", "died"})
"""The statuses of spans and runs that went wrong."""
_EXCEPTION_FIELDS = {
    "error_type": "exception.type",
    "error_message": "exception.message",
    "traceback": "exception.stacktrace",
}


class OtlpMessages(NamedTuple):
    """The messages of some records of one attempt."""

    resource: Resource
    spans: list[Span]
    logs: list[LogRecord]
    metrics: dict[tuple[str, str], Metric]
    """By kind and name: the points of one metric are in one message."""


class _OpenSpan(NamedTuple):
    name: str
    interval: int
    parent: str | None
    """The id of the parent in the journal; None for a root."""
    parent_interval: int
    start_s: float
    attributes: Mapping[str, Any]
    error: str = ""


class OtlpEncoder:
    """Encodes records in journal order.

    Args:
        run_id: the id of the run, if its `start` records have none.
        attributes: attributes of the resource that override the attributes of the run.
    """

    def __init__(self, run_id: str, attributes: Mapping[str, Any]) -> None:
        self._run_id = run_id
        self._attributes = attributes
        self._attempt = 0
        self._interval = 0
        self._checkpoint_step: Any = None
        self._roots: dict[int, _OpenSpan] = {}
        """The open root spans of the attempt, by interval."""
        self._spans: dict[str, _OpenSpan] = {}
        """The other open spans, by their id in the journal."""
        self._last_s = 0.0
        self._resource = resource_of({}, run_id, 0, attributes)

    def copy(self) -> OtlpEncoder:
        """Return an encoder that continues here, without an effect on this one."""
        encoder = copy.copy(self)
        encoder._roots, encoder._spans = dict(self._roots), dict(self._spans)
        return encoder

    def new_output(self) -> OtlpMessages:
        """Return an empty output for the current attempt."""
        return OtlpMessages(self._resource, [], [], {})

    def skip(self, record: dict[str, Any]) -> None:
        """Pass over a record of metrics."""
        self._last_s = finite_or_none(record.get("time")) or self._last_s

    def encode(self, record: dict[str, Any], output: OtlpMessages) -> OtlpMessages:
        """Add the messages of a record.

        Returns:
            The output for the next record: a new one after the start of an attempt, which is another resource.
        """
        event = record["event"]
        if event == "start":
            self._end_attempt(output, "died")
            output = self._start_attempt(record)
        time_s = self._last_s = finite_or_none(record.get("time")) or self._last_s
        if event in METRIC_KINDS:
            self._add_gauges(record, output)
        elif event == "span_start":
            self._start_span(str(record.get("span_id")), record, output)
        elif event in {"span_stop", "span"}:
            self._stop_span(record, output)
        elif not (event == "event" and record.get("name") == "histogram" and _add_histogram(record, output)):
            self._add_log(record, output)
        if event == "end":
            self._end_attempt(output, str(record.get("status", "")))
        elif event == "checkpoint" or (event == "event" and record.get("name") == _CHECKPOINT_SAVED):
            self._start_interval(record.get("global_step"), time_s, output)
        return output

    # Attempts and intervals ----------------------------------------------------------------------------------------

    def _start_attempt(self, record: dict[str, Any]) -> OtlpMessages:
        self._attempt += 1
        self._run_id = str(record.get("run_id") or self._run_id)
        self._interval, self._checkpoint_step = 0, None
        self._resource = resource_of(record, self._run_id, self._attempt, self._attributes)
        output = self.new_output()
        attributes = {"tachograph.run.name": record.get("run_name"), "tachograph.attempt": self._attempt}
        self._open_root(RUN_SPAN, finite_or_none(record.get("time")) or 0.0, attributes, output)
        return output

    def _start_interval(self, step: Any, time_s: float, output: OtlpMessages) -> None:
        """Start a new trace after a checkpoint. A checkpoint may have two records, with the same step."""
        if not self._roots or (step is not None and step == self._checkpoint_step):
            return
        if self._interval:  # the root of the first trace is open until the attempt ends
            self._close_root(self._interval, time_s, "", output)
        self._interval, self._checkpoint_step = self._interval + 1, step
        attributes = {"tachograph.checkpoint_interval": self._interval, "tachograph.global_step": step}
        self._open_root(_INTERVAL_SPAN, time_s, attributes, output)

    def _end_attempt(self, output: OtlpMessages, status: str) -> None:
        """End the open spans. Only a process that was killed leaves spans open."""
        for span_id in list(self._spans):
            self._add_span(self._spans.pop(span_id), span_id_bytes(span_id), self._last_s, "died", {}, output)
        for interval in sorted(self._roots, reverse=True):
            self._close_root(interval, self._last_s, status, output)

    def _open_root(self, name: str, start_s: float, attributes: Mapping[str, Any], output: OtlpMessages) -> None:
        root = _OpenSpan(name, self._interval, None, 0, start_s, attributes)
        self._roots[self._interval] = root
        self._announce(root, root_span_id(self._run_id, self._attempt, self._interval), output)

    def _close_root(self, interval: int, stop_s: float, status: str, output: OtlpMessages) -> None:
        root = self._roots.pop(interval)
        self._add_span(root, root_span_id(self._run_id, self._attempt, interval), stop_s, status, {}, output)

    # Spans ---------------------------------------------------------------------------------------------------------

    def _start_span(self, span_id: str, record: dict[str, Any], output: OtlpMessages) -> None:
        self._spans[span_id] = self._new_span(record, finite_or_none(record.get("time")) or 0.0)
        self._announce(self._spans[span_id], span_id_bytes(span_id), output)

    def _new_span(self, record: dict[str, Any], start_s: float) -> _OpenSpan:
        parent_id = str(record["parent_id"]) if record.get("parent_id") else None
        parent = self._spans.get(parent_id) if parent_id else None
        parent_interval = parent.interval if parent else self._interval
        attributes = _attributes(record)
        return _OpenSpan(str(record.get("name")), self._interval, parent_id, parent_interval, start_s, attributes)

    def _stop_span(self, record: dict[str, Any], output: OtlpMessages) -> None:
        span_id = str(record.get("span_id"))
        stop_s = finite_or_none(record.get("time")) or 0.0
        start_s = stop_s - max(finite_or_none(record.get("duration_s")) or 0.0, 0.0)
        span = self._spans.pop(span_id, None) or self._new_span(record, start_s)
        self._add_span(span, span_id_bytes(span_id), stop_s, str(record.get("status", "")), _attributes(record), output)

    def _add_span(
        self, span: _OpenSpan, span_id: bytes, stop_s: float, status: str, more: Mapping[str, Any], output: OtlpMessages
    ) -> None:
        message = Span(
            trace_id=self._trace(span.interval),
            span_id=span_id,
            name=utf8(span.name),
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=nanoseconds(span.start_s),
            end_time_unix_nano=max(nanoseconds(stop_s), nanoseconds(span.start_s)),
            attributes=key_values({**span.attributes, **more, **({"tachograph.status": status} if status else {})}),
        )
        if status in _FAILURES:
            message.status.code = Status.STATUS_CODE_ERROR
            message.status.message = utf8(span.error or status)
        if span_id != self._root(span):
            message.parent_span_id = self._parent(span)
            if span.parent is not None and span.parent_interval != span.interval:
                link = message.links.add(trace_id=self._trace(span.parent_interval), span_id=span_id_bytes(span.parent))
                link.attributes.extend(key_values({"tachograph.link": "parent"}))
        elif span.interval:
            self._link_root(message, self._attempt, "session")
        elif self._attempt > 1:
            self._link_root(message, self._attempt - 1, "previous_attempt")
        output.spans.append(message)

    def _link_root(self, message: Span, attempt: int, meaning: str) -> None:
        link = message.links.add(
            trace_id=trace_id_bytes(self._run_id, attempt, 0), span_id=root_span_id(self._run_id, attempt, 0)
        )
        link.attributes.extend(key_values({"tachograph.link": meaning}))

    def _root(self, span: _OpenSpan) -> bytes:
        return root_span_id(self._run_id, self._attempt, span.interval)

    def _parent(self, span: _OpenSpan) -> bytes:
        """Return the id of the parent in the same trace."""
        if span.parent is None or span.parent_interval != span.interval:
            return self._root(span)
        return span_id_bytes(span.parent)

    def _trace(self, interval: int) -> bytes:
        return trace_id_bytes(self._run_id, self._attempt, interval)

    # Logs and metrics ----------------------------------------------------------------------------------------------

    def _announce(self, span: _OpenSpan, span_id: bytes, output: OtlpMessages) -> None:
        """Add a log record that says that a span is open."""
        values = {
            **span.attributes,
            "tachograph.span.name": span.name,
            "tachograph.span.parent_id": self._parent(span).hex() if span_id != self._root(span) else None,
        }
        output.logs.append(
            LogRecord(
                time_unix_nano=nanoseconds(span.start_s),
                observed_time_unix_nano=nanoseconds(span.start_s),
                severity_number=SeverityNumber.SEVERITY_NUMBER_INFO,
                severity_text="INFO",
                event_name="tachograph.span_start",
                body=any_value(f"{span.name} started"),
                attributes=key_values(values),
                trace_id=self._trace(span.interval),
                span_id=span_id,
            )
        )

    def _add_log(self, record: dict[str, Any], output: OtlpMessages) -> None:
        event = str(record["event"])
        span_id = str(record["span_id"]) if record.get("span_id") else None
        span = self._spans.get(span_id) if span_id else None
        if span is not None and span_id is not None and event == "error":
            message = f"{record.get('error_type')}: {record.get('error_message')}"
            self._spans[span_id] = span._replace(error=message[:1_000])
        interval = span.interval if span else self._interval
        root = root_span_id(self._run_id, self._attempt, interval)
        severity = _severity(record)
        time_ns = nanoseconds(record.get("time"))
        name = str(record.get("name")) if event == "event" else f"tachograph.{event}"
        output.logs.append(
            LogRecord(
                time_unix_nano=time_ns,
                observed_time_unix_nano=time_ns,
                severity_number=severity,
                severity_text=SeverityNumber.Name(severity).removeprefix("SEVERITY_NUMBER_"),
                event_name=utf8(name),
                body=any_value(_body(record, name)),
                attributes=key_values(_log_attributes(record)),
                trace_id=self._trace(interval),
                span_id=span_id_bytes(span_id) if span_id else root,
            )
        )

    def _add_gauges(self, record: dict[str, Any], output: OtlpMessages) -> None:
        """Add every number of a record. The step is a metric: as an attribute, each step would be a new time series."""
        values: dict[str, float] = scalar_metrics(record)
        if type(record.get("global_step")) is int:
            values[_STEP_METRIC] = record["global_step"]
        time_ns = nanoseconds(record.get("time"))
        for name, value in values.items():
            metric = output.metrics.get(("gauge", name))
            if metric is None:
                metric = output.metrics["gauge", name] = Metric(name=utf8(name), gauge=Gauge())
            # Always a float: a metric that is 1 now and 0.5 later must not change its type.
            metric.gauge.data_points.append(NumberDataPoint(time_unix_nano=time_ns, as_double=double(value)))


def _attributes(record: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span, of its start and of its stop."""
    sections = (record.get(name) for name in ("start_attributes", "stop_attributes", "attributes"))
    return {key: value for section in sections if isinstance(section, dict) for key, value in section.items()}


def _severity(record: dict[str, Any]) -> Any:
    event = record["event"]
    if event == "alert" and record.get("status") != "resolved":
        return _ALERT_SEVERITIES.get(str(record.get("severity")), SeverityNumber.SEVERITY_NUMBER_WARN)
    if event == "error":
        is_fatal = record.get("fatal") is True
        return SeverityNumber.SEVERITY_NUMBER_FATAL if is_fatal else SeverityNumber.SEVERITY_NUMBER_ERROR
    if event == "end" and str(record.get("status")) in _FAILURES:
        return SeverityNumber.SEVERITY_NUMBER_ERROR
    if event == "telemetry_error":
        return SeverityNumber.SEVERITY_NUMBER_WARN
    return SeverityNumber.SEVERITY_NUMBER_INFO


def _body(record: dict[str, Any], name: str) -> str:
    """Return a line for people."""
    event = record["event"]
    if event == "alert":
        return " ".join(str(record[field]) for field in ("title", "message") if record.get(field)) or name
    if event == "error":
        return f"{record.get('error_type')}: {record.get('error_message')}"
    if event == "telemetry_error":
        return str(record.get("reason") or name)
    if event == "end":
        return f"the run {record.get('status', 'ended')}"
    return name


def _log_attributes(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record: fields of an event under their own names, all others below `tachograph.`."""
    event = record["event"]
    values: dict[str, Any] = {}
    for field, value in record.items():
        if field in RESERVED_FIELDS or field == "span_id":
            continue
        if field == "global_step":
            values["tachograph.global_step"] = value
        elif event == "error" and field in _EXCEPTION_FIELDS:
            values[_EXCEPTION_FIELDS[field]] = value
        elif event != "event":
            values[f"tachograph.{event}.{field}"] = value
        elif field != "name":
            values[field] = value
    return values


def _add_histogram(record: dict[str, Any], output: OtlpMessages) -> bool:
    """Add a histogram; return whether the record has a valid one."""
    counts, edges = record.get("counts"), record.get("edges")
    if not (isinstance(counts, list) and isinstance(edges, list) and counts and len(edges) == len(counts) + 1):
        return False
    if any(type(value) not in (int, float) or not math.isfinite(double(value)) for value in (*counts, *edges)):
        return False
    if min(counts) < 0 or sum(counts) > MAX_INT or any(low >= high for low, high in itertools.pairwise(edges)):
        return False
    # OTLP's first and last bucket have no limit. Nothing was counted outside the edges.
    buckets = [0, *(round(count) for count in counts), 0]
    point = HistogramDataPoint(
        time_unix_nano=nanoseconds(record.get("time")),
        count=sum(buckets),
        bucket_counts=buckets,
        explicit_bounds=[double(edge) for edge in edges],
    )
    name = str(record.get("tag"))
    metric = output.metrics.get(("histogram", name))
    if metric is None:
        # Each one stands for itself and does not include the earlier ones.
        histogram = Histogram(aggregation_temporality=AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA)
        metric = output.metrics["histogram", name] = Metric(name=utf8(name), histogram=histogram)
    metric.histogram.data_points.append(point)
    return True
