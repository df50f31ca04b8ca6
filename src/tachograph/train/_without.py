"""A config without some of its plugins, and without their options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.plugins import config_keys_of, listed_plugins

__all__ = ["remove_plugins"]


def remove_plugins(values: Mapping[str, Any], names: Iterable[str], own_keys: Iterable[str] = ()) -> dict[str, Any]:
    """Return a config without plugins and their options; an option that another plugin also has stays.

    Args:
        values: the content of a config.
        names: names of plugins, or their entries in `plugins`.
        own_keys: keys that belong to the config itself.

    Raises:
        ConfigError: if the config does not list a plugin.
    """
    result = dict(values)
    for name in names:
        entries = listed_plugins(result.get("plugins"))
        matching = [entry for entry in entries if name in (entry.name, entry.path)]
        if not matching:
            listed_names = [entry.name for entry in entries]
            hint = did_you_mean(name, listed_names) or "."
            listing = f"It lists {', '.join(listed_names)}." if listed_names else "It lists none."
            raise ConfigError(f"plugin {name!r} is not in `plugins` of the config{hint} {listing}")
        remaining = [entry for entry in entries if entry not in matching]
        kept_keys = set(own_keys).union(*(config_keys_of(entry.path) for entry in remaining))
        dropped_keys = set().union(*(config_keys_of(entry.path) for entry in matching)) - kept_keys
        result = {key: value for key, value in result.items() if key not in dropped_keys}
        result["plugins"] = [entry.value for entry in remaining]
    return result
