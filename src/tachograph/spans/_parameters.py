"""The parameters of a training job: batch size, targets, FLOPs. Each may be set late, or be a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tachograph._base.typed import convert
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.spans._attribute_sets import TrainingTelemetryAttributes
from tachograph.spans._names import ApplicationType, CheckPointStrategy

__all__ = ["ParameterSource", "Parameters"]

_Count = Annotated[int, Meta(gt=0)]


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved values; None means unknown."""

    perf_tag: str | list[str] | None = None
    world_size: _Count = 1
    global_batch_size: _Count | None = None
    micro_batch_size: _Count | None = None
    seq_length: _Count | None = None
    flops_per_sample: Annotated[float, Meta(gt=0, lt=1e30)] | None = None
    peak_tflops_per_gpu: Annotated[float, Meta(gt=0, lt=1e30)] | None = None
    train_iterations_target: _Count | None = None
    train_samples_target: _Count | None = None
    log_every_n_train_iterations: _Count | None = None
    is_log_throughput_enabled: bool | None = None
    is_train_iterations_enabled: bool = True
    is_validation_iterations_enabled: bool = True
    is_test_iterations_enabled: bool = True
    is_save_checkpoint_enabled: bool = True
    save_checkpoint_strategy: CheckPointStrategy = CheckPointStrategy.SYNC
    custom_metadata: dict[str, Any] | None = None

    @property
    def flops_to_count(self) -> float | None:
        """FLOPs per sample; None if unknown or if throughput is disabled."""
        return None if self.is_log_throughput_enabled is False else self.flops_per_sample

    def to_attributes(self, log_every: int) -> TrainingTelemetryAttributes:
        """Return them as the attributes of an event."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values["checkpoint_strategy"] = values.pop("save_checkpoint_strategy").value
        values["log_every_n_train_iterations"] = self.log_every_n_train_iterations or log_every
        values["is_log_throughput_enabled"] = self.flops_to_count is not None
        flops = self.flops_per_sample
        values["flops_per_sample"] = int(flops) if flops is not None and flops.is_integer() else flops
        values["custom_metadata"] = self.custom_metadata or None
        values["app_type"] = ApplicationType.TRAINING.value
        return TrainingTelemetryAttributes.create(**values)


class ParameterSource:
    """The values and functions that were set; the last one set for a name wins."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._given: dict[str, Any] = dict(defaults)

    def update(self, values: Mapping[str, Any]) -> None:
        """Set values, each under its name or as ``<name>_or_fn``; None keeps the current value.

        Raises:
            ConfigError: for an unknown name or an invalid value.
        """
        named: dict[str, Any] = {}
        for key, value in values.items():
            name = key.removesuffix("_or_fn")
            if name not in Parameters.__struct_fields__:
                raise ConfigError(
                    f"unknown training parameter {key!r}{did_you_mean(name, Parameters.__struct_fields__)}"
                )
            if value is not None:
                named[name] = value if callable(value) else _checked(name, value, key)
        self._given.update(named)

    def resolve(self, report_misuse: Callable[[str], None]) -> Parameters:
        """Return the current values; a function that raises or returns an invalid value is reported and ignored."""
        values: dict[str, Any] = {}
        for name, given in self._given.items():
            try:
                value = given() if callable(given) else given
                if value is not None:
                    values[name] = _checked(name, value) if callable(given) else value
            except Exception as error:  # noqa: BLE001 - the user's function
                report_misuse(f"{name} could not be resolved: {type(error).__name__}: {error}")
        return Parameters(**values)


def _checked(name: str, value: Any, key: str | None = None) -> Any:
    key = key or name
    field = next(field for field in msgspec.structs.fields(Parameters) if field.name == name)
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()  # numpy counts
    if isinstance(value, bool) and field.type is not bool and "bool" not in str(field.type):
        raise ConfigError(f"{key}={value!r}: expected a number")
    if isinstance(value, float) and value.is_integer() and "int" in str(field.type):
        value = int(value)
    try:
        return convert(value, field.type)
    except msgspec.ValidationError as error:
        wanted = str(error).partition(", got ")[0].replace(" | null", "")
        if name == "save_checkpoint_strategy":
            wanted = f"one of {', '.join(CheckPointStrategy)}"
        raise ConfigError(f"{key}={value!r}: {wanted[0].lower()}{wanted[1:]}") from None
