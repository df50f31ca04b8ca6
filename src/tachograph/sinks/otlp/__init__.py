"""OTLP: spans, metrics and events of a run, for OpenTelemetry collectors and backends.

`_options` resolves options and environment, `_ids` derives trace and span ids, `_encoder` turns records into messages,
`_transport` sends them, and `_sink` puts these together.
"""

from tachograph.sinks.otlp._sink import OtlpSink

__all__ = ["OtlpSink"]
