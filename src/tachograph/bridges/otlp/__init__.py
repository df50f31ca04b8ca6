"""OTLP: spans, metrics and events of a run, for OpenTelemetry collectors and backends.

The names are imported when they are first used: the options are checked without gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.bridges.otlp._ids import derived_id
    from tachograph.bridges.otlp._transport import RefusedError, Transport, connect
    from tachograph.bridges.otlp.options import OtlpOptions, OtlpTarget, resolve_targets
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

_MODULES = {
    "OtlpOptions": "options",
    "OtlpSink": "sink",
    "OtlpTarget": "options",
    "RefusedError": "_transport",
    "Transport": "_transport",
    "connect": "_transport",
    "derived_id": "_ids",
    "resolve_targets": "options",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
