"""`SwanLabConfig`: the options of SwanLab in a training config, as Axolotl has them at the top level.

They are translated to the sink `swanlab`, to the settings of completions and to notifications in Lark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from tachograph._base.config import fields_of
from tachograph._base.settings import parse_sinks, parse_switch
from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["SWANLAB_MODES", "SwanLabConfig"]

SWANLAB_MODES = ("cloud", "online", "local", "offline", "disabled")
_PREFIX = "swanlab_"
_SWITCHES = ("use_swanlab", "swanlab_log_model", "swanlab_log_completions")
_NUMBERS = ("swanlab_completion_log_interval", "swanlab_completion_max_buffer")
_SECRETS = ("swanlab_api_key", "swanlab_lark_webhook_url", "swanlab_lark_secret")
_SINK_OPTIONS = ("project", "experiment_name", "description", "mode", "workspace", "api_key", "web_host", "api_host")
_MAX_WARNINGS = 5


class SwanLabConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of SwanLab. A project is enough: SwanLab is used unless `use_swanlab` is false.

    Raises:
        ConfigError: for an invalid value, when the config is created. No message quotes a key or a secret.

    Example:
        >>> SwanLabConfig(swanlab_project="jackets", swanlab_mode="offline").is_enabled
        True
    """

    title: ClassVar[str] = "SwanLab"

    use_swanlab: bool | None = None
    """None: use SwanLab if a project is given."""
    swanlab_project: str | None = None
    swanlab_experiment_name: str | None = None
    swanlab_description: str | None = None
    swanlab_mode: str | None = None
    """`cloud` (or `online`), `local`, `offline` or `disabled`; None: as SwanLab is configured, else `cloud`."""
    swanlab_workspace: str | None = None
    swanlab_api_key: str | None = None
    swanlab_web_host: str | None = None
    swanlab_api_host: str | None = None
    swanlab_log_model: bool | None = None
    """Accepted, but has no effect: checkpoints are not uploaded."""
    swanlab_lark_webhook_url: str | None = None
    """Address of a Lark bot; None: the environment variable SWANLAB_LARK_WEBHOOK_URL. The same holds for the secret."""
    swanlab_lark_secret: str | None = None
    swanlab_log_completions: bool | None = None
    """None: true."""
    swanlab_completion_log_interval: int | None = None
    """Steps between two tables of samples; None: the setting `completions_every`."""
    swanlab_completion_max_buffer: int | None = None
    """Maximum number of samples in a table; None: the setting `completions_buffer`."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _check_value(name, getattr(self, name))
        mode, url = self.swanlab_mode, self.swanlab_lark_webhook_url
        if mode is not None and mode not in SWANLAB_MODES:
            hint = did_you_mean(mode, SWANLAB_MODES)
            raise ConfigError(f"swanlab_mode={mode!r}: expected one of {', '.join(SWANLAB_MODES)}{hint}")
        if self.use_swanlab and not self.swanlab_project:
            raise ConfigError(
                "use_swanlab is true, but swanlab_project is missing: add a name, such as "
                "`swanlab_project: my-project`, or turn SwanLab off with `use_swanlab: false`"
            )
        if url is not None and not url.startswith(("https://", "http://")):
            raise ConfigError("swanlab_lark_webhook_url: expected an address that starts with https://")

    @classmethod
    def from_config(cls, config: Any) -> tuple[SwanLabConfig, list[str]]:
        """Return the options in a training config, and warnings about options without effect."""
        fields = {str(name): value for name, value in fields_of(config).items() if value is not None}
        names = cls.__struct_fields__
        values = {name: fields[name] for name in names if name in fields}
        for name in _SWITCHES:
            if name in values:
                values[name] = parse_switch(values[name])
        unknown = [name for name in fields if name.startswith(_PREFIX) and name not in names]
        warnings = [f"the option {name} of the config is unknown{did_you_mean(name, names)}" for name in unknown]
        options = cls(**values)
        if options.is_enabled and options.swanlab_log_model:
            warnings.append("swanlab_log_model has no effect: checkpoints are recorded, but not uploaded")
        if options.is_enabled and options.swanlab_lark_secret and not options.lark_options():
            warnings.append("swanlab_lark_secret has no effect without swanlab_lark_webhook_url")
        return options, warnings[:_MAX_WARNINGS]

    @property
    def is_enabled(self) -> bool:
        """Whether the run is sent to SwanLab."""
        return self.use_swanlab is not False and bool(self.swanlab_project) and self.swanlab_mode != "disabled"

    def sink_options(self) -> dict[str, Any]:
        """Return the options of the sink `swanlab`."""
        options = {name: getattr(self, f"{_PREFIX}{name}") for name in _SINK_OPTIONS}
        options["completions"] = self.swanlab_log_completions
        options["max_rows"] = self.swanlab_completion_max_buffer
        return {name: value for name, value in options.items() if value is not None}

    def lark_options(self) -> dict[str, str]:
        """Return the section `notify.lark`; empty if there is no address."""
        variables = {"url": "SWANLAB_LARK_WEBHOOK_URL", "secret": "SWANLAB_LARK_SECRET"}
        options = {"url": self.swanlab_lark_webhook_url, "secret": self.swanlab_lark_secret}
        values = {name: value or os.environ.get(variables[name]) for name, value in options.items()}
        return {name: value for name, value in values.items() if value} if values["url"] else {}

    def add_to_section(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Return a `telemetry` section with these options, where it does not have others."""
        sinks = parse_sinks(section.get("sinks", []), "telemetry.sinks")
        sinks["swanlab"] = {**self.sink_options(), **sinks.get("swanlab", {})}
        numbers = {
            "completions_every": self.swanlab_completion_log_interval,
            "completions_buffer": self.swanlab_completion_max_buffer,
        }
        settings = {name: number for name, number in numbers.items() if number is not None}
        return {**settings, **section, "sinks": [{name: options} for name, options in sinks.items()]}

    def add_to_notify(self, section: Any) -> Any:
        """Return a `telemetry.notify` section with Lark, unless it has Lark already or is turned off."""
        lark = self.lark_options()
        if not lark or section is False or (isinstance(section, Mapping) and section.get("lark")):
            return section
        return {**(section if isinstance(section, Mapping) else {}), "lark": lark}


def _check_value(name: str, value: Any) -> None:
    if value is None:
        return
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r}: expected true or false")
    elif name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}={value!r}: expected an integer of at least 1")
    elif not isinstance(value, str) or not value.strip():
        got = "" if name in _SECRETS else f", got {value!r}"
        raise ConfigError(f"{name}: expected a text that is not empty{got}; remove the line to leave it unset")
