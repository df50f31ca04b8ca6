"""Options of other tools at the top level of a training config, such as `swanlab_project`, in the way of Axolotl.

The options of a tool begin with its name (`swanlab_…`), except for its switch (`use_swanlab`). A tool registers a class
that reads them and translates them to settings of sinks and notifications. It is imported if a config has such keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Protocol, cast

from tachograph._base.config import fields_of
from tachograph._base.guard import guard

__all__ = ["TOOL_OPTIONS", "ToolOptions", "read_tool_options"]

TOOL_OPTIONS = {"swanlab": "tachograph.bridges.swanlab.config:SwanLabConfig"}
"""The class that reads the options of a tool, as `module:attribute`, by the name of the tool's sink."""


class ToolOptions(Protocol):
    """The options of one tool, read from a training config."""

    title: ClassVar[str]
    """The name of the tool in messages, such as `SwanLab`."""

    @classmethod
    def from_config(cls, config: Any) -> tuple[ToolOptions, list[str]]:
        """Return the options in a training config, and warnings about options without effect.

        Raises:
            ConfigError: for an invalid option.
        """

    @property
    def is_enabled(self) -> bool:
        """Whether the run is sent to the tool."""

    def add_to_section(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Return a `telemetry` section with these options, where it does not have others."""

    def add_to_notify(self, section: Any) -> Any:
        """Return a `telemetry.notify` section with the channels of these options, where it does not have others."""


def read_tool_options(config: Any) -> tuple[dict[str, ToolOptions], list[str]]:
    """Return the options of each tool that a training config turns on, by the name of its sink, and warnings.

    Raises:
        ConfigError: for an invalid option.
    """
    keys: list[str] = []
    with guard("searching the config for options of other tools"):
        keys = [str(name) for name in fields_of(config)]
    options_by_tool: dict[str, ToolOptions] = {}
    warnings: list[str] = []
    for tool, target in TOOL_OPTIONS.items():
        if any(key == f"use_{tool}" or key.startswith(f"{tool}_") for key in keys):
            module, _, attribute = target.partition(":")
            reader = cast("type[ToolOptions]", getattr(import_module(module), attribute))
            options, problems = reader.from_config(config)
            warnings += problems
            if options.is_enabled:
                options_by_tool[tool] = options
    return options_by_tool, warnings
