"""The options of an Axolotl config: `tachograph_<setting>`, and the options of SwanLab.

They become the `telemetry` section that `init` reads from any config. So the environment takes precedence over them,
and SwanLab is added to the sinks in the same way as everywhere else. Axolotl ignores keys that it does not know, so
unknown keys with our prefix are an error here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tachograph._base.settings import convert_setting, parse_switch, settings_table
from tachograph._init import check_setting
from tachograph.bridges.swanlab.config import SwanLabConfig
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.records import check_run_name

__all__ = [
    "FIELDS",
    "SWANLAB_FIELDS",
    "TachographOptions",
    "check_fields",
    "check_swanlab",
    "is_listed",
    "leaves_swanlab",
    "read_options",
    "run_config",
]

_PREFIX = "tachograph_"

FIELDS = {
    f"{_PREFIX}{name}": doc
    for name, doc in (
        ("name", "Name of the run; by default `wandb_name` or the like, or the name of the output folder."),
        ("tags", "Words to find the run by."),
        ("resume", "Continue the run of that name if it exists."),
        ("notify", "The channels to notify, and when."),
        ("rules", "The diagnostic rules to use, and their thresholds."),
        ("signals", "More names of metrics that rules observe."),
        *((row.name, row.doc) for row in settings_table()),
    )
}
"""The fields of the config, and their meaning."""

SWANLAB_FIELDS = tuple(SwanLabConfig.__struct_fields__)
_ARGUMENTS = ("name", "tags", "resume")
"""The fields that are arguments of `init`, and have no place in a `telemetry` section."""


class TachographOptions(NamedTuple):
    """The options of a run that an Axolotl config states."""

    enabled: bool
    name: str | None
    arguments: dict[str, Any]
    """Other arguments of `init`."""
    section: dict[str, Any]
    """The rest, as a `telemetry` section."""


def check_fields(config: Mapping[str, Any]) -> None:
    """Check the keys of a config that begin with our name.

    Raises:
        ConfigError: for an unknown key, naming the nearest one, or an invalid value.
    """
    for key, value in config.items():
        if not str(key).lower().startswith("tachograph"):
            continue
        name = str(key).removeprefix(_PREFIX)
        if key not in FIELDS:
            # Compared without the prefix, which alone would make any two of them similar.
            short = str(key)[len("tachograph") :].strip("_-. ").lower()
            nearest = did_you_mean(short, [field.removeprefix(_PREFIX) for field in FIELDS])
            hint = nearest.replace("mean '", f"mean '{_PREFIX}") or f"; the keys are {', '.join(FIELDS)}"
            raise ConfigError(f"unknown key {str(key)!r} in the Axolotl config{hint}")
        if value is not None:
            _check_value(name, value, str(key))


def _check_value(name: str, value: Any, key: str) -> None:
    if name == "name":
        check_run_name(value)
    elif name == "tags":
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise ConfigError(f"{key}={value!r}: expected a list of words, such as [baseline]")
    elif name == "resume":
        if not isinstance(parse_switch(value), bool):
            raise ConfigError(f"{key}={value!r}: expected true or false")
    else:
        check_setting(name, value, key)


def check_swanlab(config: Mapping[str, Any]) -> None:
    """Check the options of SwanLab in a config.

    Raises:
        ConfigError: for an invalid value.
    """
    SwanLabConfig.from_config(config)


def read_options(config: Mapping[str, Any]) -> TachographOptions:
    """Return the options in a config whose fields were checked."""
    options = {field.removeprefix(_PREFIX): _plain(config[field]) for field in FIELDS if config.get(field) is not None}
    name = options.pop("name", None)
    arguments = {argument: options.pop(argument) for argument in _ARGUMENTS if argument in options}
    if "resume" in arguments:
        arguments["resume"] = parse_switch(arguments["resume"])
    is_enabled = convert_setting("enabled", options.get("enabled", True), f"{_PREFIX}enabled")
    return TachographOptions(bool(is_enabled), name, arguments, options)


def is_listed(class_name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a config lists a plugin of that class, under any of the paths that Axolotl accepts."""
    class_names = (str(path).replace(":", ".").rpartition(".")[2] for path in config.get("plugins") or ())
    return class_name in class_names


def leaves_swanlab(config: Mapping[str, Any]) -> bool:
    """Return whether SwanLab is left to Axolotl's own plugin, which the config lists."""
    return is_listed("SwanLabPlugin", config)


def run_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run: the config of Axolotl, with our options where `init` finds them."""
    values = {
        str(name): _plain(value)
        for name, value in config.items()
        if value is not None and not str(name).startswith(_PREFIX)
    }
    if leaves_swanlab(config):
        # At the top level, `init` would use them.
        values["swanlab"] = {name: values.pop(name) for name in SWANLAB_FIELDS if name in values}
    section = read_options(config).section
    return {**values, "telemetry": section} if section else values


def _plain(value: Any) -> Any:
    """Return a value of an Axolotl config without Axolotl's own kind of dict, in which every key seems to exist."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
