"""`OTelExporter`: One Logger's spans and events as OpenTelemetry spans.

OpenTelemetry has a span only when it ends, and One Logger's exporter has the signal of spans only. So every event,
among them the start and the stop of a span, is also sent at once as a span without duration: a child of its span with
the name `<event>_event_for_<span>`, for errors `error_for_<span>`.

A trace is a root span with everything below it. It has the id of the root span, which starts with the id of the run;
ids are the same if a record is exported again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event as OTelEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from tachograph._base.guard import faults
from tachograph._base.http import DeliveryError
from tachograph._base.version import __version__
from tachograph.bridges.otlp import (
    OtlpOptions,
    OtlpTarget,
    RefusedError,
    Transport,
    connect,
    derived_id,
    resolve_targets,
)
from tachograph.exceptions import ConfigError
from tachograph.one_logger._error_events import ErrorEvent, TelemetryDataError
from tachograph.one_logger._exporter import BaseExporter, ExportError
from tachograph.spans import Event, Span

__all__ = ["OTelExporter"]

_SCOPE = InstrumentationScope("one_logger", __version__)
_MAX_INT = 2**63 - 1


class OTelExporter(BaseExporter):
    """Exports spans and events as OpenTelemetry spans.

    Args:
        otel_span_exporter: sends the spans. You own it: call its `shutdown` when you no longer need it. Without one,
            spans are sent over OTLP with the options below, the same as for the sink `otlp`.
        endpoint: the base address of the receiver; the default comes from `OTEL_EXPORTER_OTLP_ENDPOINT`.
        protocol: `http/protobuf` or `grpc`.
        headers: headers of each request.
        timeout: seconds that a request may take.
        compression: `none` or `gzip`.
        insecure: whether gRPC is not encrypted, for an endpoint without `http://` or `https://`.
        service_name: the attribute `service.name`; the default comes from `OTEL_SERVICE_NAME`.

    Raises:
        ConfigError: if an option is invalid.
    """

    def __init__(
        self,
        otel_span_exporter: SpanExporter | None = None,
        *,
        endpoint: str | None = None,
        protocol: str | None = None,
        headers: Mapping[str, str] | str | None = None,
        timeout: float | None = None,
        compression: str | None = None,
        insecure: bool | None = None,
        service_name: str | None = None,
    ) -> None:
        super().__init__()
        options = OtlpOptions(endpoint, protocol, headers, timeout, compression, insecure)
        self._exporter = otel_span_exporter
        self._target: OtlpTarget | None = None
        self._transport: Transport | None = None
        if otel_span_exporter is None:
            (self._target,) = resolve_targets(options, ["traces"])
        elif not isinstance(otel_span_exporter, SpanExporter):
            raise ConfigError(
                f"otel_span_exporter must be a SpanExporter of OpenTelemetry, got {type(otel_span_exporter).__name__}"
            )
        elif options != OtlpOptions():
            raise ConfigError("set either otel_span_exporter or the options of a connection, not both")
        resource = OTELResourceDetector().detect()
        name = service_name or resource.attributes.get(SERVICE_NAME) or "tachograph"
        self._resource = resource.merge(Resource({SERVICE_NAME: name}))

    def initialize(self) -> None:
        """Prepare the connection.

        Raises:
            ExportError: if its certificates cannot be used.
        """
        if self._target is not None:
            try:
                self._transport = connect(self._target)
            except faults(OSError, ValueError) as error:
                raise ExportError(f"a certificate or key cannot be used: {error}") from error
        super().initialize()

    def export_start(self, span: Span) -> None:
        """Announce a span."""
        self._send([self._event_span(span.start_event, span)])

    def export_stop(self, span: Span) -> None:
        """Export a span, and the event of its stop."""
        stop = span.stop_event
        if stop is None or span.start_s is None or span.stop_s is None:
            raise ExportError(f"span {span.name_str!r} has not stopped")
        events = [
            OTelEvent(event.name_str, _clean(event.attributes.to_json()), _nanoseconds(event)) for event in span.events
        ]
        attributes = span.attributes.to_json()
        otel_span = ReadableSpan(
            span.name_str,
            _context(span, span.id.int),
            _context(span.parent_span, span.parent_span.id.int) if span.parent_span else None,
            self._resource,
            _clean({**attributes, "one_logger_span_id": str(span.id)}),
            events,
            status=Status(StatusCode.ERROR if attributes.get("status") == "error" else StatusCode.UNSET),
            start_time=int(span.wall_s(span.start_s) * 1e9),
            end_time=int(span.wall_s(span.stop_s) * 1e9),
            instrumentation_scope=_SCOPE,
        )
        self._send([otel_span, self._event_span(stop, span)])

    def export_event(self, event: Event, span: Span) -> None:
        """Export an event."""
        self._send([self._event_span(event, span)])

    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Export an error of the training code."""
        self._send([self._event_span(event, span, name=f"error_for_{span.name_str}", code=StatusCode.ERROR)])

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Export a fault of telemetry itself, in a trace of its own."""
        self._send([self._event_span(error, None, name="span_for_telemetry_data_error", code=StatusCode.ERROR)])

    def close(self) -> None:
        """Close the connection, or flush the exporter that was given."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.close()
        if self._exporter is not None and self.ready:
            self._exporter.force_flush()
        super().close()

    def _event_span(
        self, event: Event, span: Span | None, name: str = "", code: StatusCode = StatusCode.UNSET
    ) -> ReadableSpan:
        """Return a span without duration for an event."""
        time_ns = _nanoseconds(event)
        attributes = event.attributes.to_json()
        identity = derived_id(span.id if span else "", event.name_str, time_ns, sorted(attributes.items(), key=str))
        own_id = int.from_bytes(identity, "big")
        if span is not None:
            attributes["one_logger_span_id"] = str(span.id)
        return ReadableSpan(
            name or f"{event.name_str}_event_for_{span.name_str if span else 'run'}",
            _context(span, own_id),
            _context(span, span.id.int) if span else None,
            self._resource,
            _clean(attributes),
            status=Status(code),
            start_time=time_ns,
            end_time=time_ns,
            instrumentation_scope=_SCOPE,
        )

    def _send(self, spans: Sequence[ReadableSpan]) -> None:
        self._check_state()
        if self._exporter is not None:
            result = self._exporter.export(spans)
            if result is not SpanExportResult.SUCCESS:
                raise ExportError(f"{type(self._exporter).__name__} could not export {spans[0].name!r}")
            return
        assert self._transport is not None  # noqa: S101 - ready
        try:
            rejection = self._transport.send(encode_spans(spans))
        except RefusedError as error:
            raise ExportError(str(error), may_retry=False) from None
        except DeliveryError as error:
            raise ExportError(str(error)) from None
        if rejection.num_items:
            reason = f"the receiver rejected {rejection.num_items} of {len(spans)} spans: {rejection.reason}"
            raise ExportError(reason, may_retry=False)


def _context(span: Span | None, span_id: int) -> SpanContext:
    """Return a context in the trace of a span; in a trace of its own without one."""
    while span is not None and span.parent_span is not None:
        span = span.parent_span
    trace_id = span.id.int if span is not None else span_id << 64 | span_id
    return SpanContext(trace_id, span_id & (2**64 - 1) or 1, is_remote=False, trace_flags=TraceFlags(1))


def _nanoseconds(event: Event) -> int:
    return int(event.timestamp.seconds_since_epoch * 1e9)


def _clean(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that OpenTelemetry accepts as attributes; all others become JSON."""
    return {
        name: value if _is_attribute(value) else json.dumps(value, default=str)
        for name, value in values.items()
        if value is not None
    }


def _is_attribute(value: Any) -> bool:
    if isinstance(value, list):
        return len({type(item) for item in value}) == 1 and all(_is_attribute(item) for item in value)
    return isinstance(value, (bool, float, str)) or (isinstance(value, int) and -_MAX_INT <= value <= _MAX_INT)
