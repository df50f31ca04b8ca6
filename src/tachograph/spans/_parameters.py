"""The parameters of a training job: batch size, targets, FLOPs. Each may be set late, or be a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tachograph._base.guard import reraise_from_signal_handler
from tachograph._base.typed import convert, field_types
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.spans._names import CheckPointStrategy

__all__ = ["ParameterSource", "Parameters", "metadata_texts"]

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

    def to_attributes(self, log_every: int) -> dict[str, Any]:
        """Return them as the attributes of an `update_training_telemetry_config` event; None means unknown."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values["checkpoint_strategy"] = values.pop("save_checkpoint_strategy").value
        values["log_every_n_train_iterations"] = self.log_every_n_train_iterations or log_every
        values["is_log_throughput_enabled"] = self.flops_to_count is not None
        flops = self.flops_per_sample
        values["flops_per_sample"] = int(flops) if flops is not None and flops.is_integer() else flops
        values["custom_metadata"] = metadata_texts(self.custom_metadata) if self.custom_metadata else None
        values["app_type"] = "training"
        return values


def metadata_texts(metadata: Mapping[str, Any]) -> list[str]:
    """Return metadata as events contain it: one ``name:value`` per item."""
    return [f"{name}:{value}" for name, value in metadata.items()]


class ParameterSource:
    """The values and functions that were set; the last one set for a name wins."""

    def __init__(self) -> None:
        self._values_and_functions: dict[str, Any] = {}

    def update(self, values: Mapping[str, Any]) -> None:
        """Set values, each under its name or as ``<name>_or_fn``; None keeps the current value.

        Raises:
            ConfigError: for an unknown name or an invalid value.
        """
        updates: dict[str, Any] = {}
        for key, value in values.items():
            name = key.removesuffix("_or_fn")
            if name not in Parameters.__struct_fields__:
                raise ConfigError(
                    f"unknown training parameter {key!r}{did_you_mean(name, Parameters.__struct_fields__)}"
                )
            if value is not None:
                updates[name] = value if callable(value) else _validate(name, value, key)
        self._values_and_functions.update(updates)

    def resolve(self, report_misuse: Callable[[str], None]) -> Parameters:
        """Return the current values; a function that raises or returns an invalid value is reported and ignored."""
        values: dict[str, Any] = {}
        for name, value_or_function in self._values_and_functions.items():
            try:
                is_function = callable(value_or_function)
                value = value_or_function() if is_function else value_or_function
                if value is not None:
                    values[name] = _validate(name, value) if is_function else value
            except Exception as error:  # noqa: BLE001 - the user's function
                reraise_from_signal_handler(error)
                report_misuse(f"{name} could not be resolved: {type(error).__name__}: {error}")
        return Parameters(**values)


def _validate(name: str, value: Any, key: str | None = None) -> Any:
    key = key or name
    field_type = field_types(Parameters)[name]
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()  # numpy counts
    if isinstance(value, bool) and field_type is not bool and "bool" not in str(field_type):
        raise ConfigError(f"{key}={value!r}: expected a number")
    if isinstance(value, float) and value.is_integer() and "int" in str(field_type):
        value = int(value)
    try:
        return convert(value, field_type)
    except msgspec.ValidationError as error:
        requirement = str(error).partition(", got ")[0].replace(" | null", "")
        if name == "save_checkpoint_strategy":
            requirement = f"one of {', '.join(CheckPointStrategy)}"
        raise ConfigError(f"{key}={value!r}: {requirement[0].lower()}{requirement[1:]}") from None
