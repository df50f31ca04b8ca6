"""Checks the keys of a config without torch: names of plugins, names of keys, and values of keys of the config."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tachograph.plugins import (
    ForeignKeys,
    PluginFacts,
    built_in_facts,
    built_in_name,
    name_of,
    parse_entries,
    validate_config,
)
from tachograph.train._config import TrainConfig
from tachograph.train._known_keys import IGNORED_KEYS, RENAMED_KEYS, rejected_keys
from tachograph.train._read import clean_values, read_values

__all__ = ["CheckedPlugin", "check_keys"]


class CheckedPlugin(NamedTuple):
    """A plugin of a config."""

    name: str
    facts: PluginFacts | None
    """None if it is not a plugin of Tachograph."""


def check_keys(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> list[CheckedPlugin]:
    """Check the keys of a config and return its plugins, without importing them.

    Raises:
        ConfigError: if a plugin or a key is unknown, or the value of a key that belongs to no plugin is invalid.
    """
    values, _ = clean_values(read_values(Path(path), overrides), str(path))
    plugins = []
    for entry in parse_entries(values.get("plugins")):
        name = built_in_name(entry.path)
        plugins.append(CheckedPlugin(name or name_of(entry.path), built_in_facts(name) if name is not None else None))
    own_keys = {
        option.name.partition(".")[0] for plugin in plugins if plugin.facts for option in plugin.facts.options
    } - set(TrainConfig.model_fields)
    foreign_keys = ForeignKeys(rejected_keys(), IGNORED_KEYS, RENAMED_KEYS)
    if any(plugin.facts is None for plugin in plugins):
        # The keys of other plugins are not known: check only the keys of the config.
        values = {key: value for key, value in values.items() if key in TrainConfig.model_fields}
    values = {key: value for key, value in values.items() if key not in own_keys}
    validate_config(values, [], TrainConfig, origin=str(path), foreign_keys=foreign_keys)
    return plugins
