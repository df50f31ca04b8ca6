"""Builds the sinks that the settings name, and checks their options.

Importing the package of a tool takes seconds, and longer on a busy machine. So each built-in sink has a function that
checks its options without the package. The training process calls it before the run starts, and does not wait for the
process of the sink, which finds the other mistakes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from tachograph._base.guard import faults
from tachograph._base.registry import Registry
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.sinks._sink import Sink

__all__ = ["SINKS", "build_sinks", "check_sink"]

SINKS = Registry(
    "sink",
    "tachograph.sinks",
    {
        "mlflow": "tachograph.bridges.mlflow.sink:MlflowSink",
        "otlp": "tachograph.bridges.otlp:OtlpSink",
        "prometheus": "tachograph.bridges.prometheus.sink:PrometheusSink",
        "swanlab": "tachograph.bridges.swanlab.sink:SwanLabSink",
        "tensorboard": "tachograph.bridges.tensorboard.sink:TensorBoardSink",
        "wandb": "tachograph.bridges.wandb.sink:WandbSink",
    },
)


class _OptionCheck(NamedTuple):
    module: str
    """The module below `tachograph.bridges` that has `check_options`, with the parameters of the sink."""
    packages: tuple[str, ...] = ()
    """The packages that the sink needs."""


_OPTION_CHECKS = {
    "mlflow": _OptionCheck("mlflow.options", ("mlflow",)),
    "otlp": _OptionCheck("otlp.options", ("opentelemetry", "grpc")),
    "prometheus": _OptionCheck("prometheus.sink"),
    "swanlab": _OptionCheck("swanlab.options", ("swanlab",)),
    "tensorboard": _OptionCheck("tensorboard.options", ("tensorboard",)),
    "wandb": _OptionCheck("wandb.options", ("wandb",)),
}


def check_sink(name: str, options: Mapping[str, Any]) -> bool:
    """Check the options of a built-in sink without importing its packages.

    Returns:
        Whether it is a built-in sink. Other sinks can only be checked by building them.

    Raises:
        ConfigError: if a package is missing or an option is wrong.
    """
    if name not in _OPTION_CHECKS:
        return False
    check = _OPTION_CHECKS[name]
    for package in check.packages:
        if not _is_installed(package):
            raise ConfigError(
                f"sink {name!r} needs a package that is not installed (No module named {package!r}): "
                f"pip install 'tachograph[{name}]'"
            )
    check_options = import_module(f"tachograph.bridges.{check.module}").check_options
    _check_options(name, check_options, options)
    try:
        check_options(**options)
    except faults(ConfigError) as error:
        raise ConfigError(f"sink {name!r}: {error}") from None
    return True


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except faults(ValueError):  # a module that a program put there by hand
        return True


def build_sinks(options_by_name: Mapping[str, Mapping[str, Any]]) -> list[Sink]:
    """Build sinks from their names and options.

    Args:
        options_by_name: the options of each sink, by its name; `Settings.sinks` has this form.

    Raises:
        ConfigError: if a sink is unknown or broken, its package is missing, or an option is wrong.
    """
    sinks: dict[str, Sink] = {}
    for name, options in options_by_name.items():
        sink = _build_sink(name, options)
        if sink.name in sinks:
            raise ConfigError(f"sinks: {name!r} and another sink are both named {sink.name!r}; remove one of them")
        sinks[sink.name] = sink
    return list(sinks.values())


def _build_sink(name: str, options: Mapping[str, Any]) -> Sink:
    if name == "notify":
        raise ConfigError("sinks: configure notifications with notify={…}, telemetry.notify or TACHO_NOTIFY_…")
    factory = SINKS.load(name)
    _check_options(name, factory, options)
    try:
        sink = factory(**options)
    except faults(ConfigError) as error:
        raise ConfigError(f"sink {name!r}: {error}") from None
    except Exception as error:
        raise ConfigError(f"sink {name!r} cannot be created: {type(error).__name__}: {error}") from error
    if not isinstance(sink, Sink):
        raise ConfigError(f"sink {name!r} is incomplete: it needs a name and the methods open, write and close")
    return sink


def _check_options(name: str, factory: Any, options: Mapping[str, Any]) -> None:
    """Compare the options with the constructor's parameters, so that the error names the option and not a call."""
    try:
        parameters = inspect.signature(factory).parameters
    except faults(TypeError, ValueError):  # a constructor written in C has no signature; it checks its arguments itself
        return
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    names = [key for key, parameter in parameters.items() if parameter.kind is not inspect.Parameter.VAR_POSITIONAL]
    for option in options:
        if option not in names:
            hint = did_you_mean(option, names) or "."
            available = f"Available: {', '.join(names)}" if names else "It has no options"
            raise ConfigError(f"sink {name!r} has no option {option!r}{hint} {available}")
    missing = [
        option for option in names if option not in options and parameters[option].default is inspect.Parameter.empty
    ]
    if missing:
        raise ConfigError(f"sink {name!r} needs the option {missing[0]!r}: sinks=[{{{name!r}: {{{missing[0]!r}: …}}}}]")
