"""Spans, events and metrics of a training job: where its time goes.

The training thread appends spans to the run's buffer; the writer thread aggregates them into records, windows and
metrics. `README.md` draws the path of a span. Import order: names, attributes, events, `Span`, aggregator,
`SpanRecorder`, `SpanScope`, context managers. The names are One Logger's; its own API is `tachograph.one_logger`.
"""

import warnings
from importlib import import_module
from typing import Any

from tachograph.spans._aggregator import overlap_text
from tachograph.spans._attributes import Attribute, Attributes, AttributeValue, attributes_of
from tachograph.spans._context_managers import (
    application,
    backward,
    checkpoint_finalization,
    checkpoint_load,
    checkpoint_save,
    checkpoint_scope,
    data_loading,
    dataloader_init,
    distributed_init,
    forward,
    model_init,
    optimizer_init,
    optimizer_update,
    set_training_config,
    step_of,
    stop_application,
    testing_iteration,
    testing_loop,
    timed_span,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    zero_grad,
)
from tachograph.spans._current import get_recorder, recorder_of, set_run_factory
from tachograph.spans._event import EVENT_FIELDS, Event, EventName
from tachograph.spans._filter import ExportCustomizationMode, SpanFilter
from tachograph.spans._names import (
    DEFAULT_SPANS_EXPORT_BLACKLIST,
    CheckPointStrategy,
    NameEnum,
    StandardEventAttributeName,
    StandardEventName,
    StandardSpanAttributeName,
    StandardSpanName,
    StandardTrainingJobEventName,
    StandardTrainingJobSpanName,
    text_of,
)
from tachograph.spans._parameters import ParameterSource, metadata_texts
from tachograph.spans._profiling import profile_block, profile_function
from tachograph.spans._profiling_config import ProfilingConfig, configure_profiling, profiling_config
from tachograph.spans._recorder import SpanRecorder
from tachograph.spans._scope import SpanOptions, SpanScope
from tachograph.spans._span import DISABLED_SPAN, ObservedIteration, Span, SpanName, current_span
from tachograph.spans._timestamp import TracingTimestamp

__all__ = [
    "Attribute",
    "AttributeValue",
    "Attributes",
    "CheckPointStrategy",
    "DEFAULT_SPANS_EXPORT_BLACKLIST",
    "DISABLED_SPAN",
    "EVENT_FIELDS",
    "Event",
    "EventName",
    "ExportCustomizationMode",
    "NameEnum",
    "ObservedIteration",
    "ParameterSource",
    "ProfilingConfig",
    "Span",
    "SpanFilter",
    "SpanName",
    "SpanOptions",
    "SpanRecorder",
    "SpanScope",
    "StandardEventAttributeName",
    "StandardEventName",
    "StandardSpanAttributeName",
    "StandardSpanName",
    "StandardTrainingJobEventName",
    "StandardTrainingJobSpanName",
    "TracingTimestamp",
    "application",
    "attributes_of",
    "backward",
    "checkpoint_finalization",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_scope",
    "configure_profiling",
    "current_span",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "forward",
    "get_recorder",
    "metadata_texts",
    "model_init",
    "optimizer_init",
    "optimizer_update",
    "overlap_text",
    "profile_block",
    "profile_function",
    "profiling_config",
    "recorder_of",
    "set_run_factory",
    "set_training_config",
    "step_of",
    "stop_application",
    "testing_iteration",
    "testing_loop",
    "text_of",
    "timed_span",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "zero_grad",
]

# Names that moved to `tachograph.one_logger` in 0.2.0, with its `on_*` callbacks. They work here until 0.3.0.
_MOVED = frozenset(
    {
        "ApplicationType",
        "CheckPointType",
        "CheckpointSaveSpanAttributes",
        "ErrorEvent",
        "NVTXColor",
        "OneLoggerInitializationAttributes",
        "SaveCheckpointSuccessEventAttributes",
        "SyncCheckpointMetricsUpdateAttributes",
        "TelemetryDataError",
        "TestingMetricsUpdateAttributes",
        "Timer",
        "TrainingLoopAttributes",
        "TrainingMetricsUpdateAttributes",
        "TrainingRecorder",
        "TrainingTelemetryAttributes",
        "ValidationMetricsUpdateAttributes",
    }
)


def __getattr__(name: str) -> Any:
    if name in _MOVED or name.startswith("on_"):
        value = getattr(import_module("tachograph.one_logger"), name, None)
        if value is not None:
            warnings.warn(
                f"tachograph.spans.{name} is now tachograph.one_logger.{name}", DeprecationWarning, stacklevel=2
            )
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
