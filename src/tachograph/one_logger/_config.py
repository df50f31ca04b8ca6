"""One Logger's configuration objects."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.spans import ApplicationType, CheckPointStrategy
from tachograph.spans._parameters import ParameterSource

__all__ = [
    "LoggerConfig",
    "OneLoggerConfig",
    "OneLoggerErrorHandlingStrategy",
    "TrainingTelemetryConfig",
]


class OneLoggerErrorHandlingStrategy(enum.Enum):
    """How a fault of telemetry itself is handled."""

    PROPAGATE_EXCEPTIONS = "propagate_exceptions"
    DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR = "disable_quietly_and_report_metric_error"


class _Config:
    """Named values. A field ``x_or_fn`` is a value or a function that returns it; read the value as ``x``."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **values: Any) -> None:
        fields = (*self.REQUIRED, *self.DEFAULTS)
        for name in values:
            if name not in fields:
                raise ConfigError(f"{type(self).__name__} has no field {name!r}{did_you_mean(name, fields)}")
        missing = [name for name in self.REQUIRED if values.get(name) is None]
        if missing:
            raise ConfigError(f"{type(self).__name__} needs {', '.join(missing)}")
        self._given = frozenset(values)
        for name in fields:
            setattr(self, name, values.get(name, self.DEFAULTS.get(name)))
        self.check()

    def check(self) -> None:
        """Raise if a value is invalid."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that were given."""
        return {name: getattr(self, name) for name in (*self.REQUIRED, *self.DEFAULTS) if name in self._given}

    def update(self, **values: Any) -> None:
        """Set fields after construction."""
        self.__dict__.update(values)
        self._given |= set(values)

    def given(self, name: str) -> bool:
        """Return whether a field was given."""
        return name in self._given

    def __getattr__(self, name: str) -> Any:
        """Return the current value of ``name_or_fn``."""
        key = f"{name}_or_fn"
        if name.startswith("_") or key not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        value = self.__dict__[key]
        return value() if callable(value) else value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"


class LoggerConfig(_Config):
    """The handling of Tachograph's own log lines. Files are written only if their paths are given."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "log_level": "INFO",
        "log_format": "%(name)s - %(levelname)s - %(message)s",
        "log_file_path_for_info": None,
        "log_file_path_for_err": None,
    }

    def check(self) -> None:
        """Raise if the level is unknown."""
        levels = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
        if self.log_level not in levels:
            raise ConfigError(f"log_level={self.log_level!r}: expected one of {', '.join(levels)}")


class TrainingTelemetryConfig(_Config):
    """The parameters of a training job; `tachograph.set_training_config` sets the same values one by one."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("perf_tag_or_fn", "global_batch_size_or_fn")
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "world_size_or_fn": None,
        "is_train_iterations_enabled_or_fn": True,
        "is_validation_iterations_enabled_or_fn": True,
        "is_test_iterations_enabled_or_fn": True,
        "is_save_checkpoint_enabled_or_fn": True,
        "custom_metadata": None,
        "micro_batch_size_or_fn": None,
        "seq_length_or_fn": None,
        "flops_per_sample_or_fn": None,
        "peak_tflops_per_gpu_or_fn": None,
        "train_iterations_target_or_fn": None,
        "train_samples_target_or_fn": None,
        "log_every_n_train_iterations": 50,
        "is_log_throughput_enabled_or_fn": False,
        "save_checkpoint_strategy": CheckPointStrategy.SYNC,
    }

    app_type = ApplicationType.TRAINING

    def check(self) -> None:
        """Raise if a value, other than a function, is invalid."""
        for name in ("global_batch_size_or_fn", "log_every_n_train_iterations"):
            if getattr(self, name) is None:
                raise ConfigError(f"{name}=None: expected an integer above 0")
        ParameterSource({}).update(self.parameters())  # raises if a value is invalid
        if self.is_log_throughput_enabled_or_fn is True and self.flops_per_sample_or_fn is None:
            raise ConfigError(
                "flops_per_sample_or_fn=None: throughput requires the FLOPs per sample; "
                "set them or remove is_log_throughput_enabled_or_fn"
            )

    def parameters(self) -> dict[str, Any]:
        """Return them as arguments for `TrainingRecorder.configure`."""
        values = {name: getattr(self, name) for name in (*self.REQUIRED, *self.DEFAULTS)}
        if not self.given("is_log_throughput_enabled_or_fn"):
            del values["is_log_throughput_enabled_or_fn"]  # then it is on if the FLOPs are known
        return values


class OneLoggerConfig(_Config):
    """The facts known when a job starts."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("application_name", "session_tag_or_fn", "world_size_or_fn")
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "is_baseline_run_or_fn": False,
        "custom_metadata": None,
        "error_handling_strategy": OneLoggerErrorHandlingStrategy.DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR,
        "enable_for_current_rank": True,
        "logger_config": None,
        "summary_data_schema_version": "1.0.0",
        "telemetry_config": None,
    }

    def check(self) -> None:
        """Raise if a value, other than a function, is invalid."""
        if not isinstance(self.application_name, str) or not self.application_name.strip():
            raise ConfigError(f"application_name={self.application_name!r}: expected a name")
        ParameterSource({}).update({"world_size_or_fn": self.world_size_or_fn})  # raises if it is invalid
        if not isinstance(self.error_handling_strategy, OneLoggerErrorHandlingStrategy):
            raise ConfigError(
                f"error_handling_strategy={self.error_handling_strategy!r}: "
                f"expected one of {', '.join(str(choice) for choice in OneLoggerErrorHandlingStrategy)}"
            )
        if any(not str(key).strip() for key in self.custom_metadata or ()):
            raise ConfigError("custom_metadata: a key is empty")
        if self.logger_config is None:
            self.__dict__["logger_config"] = LoggerConfig()

    @property
    def propagate_exceptions(self) -> bool:
        """Whether faults of telemetry propagate."""
        return self.error_handling_strategy is OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS
