"""The config of a training with plugins: keys of its own, and the options of all plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from tachograph.exceptions import ConfigError, PluginError, did_you_mean
from tachograph.plugins._base import BasePlugin

__all__ = ["EmptyConfig", "ValidConfig", "import_dotted", "options_of", "validate_config"]


class EmptyConfig(BaseModel):
    """The base of a config that has the options of plugins only."""

    model_config = ConfigDict(extra="forbid")


def options_of(plugin: BasePlugin) -> type[BaseModel] | None:
    """Return the pydantic model of a plugin's options, if it has one.

    Raises:
        PluginError: if it cannot be imported, or is something else.
    """
    model = plugin.get_input_args()
    if isinstance(model, str):
        model = import_dotted(model, f"the options of plugin {plugin.plugin_name()}")
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise plugin.error(f"get_input_args returned {model!r}: expected a pydantic model or its dotted path")
    return model


def import_dotted(path: str, purpose: str) -> Any:
    """Return the object at a dotted path, such as `package.module.Class` or `package.module:Class`.

    Raises:
        PluginError: if it cannot be imported.
    """
    module, _, attribute = path.replace(":", ".").rpartition(".")
    if not module:
        raise PluginError(f"{purpose}: {path!r} is not a dotted path such as package.module.Class")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # foreign code may raise anything while it is imported
        raise PluginError(f"{purpose}: cannot import {path!r}: {type(error).__name__}: {error}") from error


class ValidConfig(NamedTuple):
    """A validated config, in parts."""

    base: BaseModel
    """The keys that belong to no plugin."""
    options: list[BaseModel | None]
    """The options of each plugin."""
    values: dict[str, Any]
    """All values by key."""


def validate_config(
    values: Mapping[str, Any],
    plugins: Sequence[BasePlugin],
    base: type[BaseModel] = EmptyConfig,
    *,
    origin: str = "config",
    unsupported_keys: Mapping[str, str] = {},
) -> ValidConfig:
    """Validate a config with the model of its own keys and the models of all plugins.

    Each model validates on its own. One class that inherits from all of them would lose validators: of two with the
    same name, Python keeps one. A validator that runs before the fields are parsed receives the whole config.

    Args:
        values: the config.
        plugins: the plugins.
        base: the pydantic model of the keys that belong to no plugin.
        origin: where the config comes from, for messages.
        unsupported_keys: keys that are known but not supported, each with an explanation.

    Raises:
        PluginError: if a key has different meanings.
        ConfigError: naming every wrong key or value.
    """
    models = [options_of(plugin) for plugin in plugins]
    known_keys = _check_fields(plugins, models, base)
    problems = []
    for key in values:
        if key not in known_keys:
            explanation = unsupported_keys.get(key)
            hint = f": {explanation}" if explanation else did_you_mean(str(key), known_keys) or ": remove it"
            problems.append(f"{'unsupported' if explanation else 'unknown'} key {key!r}{hint}")
    parts: list[BaseModel | None] = []
    for model in (base, *models):
        try:
            parts.append(model.model_validate(_input_of(model, values)) if model is not None else None)
        except ValidationError as error:
            problems += [text for text in map(_describe, error.errors()) if text not in problems]
    if problems:
        raise ConfigError(f"{origin}: " + "; ".join(problems))
    merged_values: dict[str, Any] = {}
    for part in parts:
        merged_values.update(part.model_dump() if part is not None else {})
    base_options, *options = parts
    assert base_options is not None  # noqa: S101 - the base is a model
    return ValidConfig(base_options, options, merged_values)


def _input_of(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for a model: all of them if it ignores other keys, because its validators may read them."""
    if model.model_config.get("extra", "ignore") == "ignore":
        return dict(values)
    field_names = _names_of(model)
    return {key: value for key, value in values.items() if key in field_names}


def _names_of(model: type[BaseModel]) -> set[str]:
    return {name for key, field in model.model_fields.items() for name in (key, field.alias) if name}


def _check_fields(
    plugins: Sequence[BasePlugin], models: Sequence[type[BaseModel] | None], base: type[BaseModel]
) -> set[str]:
    """Return all keys; raise an error if two models have a field of the same name but of another type."""
    owners: dict[str, tuple[str, Any]] = {name: ("the config", field) for name, field in base.model_fields.items()}
    keys = _names_of(base)
    for plugin, model in zip(plugins, models, strict=True):
        if model is None:
            continue
        keys |= _names_of(model)
        for name, field in model.model_fields.items():
            owner, other = owners.setdefault(name, (f"plugin {plugin.plugin_name()}", field))
            if other is not field and (other.annotation, other.default) != (field.annotation, field.default):
                raise PluginError(
                    f"config key {name!r} has different meanings for plugin {plugin.plugin_name()} and {owner}: "
                    f"remove one of them from `plugins`"
                )
    return keys


def _describe(entry: Any) -> str:
    key_path = ".".join(str(part) for part in entry["loc"])
    message = str(entry["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if message[:2].istitle() else message
    if not key_path or entry["type"] == "missing":
        return f"{key_path}: {message}" if key_path else message
    return f"{key_path}={_short(entry['input'])}: {message}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
