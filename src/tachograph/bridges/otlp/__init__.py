"""OTLP: spans, metrics and events of a run, for OpenTelemetry collectors and backends."""

from tachograph.bridges.otlp._ids import derived_id
from tachograph.bridges.otlp._options import OtlpOptions, OtlpTarget, resolve_targets
from tachograph.bridges.otlp._transport import RefusedError, Transport, connect
from tachograph.bridges.otlp.sink import OtlpSink

__all__ = [
    "OtlpOptions",
    "OtlpSink",
    "OtlpTarget",
    "RefusedError",
    "Transport",
    "connect",
    "derived_id",
    "resolve_targets",
]
