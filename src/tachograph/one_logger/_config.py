"""One Logger's configuration objects. They have the methods of pydantic models that configs are used with."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.one_logger._names import ApplicationType
from tachograph.spans import CheckPointStrategy, ParameterSource

__all__ = [
    "LoggerConfig",
    "OneLoggerConfig",
    "OneLoggerErrorHandlingStrategy",
    "TelemetryConfig",
    "TrainingTelemetryConfig",
]

_Self = TypeVar("_Self", bound="_Config")


class OneLoggerErrorHandlingStrategy(enum.Enum):
    """How faults of telemetry itself and mistakes in its use are handled: raised, or recorded and logged."""

    PROPAGATE_EXCEPTIONS = "propagate_exceptions"
    DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR = "disable_quietly_and_report_metric_error"


@runtime_checkable
class TelemetryConfig(Protocol):
    """The part of a telemetry config that does not depend on the kind of the application."""

    @property
    def is_train_iterations_enabled(self) -> bool:
        """Whether the metrics of training iterations are recorded."""
        ...

    @property
    def is_validation_iterations_enabled(self) -> bool:
        """Whether the metrics of validation iterations are recorded."""
        ...

    @property
    def is_test_iterations_enabled(self) -> bool:
        """Whether the metrics of testing iterations are recorded."""
        ...

    @property
    def is_save_checkpoint_enabled(self) -> bool:
        """Whether the metrics of checkpoints are recorded."""
        ...

    @property
    def app_type(self) -> ApplicationType:
        """The kind of the application."""
        ...

    @property
    def custom_metadata(self) -> dict[str, Any] | None:
        """Values of your own, by name."""
        ...


class _Config:
    """Named values. A field ``x_or_fn`` is a value or a function that returns it; read the value as ``x``."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    IGNORED: ClassVar[frozenset[str]] = frozenset()
    """Fields that some versions of One Logger have and that have no effect here."""
    FIELDS: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.FIELDS = (*cls.REQUIRED, *cls.DEFAULTS)
        for field in cls.FIELDS:
            if field.endswith("_or_fn"):
                setattr(cls, field.removesuffix("_or_fn"), property(_value_reader(field)))

    def __init__(self, **values: Any) -> None:
        values = {name: value for name, value in values.items() if name not in self.IGNORED}
        for name in values:
            self._check_name(name)
        missing = [name for name in self.REQUIRED if values.get(name) is None]
        if missing:
            raise ConfigError(f"{type(self).__name__} needs {', '.join(missing)}")
        self.__dict__["_set_fields"] = frozenset(values)
        for name in self.FIELDS:
            self.__dict__[name] = values.get(name, self.DEFAULTS.get(name))
        self.check()

    def _check_name(self, name: str) -> None:
        if name not in self.FIELDS:
            raise ConfigError(f"{type(self).__name__} has no field {name!r}{did_you_mean(name, self.FIELDS)}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field after construction."""
        self._check_name(name)
        self.__dict__[name] = value
        self.__dict__["_set_fields"] |= {name}

    def check(self) -> None:
        """Raise if a value is invalid."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that were given."""
        return {name: getattr(self, name) for name in self.FIELDS if name in self._set_fields}

    def is_set(self, name: str) -> bool:
        """Return whether a field was given."""
        return name in self._set_fields

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    # Pydantic's names ------------------------------------------------------------------------------------------------

    @classmethod
    def model_validate(cls: type[_Self], obj: Mapping[str, Any]) -> _Self:
        """Return a config with the fields of a dict."""
        return cls(**obj)

    @property
    def model_fields_set(self) -> set[str]:
        """The names of the fields that were given."""
        return set(self._set_fields)

    def model_dump(self, *, exclude_unset: bool = False, exclude_none: bool = False) -> dict[str, Any]:
        """Return the fields as a dict, and configs in it as dicts, too.

        Args:
            exclude_unset: leave out fields that were not given.
            exclude_none: leave out fields without a value.
        """
        values = {}
        for name in self.FIELDS:
            value = getattr(self, name)
            if (exclude_unset and name not in self._set_fields) or (exclude_none and value is None):
                continue
            if isinstance(value, _Config):
                value = value.model_dump(exclude_unset=exclude_unset, exclude_none=exclude_none)
            values[name] = copy.copy(value) if isinstance(value, (dict, list)) else value
        return values

    def model_copy(self: _Self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> _Self:
        """Return a copy.

        Args:
            update: fields to change in the copy.
            deep: copy the values as well.
        """
        config = copy.copy(self)
        config.__dict__.update(copy.deepcopy(self.__dict__) if deep else self.__dict__)
        for name, value in (update or {}).items():
            setattr(config, name, value)
        return config

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    __hash__ = None  # type: ignore[assignment] # fields can change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"


def _may_be_positive(value: object) -> bool:
    """Return whether a value is a number above 0, or is checked later because it is something else."""
    return value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value > 0)


def _value_reader(field: str) -> Callable[[_Config], Any]:
    def read(config: _Config) -> Any:
        value = config.__dict__[field]
        return value() if callable(value) else value

    return read


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

    IGNORED: ClassVar[frozenset[str]] = frozenset({"app_type_or_fn"})

    app_type = ApplicationType.TRAINING

    def check(self) -> None:
        """Raise if a value, other than a function, is invalid."""
        for name in ("global_batch_size_or_fn", "log_every_n_train_iterations"):
            if not _may_be_positive(getattr(self, name)):
                raise ConfigError(
                    f"{name.removesuffix('_or_fn')} must be set to a positive value: {name}={getattr(self, name)!r}"
                )
        flops = self.flops_per_sample_or_fn
        if self.is_log_throughput_enabled_or_fn is True and not _may_be_positive(flops):
            raise ConfigError(
                "flops_per_sample must be set to a positive value when is_log_throughput_enabled is True: "
                f"flops_per_sample_or_fn={flops!r}; set it, or do not enable the throughput"
            )
        ParameterSource().update(self.parameters())  # raises if a value is invalid
        self.__dict__["save_checkpoint_strategy"] = CheckPointStrategy(self.save_checkpoint_strategy)

    def parameters(self) -> dict[str, Any]:
        """Return them as arguments for `SpanRecorder.configure`."""
        values = {name: getattr(self, name) for name in self.FIELDS}
        if not self.is_set("is_log_throughput_enabled_or_fn"):
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
            raise ConfigError(
                f"application_name cannot be empty or whitespace-only: application_name={self.application_name!r}"
            )
        if not _may_be_positive(self.world_size_or_fn):
            raise ConfigError(f"world_size must be set to a positive value: world_size_or_fn={self.world_size_or_fn!r}")
        ParameterSource().update({"world_size_or_fn": self.world_size_or_fn})  # raises if it is invalid
        try:  # a file has the text of it
            self.__dict__["error_handling_strategy"] = OneLoggerErrorHandlingStrategy(self.error_handling_strategy)
        except ValueError:
            raise ConfigError(
                f"error_handling_strategy={self.error_handling_strategy!r}: "
                f"expected one of {', '.join(str(choice) for choice in OneLoggerErrorHandlingStrategy)}"
            ) from None
        if any(not str(key).strip() for key in self.custom_metadata or ()):
            raise ConfigError("custom_metadata keys must be non-empty strings")
        logger_config = self.logger_config
        if isinstance(logger_config, Mapping):
            logger_config = LoggerConfig(**logger_config)
        if logger_config is None or isinstance(logger_config, LoggerConfig):
            self.__dict__["logger_config"] = self._with_level(logger_config or LoggerConfig())
        else:
            raise ConfigError(f"logger_config={logger_config!r:.80}: expected a LoggerConfig")

    def _with_level(self, logger_config: LoggerConfig) -> LoggerConfig:
        """Return a logging config: a disabled rank logs only critical errors, unless a level or a strategy is set."""
        is_silenced = not self.enable_for_current_rank and not self.is_set("error_handling_strategy")
        if is_silenced and not logger_config.is_set("log_level"):
            return logger_config.model_copy(update={"log_level": "CRITICAL"})
        return logger_config

    @property
    def propagate_exceptions(self) -> bool:
        """Whether faults of telemetry propagate."""
        return self.error_handling_strategy is OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS
