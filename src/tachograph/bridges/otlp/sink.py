"""`OtlpSink`: sends a run to an OTLP receiver.

A block of records becomes one request per signal. If one of them fails, the driver repeats the block, which may have
grown meanwhile. `_num_sent` has the number of records at its start that each signal has had, so that a signal that was
accepted is not sent again. The encoder advances only when all signals of a block were accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics, ScopeMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.resources import OTELResourceDetector

from tachograph._base.version import __version__
from tachograph.bridges.otlp._encoder import OtlpEncoder, OtlpMessages
from tachograph.bridges.otlp._transport import RefusedError, Rejection, Transport, connect
from tachograph.bridges.otlp.options import OtlpOptions, OtlpTarget, check_service_name, resolve_targets
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.records import METRIC_KINDS

__all__ = ["OtlpSink"]

_SCOPE = InstrumentationScope(name="tachograph", version=__version__)
_ITEMS = {"traces": "spans", "logs": "log records", "metrics": "data points"}


class OtlpSink:
    """Sends a run over OTLP. The environment variables `OTEL_EXPORTER_OTLP_…` are the defaults.

    Args:
        endpoint: the base address of the receiver, such as `http://localhost:4318`.
        protocol: `http/protobuf` or `grpc`.
        headers: headers of each request, as a mapping or as `name=value,…`.
        timeout: seconds that a request may take.
        compression: `none` or `gzip`.
        insecure: whether gRPC is not encrypted, for an endpoint without `http://` or `https://`.
        service_name: the attribute `service.name`.
        signals: the signals to send: some of `traces`, `logs`, `metrics`.
    """

    name = "otlp"

    def __init__(
        self,
        endpoint: str | None = None,
        protocol: str | None = None,
        headers: Mapping[str, str] | str | None = None,
        timeout: float | None = None,
        compression: str | None = None,
        insecure: bool | None = None,
        service_name: str | None = None,
        signals: list[str] | None = None,
    ) -> None:
        check_service_name(service_name)
        options = OtlpOptions(endpoint, protocol, headers, timeout, compression, insecure)
        self._targets: list[OtlpTarget] = resolve_targets(options, signals)
        environment = dict(OTELResourceDetector().detect().attributes)
        self._attributes = {"service.name": "tachograph", **environment}
        if service_name is not None:
            self._attributes["service.name"] = service_name
        self.on_rejected: Callable[[int, str, str], None] = lambda num_items, items, reason: None
        self._transports: dict[str, Transport] = {}
        self._connect()  # here too, because wrong certificates are a mistake in the setup
        self._run_id = ""
        self._encoder: OtlpEncoder | None = None
        self._num_sent: dict[str, int] = {}

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Connect again: a channel that failed would wait before it does."""
        self._run_id = str(start.get("run_id", folder.name))
        self.close()
        self._connect()

    def _connect(self) -> None:
        try:
            self._transports = {target.signal: connect(target) for target in self._targets}
        except (OSError, ValueError) as error:
            raise ConfigError(f"a certificate or key cannot be used: {error}") from error

    def replay(self, records: Iterable[dict[str, Any]]) -> None:
        """Restore the attempt, the checkpoint interval and the open spans from records that were sent before."""
        encoder = OtlpEncoder(self._run_id, self._attributes)
        for record in records:
            if record["event"] in METRIC_KINDS:  # most records; they have no effect on later ones
                encoder.skip(record)
            else:
                encoder.encode(record, encoder.new_output())
        self._encoder = encoder

    def write(self, records: list[dict[str, Any]]) -> None:
        """Send the records, one request per signal."""
        assert self._encoder is not None  # noqa: S101 - `replay` comes first
        encoder = self._encoder.copy()
        outputs = _encode(encoder, records, {0, *self._num_sent.values()})
        for signal, transport in self._transports.items():
            new = [output for first, output in outputs if first >= self._num_sent.get(signal, 0)]
            num_items, request = _REQUESTS[signal](new)
            if num_items:
                self._send(signal, transport, request, num_items)
            self._num_sent[signal] = len(records)
        self._encoder, self._num_sent = encoder, {}

    def _send(self, signal: str, transport: Transport, request: Any, num_items: int) -> None:
        try:
            rejection = transport.send(request)
        except RefusedError as error:
            rejection = Rejection(num_items, str(error))
        if rejection.num_items:
            self.on_rejected(rejection.num_items, _ITEMS[signal], rejection.reason)

    def close(self) -> None:
        """Close the connections."""
        transports, self._transports = self._transports, {}
        for transport in transports.values():
            transport.close()


def _encode(encoder: OtlpEncoder, records: list[dict[str, Any]], cuts: set[int]) -> list[tuple[int, OtlpMessages]]:
    """Return the messages of the records, each with the index of its first record; a new one starts at each cut."""
    output = encoder.new_output()
    outputs: list[tuple[int, OtlpMessages]] = []
    for index, record in enumerate(records):
        if index in cuts:
            output = encoder.new_output()
            outputs.append((index, output))
        following = encoder.encode(record, output)
        if following is not output:
            output = following
            outputs.append((index, output))
    return outputs


def _trace_request(outputs: list[OtlpMessages]) -> tuple[int, ExportTraceServiceRequest]:
    resource_spans = [
        ResourceSpans(resource=output.resource, scope_spans=[ScopeSpans(scope=_SCOPE, spans=output.spans)])
        for output in outputs
        if output.spans
    ]
    return sum(len(output.spans) for output in outputs), ExportTraceServiceRequest(resource_spans=resource_spans)


def _logs_request(outputs: list[OtlpMessages]) -> tuple[int, ExportLogsServiceRequest]:
    resource_logs = [
        ResourceLogs(resource=output.resource, scope_logs=[ScopeLogs(scope=_SCOPE, log_records=output.logs)])
        for output in outputs
        if output.logs
    ]
    return sum(len(output.logs) for output in outputs), ExportLogsServiceRequest(resource_logs=resource_logs)


def _metrics_request(outputs: list[OtlpMessages]) -> tuple[int, ExportMetricsServiceRequest]:
    resource_metrics = [
        ResourceMetrics(
            resource=output.resource,
            scope_metrics=[ScopeMetrics(scope=_SCOPE, metrics=output.metrics.values())],
        )
        for output in outputs
        if output.metrics
    ]
    num_points = sum(
        len(metric.gauge.data_points) + len(metric.histogram.data_points)
        for output in outputs
        for metric in output.metrics.values()
    )
    return num_points, ExportMetricsServiceRequest(resource_metrics=resource_metrics)


_REQUESTS: dict[str, Callable[[list[OtlpMessages]], tuple[int, Any]]] = {
    "traces": _trace_request,
    "logs": _logs_request,
    "metrics": _metrics_request,
}
