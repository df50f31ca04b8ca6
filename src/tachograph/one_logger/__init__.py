"""One Logger's public names, flat: code written for `nv_one_logger` works here after changing its imports.

The documented contract is kept and its known faults are fixed. Everything is also in the run's journal, where `tacho
show` and all other readers find it, in addition to the output of the configured exporters.
"""

from typing import TYPE_CHECKING, Any

from tachograph.exceptions import TachographError as OneLoggerError
from tachograph.one_logger._attribute_sets import (
    CheckpointSaveSpanAttributes,
    OneLoggerInitializationAttributes,
    SaveCheckpointSuccessEventAttributes,
    SyncCheckpointMetricsUpdateAttributes,
    TestingMetricsUpdateAttributes,
    TrainingLoopAttributes,
    TrainingMetricsUpdateAttributes,
    TrainingTelemetryAttributes,
    ValidationMetricsUpdateAttributes,
)
from tachograph.one_logger._callback_functions import (
    on_app_end,
    on_app_start,
    on_dataloader_init_end,
    on_dataloader_init_start,
    on_distributed_init_end,
    on_distributed_init_start,
    on_load_checkpoint_end,
    on_load_checkpoint_start,
    on_model_init_end,
    on_model_init_start,
    on_optimizer_init_end,
    on_optimizer_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    on_testing_end,
    on_testing_start,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    on_validation_end,
    on_validation_single_iteration_end,
    on_validation_single_iteration_start,
    on_validation_start,
)
from tachograph.one_logger._config import (
    LoggerConfig,
    OneLoggerConfig,
    OneLoggerErrorHandlingStrategy,
    TelemetryConfig,
    TrainingTelemetryConfig,
)
from tachograph.one_logger._error_events import ErrorEvent, TelemetryDataError
from tachograph.one_logger._export_config import ExporterConfig, ExporterConfigManager
from tachograph.one_logger._exporter import BaseExporter, Exporter, ExportError, UnreachableError
from tachograph.one_logger._json_exporters import BaseJsonExporter, FileExporter, LoggerExporter
from tachograph.one_logger._names import ApplicationType, CheckPointType, NVTXColor
from tachograph.one_logger._provider import OneLoggerProvider, TrainingTelemetryProvider
from tachograph.one_logger._recorder import DefaultRecorder, TrainingRecorder, get_recorder
from tachograph.one_logger._timer import Timer
from tachograph.one_logger._wandb_exporter import (
    Config,
    FlatMetricNamingStrategy,
    HierarchicalMetricNamingStrategy,
    MetricNamingStrategy,
    WandBExporterAsync,
    WandBExporterSync,
)
from tachograph.spans import (
    DEFAULT_SPANS_EXPORT_BLACKLIST,
    Attribute,
    Attributes,
    AttributeValue,
    CheckPointStrategy,
    Event,
    EventName,
    ExportCustomizationMode,
    Span,
    SpanName,
    StandardEventAttributeName,
    StandardEventName,
    StandardSpanAttributeName,
    StandardSpanName,
    StandardTrainingJobEventName,
    StandardTrainingJobSpanName,
    TracingTimestamp,
    application,
    backward,
    checkpoint_finalization,
    checkpoint_load,
    checkpoint_save,
    data_loading,
    dataloader_init,
    distributed_init,
    forward,
    model_init,
    optimizer_init,
    optimizer_update,
    testing_iteration,
    testing_loop,
    timed_span,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    zero_grad,
)

if TYPE_CHECKING:
    from tachograph.one_logger._lightning import TimeEventCallback as TimeEventCallback
    from tachograph.one_logger._lightning import hook_trainer_cls as hook_trainer_cls
    from tachograph.one_logger._otel_exporter import OTelExporter as OTelExporter

    OneLoggerPTLTrainer: Any

__all__ = [
    "ApplicationType",
    "Attribute",
    "AttributeValue",
    "Attributes",
    "BaseExporter",
    "BaseJsonExporter",
    "CheckPointStrategy",
    "CheckPointType",
    "CheckpointSaveSpanAttributes",
    "Config",
    "DEFAULT_SPANS_EXPORT_BLACKLIST",
    "DefaultRecorder",
    "ErrorEvent",
    "Event",
    "EventName",
    "ExportCustomizationMode",
    "ExportError",
    "Exporter",
    "ExporterConfig",
    "ExporterConfigManager",
    "FileExporter",
    "FlatMetricNamingStrategy",
    "HierarchicalMetricNamingStrategy",
    "LoggerConfig",
    "LoggerExporter",
    "MetricNamingStrategy",
    "NVTXColor",
    "OneLoggerConfig",
    "OneLoggerError",
    "OneLoggerErrorHandlingStrategy",
    "OneLoggerInitializationAttributes",
    "OneLoggerProvider",
    "SaveCheckpointSuccessEventAttributes",
    "Span",
    "SpanName",
    "StandardEventAttributeName",
    "StandardEventName",
    "StandardSpanAttributeName",
    "StandardSpanName",
    "StandardTrainingJobEventName",
    "StandardTrainingJobSpanName",
    "SyncCheckpointMetricsUpdateAttributes",
    "TelemetryConfig",
    "TelemetryDataError",
    "TestingMetricsUpdateAttributes",
    "Timer",
    "TracingTimestamp",
    "TrainingLoopAttributes",
    "TrainingMetricsUpdateAttributes",
    "TrainingRecorder",
    "TrainingTelemetryAttributes",
    "TrainingTelemetryConfig",
    "TrainingTelemetryProvider",
    "UnreachableError",
    "ValidationMetricsUpdateAttributes",
    "WandBExporterAsync",
    "WandBExporterSync",
    "application",
    "assert_that",
    "backward",
    "checkpoint_finalization",
    "checkpoint_load",
    "checkpoint_save",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "forward",
    "get_recorder",
    "model_init",
    "on_app_end",
    "on_app_start",
    "on_dataloader_init_end",
    "on_dataloader_init_start",
    "on_distributed_init_end",
    "on_distributed_init_start",
    "on_load_checkpoint_end",
    "on_load_checkpoint_start",
    "on_model_init_end",
    "on_model_init_start",
    "on_optimizer_init_end",
    "on_optimizer_init_start",
    "on_save_checkpoint_end",
    "on_save_checkpoint_start",
    "on_save_checkpoint_success",
    "on_testing_end",
    "on_testing_start",
    "on_train_end",
    "on_train_start",
    "on_training_single_iteration_end",
    "on_training_single_iteration_start",
    "on_validation_end",
    "on_validation_single_iteration_end",
    "on_validation_single_iteration_start",
    "on_validation_start",
    "optimizer_init",
    "optimizer_update",
    "testing_iteration",
    "testing_loop",
    "timed_span",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "zero_grad",
]


def assert_that(condition: object, message: str) -> None:
    """Raise an error with a message unless a condition is true."""
    if not condition:
        raise OneLoggerError(message)


def __getattr__(name: str) -> Any:
    """Import names that need other packages on first use; `__all__` lacks them, so `import *` does not need these."""
    if name in {"TimeEventCallback", "hook_trainer_cls", "OneLoggerPTLTrainer"}:
        from tachograph.one_logger import _lightning

        return _lightning.trainer_class() if name == "OneLoggerPTLTrainer" else getattr(_lightning, name)
    if name == "OTelExporter":
        try:
            from tachograph.one_logger._otel_exporter import OTelExporter
        except ImportError as error:
            raise ImportError(f"OTelExporter needs OpenTelemetry ({error}): pip install 'tachograph[otlp]'") from error
        return OTelExporter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
