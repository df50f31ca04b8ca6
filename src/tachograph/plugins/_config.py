"""The config of a training with plugins: keys of its own, and the options of all plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from tachograph.exceptions import ConfigError, PluginError, did_you_mean
from tachograph.plugins._base import BasePlugin, import_dotted

__all__ = [
    "NO_FOREIGN_KEYS",
    "EmptyConfig",
    "ForeignKeys",
    "ValidConfig",
    "check_options",
    "keys_of",
    "options_of",
    "validate_config",
]


class EmptyConfig(BaseModel):
    """The base of a config that has the options of plugins only."""

    model_config = ConfigDict(extra="forbid")


def options_of(plugin: BasePlugin) -> type[BaseModel] | None:
    """Return the pydantic model of a plugin's options, if it has one.

    Raises:
        PluginError: if it cannot be imported, or is something else.
    """
    try:
        model = plugin.get_input_args()
    except PluginError:
        raise
    except Exception as error:
        raise plugin.error(f"get_input_args failed: {type(error).__name__}: {error}") from error
    if isinstance(model, str):
        model = import_dotted(model, f"the options of plugin {plugin.plugin_name()}")
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise plugin.error(f"get_input_args returned {model!r}: expected a pydantic model or its dotted path")
    return model


class ForeignKeys(NamedTuple):
    """Keys of another program that are not keys of the config, each with an explanation.

    An option of a listed plugin is not one of them, whatever these tables say. A key that is false has no effect in
    either program and is accepted.
    """

    unsupported: Mapping[str, str] = {}
    """Keys that are rejected, with the reason and the remedy."""
    ignored: Mapping[str, str] = {}
    """Keys that do not change the trained model: they are dropped with a warning, with the reason."""
    renamed: Mapping[str, str] = {}
    """Keys that are rejected, with their remedy: another key."""


NO_FOREIGN_KEYS = ForeignKeys()


class ValidConfig(NamedTuple):
    """A validated config, in parts."""

    base: BaseModel
    """The keys that belong to no plugin."""
    options: list[BaseModel | None]
    """The options of each plugin."""
    values: dict[str, Any]
    """All values by key."""
    warnings: list[str]
    """Keys that have no effect."""


def validate_config(
    values: Mapping[str, Any],
    plugins: Sequence[BasePlugin],
    base: type[BaseModel] = EmptyConfig,
    *,
    origin: str = "config",
    foreign_keys: ForeignKeys = NO_FOREIGN_KEYS,
) -> ValidConfig:
    """Validate a config with the model of its own keys and the models of all plugins.

    Each model validates on its own. One class that inherits from all of them would lose validators: of two with the
    same name, Python keeps one. A validator that runs before the fields are parsed receives the whole config.

    Args:
        values: the config.
        plugins: the plugins.
        base: the pydantic model of the keys that belong to no plugin.
        origin: where the config comes from, for messages.
        foreign_keys: keys of another program that belong to no plugin either.

    Raises:
        PluginError: if a key has different meanings.
        ConfigError: naming every wrong key or value.
    """
    models = [options_of(plugin) for plugin in plugins]
    known_keys = _check_fields(plugins, models, base)
    problems, warnings = [], []
    for key, value in values.items():
        if key in known_keys or (value is False and (key in foreign_keys.unsupported or key in foreign_keys.ignored)):
            continue
        if key in foreign_keys.ignored:
            warnings.append(f"{key} has no effect: {foreign_keys.ignored[key]}")
        else:
            problems.append(_describe_unknown(str(key), known_keys, foreign_keys))
    parts: list[BaseModel | None] = []
    for model in (base, *models):
        try:
            parts.append(model.model_validate(_input_of(model, values)) if model is not None else None)
        except ValidationError as error:
            problems += [text for text in _describe_errors(error, model) if text not in problems]
    if problems:
        raise ConfigError(f"{origin}: " + "; ".join(problems))
    merged_values: dict[str, Any] = {}
    for part in parts:
        merged_values.update(part.model_dump() if part is not None else {})
    base_options, *options = parts
    assert base_options is not None  # noqa: S101 - the base is a model
    return ValidConfig(base_options, options, merged_values, warnings)


def check_options(
    plugin: BasePlugin, others: Sequence[BasePlugin], base: type[BaseModel], values: Mapping[str, Any]
) -> None:
    """Check the options of one plugin, and that they have the same meaning for others.

    Raises:
        PluginError: if a key has another meaning for one of the others.
        ConfigError: naming every wrong value.
    """
    model = options_of(plugin)
    _check_fields([*others, plugin], [*map(options_of, others), model], base)
    if model is None:
        return
    try:
        model.model_validate(_input_of(model, values))
    except ValidationError as error:
        raise ConfigError("; ".join(_describe_errors(error, model))) from None


def keys_of(model: type[BaseModel] | None) -> set[str]:
    """Return the keys of a model, including aliases."""
    fields = {} if model is None else model.model_fields
    return {name for key, field in fields.items() for name in (key, field.alias) if name}


def _describe_unknown(key: str, known_keys: set[str], foreign_keys: ForeignKeys) -> str:
    if key in foreign_keys.renamed:
        return f"unknown key {key!r}: {foreign_keys.renamed[key]}"
    if key in foreign_keys.unsupported:
        return f"unsupported key {key!r}: {foreign_keys.unsupported[key]}"
    return f"unknown key {key!r}{did_you_mean(key, known_keys) or ': remove it'}"


def _input_of(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for a model: all of them if it ignores other keys, because its validators may read them."""
    if model.model_config.get("extra", "ignore") == "ignore":
        return dict(values)
    field_names = keys_of(model)
    return {key: value for key, value in values.items() if key in field_names}


def _check_fields(
    plugins: Sequence[BasePlugin], models: Sequence[type[BaseModel] | None], base: type[BaseModel]
) -> set[str]:
    """Return all keys; raise an error if two models have a field of the same name but of another type."""
    owners: dict[str, tuple[str, Any]] = {name: ("the config", field) for name, field in base.model_fields.items()}
    keys = keys_of(base)
    for plugin, model in zip(plugins, models, strict=True):
        if model is None:
            continue
        keys |= keys_of(model)
        for name, field in model.model_fields.items():
            owner, other = owners.setdefault(name, (f"plugin {plugin.plugin_name()}", field))
            if other is not field and (other.annotation, other.default) != (field.annotation, field.default):
                raise PluginError(
                    f"config key {name!r} has different meanings for plugin {plugin.plugin_name()} and {owner}: "
                    f"remove one of them from `plugins`"
                )
    return keys


def _describe_errors(error: ValidationError, model: type[BaseModel] | None) -> list[str]:
    """Return a text per error. Of a value that may be a text or a section, only the errors of the section remain."""
    entries = error.errors()
    sections = {entry["loc"][: len(entry["loc"]) - 1] for entry in entries if entry["type"] != "string_type"}
    return [
        _describe(entry, model)
        for entry in entries
        if not (
            entry["type"] == "string_type"
            and isinstance(entry["input"], Mapping)
            and any(path[: len(entry["loc"]) - 1] == entry["loc"][:-1] for path in sections)
        )
    ]


def _describe(entry: Any, model: type[BaseModel] | None) -> str:
    first, *others = entry["loc"] or ("",)
    # Keys of sections are lower-case; parts that are not are pydantic's names of the alternatives of a field.
    key_path = ".".join(map(str, [first, *(part for part in others if not str(part)[:1].isupper())]))
    if entry["type"] == "extra_forbidden":
        hint = did_you_mean(str(entry["loc"][-1]), _keys_at(model, entry["loc"][:-1])) or ": remove it"
        return f"unknown key {key_path!r}{hint}"
    message = str(entry["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if message[:2].istitle() else message
    if not key_path or entry["type"] == "missing":
        return f"{key_path}: {message}" if key_path else message
    return f"{key_path}={_short(entry['input'])}: {message}"


def _keys_at(model: Any, path: Sequence[Any]) -> set[str]:
    """Return the keys of the section at a path of keys, such as `("diffusion",)`; empty if it is not known."""
    for key in path:
        field = getattr(model, "model_fields", {}).get(key)
        if field is None:
            return set()
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    return keys_of(model)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
