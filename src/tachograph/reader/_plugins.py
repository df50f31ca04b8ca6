"""The training plugins of a run, from their events: one when training starts, one when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tachograph.records import finite_or_none

__all__ = ["PLUGIN_EVENT", "PLUGIN_SUMMARY_EVENT", "PluginChange", "PluginUse", "plugins_of"]

PLUGIN_EVENT = "plugin"
PLUGIN_SUMMARY_EVENT = "plugin_summary"


class PluginChange(msgspec.Struct):
    """One kind of change that a plugin made before training."""

    what: str
    """Such as `parameters frozen`."""
    count: int
    names: list[str] = []
    """The first names of the changed parts."""


class PluginUse(msgspec.Struct, kw_only=True):
    """A plugin of a run, and its changes to the training."""

    name: str
    path: str = ""
    """The class of the plugin."""
    slots: list[str] = []
    """The parts of the training that it replaces."""
    options: dict[str, Any] = {}
    changes: list[PluginChange] = []
    contributes: list[str] = []
    """Parts that it adds to the trainer, such as callbacks."""
    hook_ms: dict[str, float] = {}
    """Total time per hook."""
    num_effects: int | None = None
    """How often it acted in training; None while training runs, or if it does not count."""


def plugins_of(starts: Iterable[dict[str, Any]], ends: Iterable[dict[str, Any]]) -> list[PluginUse]:
    """Return the plugins that events describe, each with its latest values. Malformed fields are left out."""
    plugins: dict[str, PluginUse] = {}
    for record in starts:
        name = str(record.get("plugin", ""))
        plugins[name] = PluginUse(
            name=name,
            path=str(record.get("class", "")),
            slots=_texts(record.get("slots")),
            options=_dict(record.get("options")),
            changes=[
                PluginChange(what, int(finite_or_none(change.get("count")) or 0), _texts(change.get("names")))
                for what, change in _dict(record.get("changes")).items()
                if isinstance(change, dict)
            ],
            contributes=_texts(record.get("contributes")),
            hook_ms=_numbers(record.get("hook_ms")),
        )
    for record in ends:
        plugin = plugins.get(str(record.get("plugin", "")))
        if plugin is not None:
            plugin.hook_ms = _numbers(record.get("hook_ms"))
            effects = finite_or_none(record.get("effects"))
            plugin.num_effects = int(effects) if effects else None
    return list(plugins.values())


def _texts(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _numbers(value: Any) -> dict[str, float]:
    numbers = {name: finite_or_none(number) for name, number in _dict(value).items()}
    return {name: number for name, number in numbers.items() if number is not None}
