"""Finds plugins by name, by dotted path or as classes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tachograph._base.registry import Registry
from tachograph.exceptions import ConfigError, PluginError, did_you_mean
from tachograph.plugins._base import BasePlugin, import_dotted, plugin_name_of

__all__ = [
    "PLUGINS",
    "ListedPlugin",
    "PluginEntry",
    "built_in_name",
    "config_keys_of",
    "create",
    "find_class",
    "listed_plugins",
    "load_class",
    "missing_packages",
    "name_of",
    "parse_entries",
]

PLUGINS = Registry(
    "plugin",
    "tachograph.plugins",
    {
        "cut_cross_entropy": "tachograph.plugins.cut_cross_entropy:CutCrossEntropyPlugin",
        "densemixer": "tachograph.plugins.densemixer:DenseMixerPlugin",
        "diffusion": "tachograph.plugins.diffusion:DiffusionPlugin",
        "grokfast": "tachograph.plugins.grokfast:GrokfastPlugin",
        "kd": "tachograph.plugins.kd:KDPlugin",
        "kernels": "tachograph.plugins.kernels:KernelsPlugin",
        "liger": "tachograph.plugins.liger:LigerPlugin",
        "llm_compressor": "tachograph.plugins.llm_compressor:LLMCompressorPlugin",
        "lm_eval": "tachograph.plugins.lm_eval:LMEvalPlugin",
        "nemo_gym": "tachograph.plugins.nemo_gym:NemoGymPlugin",
        "spectrum": "tachograph.plugins.spectrum:SpectrumPlugin",
        "swanlab": "tachograph.plugins.swanlab:SwanLabPlugin",
    },
)

_AXOLOTL = "axolotl.integrations."
_AXOLOTL_NAMES = {
    "cut_cross_entropy": "cut_cross_entropy",
    "densemixer": "densemixer",
    "diffusion": "diffusion",
    "grokfast": "grokfast",
    "kd": "kd",
    "kernels": "kernels",
    "liger": "liger",
    "llm_compressor": "llm_compressor",
    "lm_eval": "lm_eval",
    "nemo_gym": "nemo_gym",
    "spectrum": "spectrum",
    "swanlab": "swanlab",
}
"""The folder of each of Axolotl's plugins, and our name for it."""


_WITHOUT_COUNTERPART = {
    "expert_parallel": "without it, more rows make a step; use `fsdp`, and fit gradient_accumulation_steps",
    "hatchery": "trainings on remote servers are not supported",
    "mora": "MoRA is not supported; use `adapter: lora`",
}
"""Further folders of plugins of Axolotl, each with the reason."""


class PluginEntry(NamedTuple):
    """One entry of the list `plugins`."""

    path: str | type[BasePlugin]
    optional: bool = False


def parse_entries(entries: Any) -> list[PluginEntry]:
    """Return the entries of a list of plugins: names, dotted paths, classes, or mappings `{name: …, optional: true}`.

    Raises:
        PluginError: if an entry is something else.
    """
    if entries is None:
        return []
    if isinstance(entries, (str, Mapping)) or not isinstance(entries, Iterable):
        raise PluginError(f"plugins: expected a list such as [grokfast, my_package.MyPlugin], got {entries!r}")
    return [_parse_entry(entry) for entry in entries]


def _parse_entry(entry: Any) -> PluginEntry:
    if isinstance(entry, str) and entry.strip():
        return PluginEntry(entry.strip())
    if isinstance(entry, type):
        return PluginEntry(entry)
    if isinstance(entry, Mapping) and set(entry) <= {"name", "optional"} and entry.get("name"):
        optional = entry.get("optional", False)
        if isinstance(optional, bool):
            return PluginEntry(entry["name"], optional)
    raise PluginError(
        "plugins: expected a name, a dotted path, or a mapping such as {name: grokfast, optional: true}, "
        f"got {entry!r}"
    )


class ListedPlugin(NamedTuple):
    """A plugin that a config lists."""

    name: str
    path: str | type[BasePlugin]
    value: Any
    """The entry in `plugins`."""


def listed_plugins(entries: Any) -> list[ListedPlugin]:
    """Return the plugins of a list, also those that cannot be imported.

    Raises:
        PluginError: if an entry is not a plugin.
    """
    plugins = []
    for entry, value in zip(parse_entries(entries), entries or [], strict=True):
        try:
            name = find_class(entry.path).plugin_name()
        except PluginError:
            name = name_of(entry.path)
        plugins.append(ListedPlugin(name, entry.path, value))
    return plugins


def config_keys_of(path: str | type[BasePlugin]) -> set[str]:
    """Return the config keys of a plugin; none if it cannot be imported."""
    from tachograph.plugins._config import keys_of, options_of

    try:
        return keys_of(options_of(find_class(path)()))
    except PluginError:
        return set()


def create(path: str | type[BasePlugin]) -> BasePlugin:
    """Return a new plugin.

    Raises:
        PluginError: if there is no such plugin, a package that it needs is missing, or its class fails.
    """
    plugin_class = load_class(path)
    try:
        return plugin_class()
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(
            f"plugin {plugin_class.plugin_name()} cannot be created: {type(error).__name__}: {error}"
        ) from error


def load_class(path: str | type[BasePlugin]) -> type[BasePlugin]:
    """Return the class of a plugin.

    Raises:
        PluginError: if there is no such plugin, it cannot be imported, or a package that it needs is missing.
    """
    plugin_class = find_class(path)
    missing = missing_packages(plugin_class)
    if missing:
        command = f"tachograph[{plugin_class.extra}]" if plugin_class.extra else " ".join(missing)
        raise PluginError(
            f"plugin {plugin_class.plugin_name()} needs {', '.join(missing)}, which is not installed: "
            f"pip install '{command}'"
        )
    return plugin_class


def find_class(path: str | type[BasePlugin]) -> type[BasePlugin]:
    """Return the class of a plugin, whether or not the packages that it needs are installed.

    Raises:
        PluginError: if there is no such plugin, or it cannot be imported.
    """
    plugin_class: Any = _find(path) if isinstance(path, str) else path
    if not (isinstance(plugin_class, type) and issubclass(plugin_class, BasePlugin)):
        raise PluginError(f"{path!r} is not a plugin: expected a subclass of tachograph.plugins.BasePlugin")
    return plugin_class


def name_of(path: str | type[BasePlugin]) -> str:
    """Return the name of a plugin that may not exist, from its entry in a config."""
    if not isinstance(path, str):
        return path.plugin_name() if issubclass(path, BasePlugin) else path.__name__
    return plugin_name_of(path.replace(":", ".").rpartition(".")[2])


def missing_packages(plugin: type[BasePlugin]) -> list[str]:
    """Return the packages that a plugin needs and that are not installed."""
    return [package for package in plugin.requires if importlib.util.find_spec(package) is None]


def built_in_name(path: str | type[BasePlugin]) -> str | None:
    """Return the name of a built-in plugin; None for a plugin of another package, or a dotted path.

    Raises:
        PluginError: if there is no plugin of this name.
    """
    if not isinstance(path, str):
        return None
    name = _resolve_name(path)
    return name if name in PLUGINS.built_in else None


def _resolve_name(path: str) -> str:
    """Return the name of a plugin of Tachograph for a name of Axolotl; another path as it is, if it can exist."""
    name = path.replace(":", ".")
    if name.startswith(_AXOLOTL):
        folder, _, class_path = name.removeprefix(_AXOLOTL).partition(".")
        if folder in _AXOLOTL_NAMES:
            name = _AXOLOTL_NAMES[folder]
            expected_class = PLUGINS.built_in[name].rpartition(":")[2]
            if class_path and class_path.rpartition(".")[2] != expected_class:
                raise PluginError(f"unknown plugin {path!r}; did you mean '{_AXOLOTL}{folder}.{expected_class}'?")
        elif folder in _WITHOUT_COUNTERPART:
            reason = _WITHOUT_COUNTERPART[folder]
            raise PluginError(f"plugin {path!r} changes the trained model, and has no counterpart here: {reason}")
        elif importlib.util.find_spec("axolotl") is None:
            hint = did_you_mean(folder, _AXOLOTL_NAMES) or "."
            raise PluginError(f"unknown plugin {path!r}{hint} Available: {', '.join(sorted(_AXOLOTL_NAMES))}")
    plugin_names = [] if "." in name else PLUGINS.names()
    if "." not in name and name not in plugin_names:
        hint = did_you_mean(name, plugin_names) or "."
        raise PluginError(f"unknown plugin {name!r}{hint} Available: {', '.join(plugin_names)}; or give a dotted path")
    return name


def _find(path: str) -> Any:
    name = _resolve_name(path)
    if "." in name:
        return import_dotted(path, f"plugin {path!r}")
    try:
        return PLUGINS.load(name)
    except PluginError:
        raise
    except ConfigError as error:
        raise PluginError(str(error)) from error
