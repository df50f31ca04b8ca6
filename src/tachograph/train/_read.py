"""Reads a training config, applies `--set`, and drops empty keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tachograph._base.config import parse_yaml
from tachograph._base.settings import read_config
from tachograph.exceptions import ConfigError
from tachograph.train._known_keys import IGNORED_TRL_OPTIONS, OFF_VALUES, OFFLOADING, OTHER_NAMES

__all__ = ["apply_overrides", "clean_values", "read_values"]

_RECORDER = "tachograph.integrations.axolotl.TachographPlugin"
"""The plugin that records a training of Axolotl, with keys such as `tachograph_log_dir`. Here every one is recorded."""
_RECORDER_PREFIX = "tachograph_"


def read_values(path: Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the content of a config with overrides such as ``trl.beta=0.1``.

    Raises:
        ConfigError: if it cannot be read or an override is invalid.
    """
    values = read_config(path)
    invalid_keys = [key for key in values if not isinstance(key, str)]
    if invalid_keys:
        raise ConfigError(f"{path}: key {invalid_keys[0]!r} is not a text: put it in quotes")
    return apply_overrides(values, overrides)


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a config in which keys are set, each by a text such as ``datasets.0.path=other.jsonl``."""
    import yaml

    result: dict[str, Any] = _copy(values)
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            raise ConfigError(f"--set {override!r}: expected KEY=VALUE, such as learning_rate=1e-4 or trl.beta=0.1")
        try:
            value = parse_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {override!r}: the value is not valid YAML: {error}") from None
        _set(result, keys, value, override)
    return result


def _set(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    section: Any = values
    for number, key in enumerate(keys):
        is_last = number == len(keys) - 1
        if isinstance(section, list):
            if not key.isdigit() or int(key) >= len(section):
                below = ".".join(keys[:number])
                raise ConfigError(
                    f"--set {override!r}: {below} is a list of {len(section)}, so {key!r} must be a number below it"
                )
            index: Any = int(key)
        elif isinstance(section, dict):
            index = key
            if not is_last and section.get(key) is None:
                section[key] = {}
        else:
            below = ".".join(keys[:number])
            raise ConfigError(f"--set {override!r}: {below} is {section!r}, which has no keys")
        if is_last:
            section[index] = value
        else:
            section = section[index]


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(entry) for key, entry in value.items()}
    return [_copy(entry) for entry in value] if isinstance(value, list) else value


def clean_values(values: Mapping[str, Any], origin: str = "config") -> tuple[dict[str, Any], list[str]]:
    """Return a config without keys that have no effect, and warnings about values that are changed.

    Raises:
        ConfigError: if a key is set by two of its names.
    """
    result: dict[str, Any] = {}
    warnings: list[str] = []
    for name, value in values.items():
        key = OTHER_NAMES.get(name, name)
        if key in result:
            other_name = next(other for other in values if OTHER_NAMES.get(other) == key)
            raise ConfigError(f"{origin}: {key} and {other_name} are the same key: keep one of them")
        if value is not None and not (key in OFF_VALUES and value == OFF_VALUES[key]):
            result[key] = value
    if isinstance(result.get("tokens"), dict) and "special_tokens" not in result:
        result["special_tokens"] = result.pop("tokens")  # as in older configs
    if result.get("gradient_checkpointing") in OFFLOADING:
        warnings.append(
            f"gradient_checkpointing: {result['gradient_checkpointing']} is the same as true: activations stay on the "
            "GPU; the model is the same, but training needs more memory"
        )
    section = result.get("trl")
    if isinstance(section, Mapping):
        result["trl"] = {name: value for name, value in section.items() if name not in IGNORED_TRL_OPTIONS}
        warnings += [
            f"trl.{name} has no effect: {IGNORED_TRL_OPTIONS[name]}"
            for name, value in section.items()
            if name in IGNORED_TRL_OPTIONS and value
        ]
    plugins = result.get("plugins")
    if not isinstance(plugins, list) or _RECORDER not in plugins:
        return result, warnings
    result["plugins"] = [entry for entry in plugins if entry != _RECORDER]
    return result, [*warnings, *_translate_recorder_keys(result)]


def _translate_recorder_keys(values: dict[str, Any]) -> list[str]:
    """Move the keys of the recorder's plugin to `name` and `telemetry`, and return warnings."""
    warnings = [f"plugin {_RECORDER} is not needed: every training is recorded"]
    section = dict(values.get("telemetry") or {})
    for key in [key for key in values if key.startswith(_RECORDER_PREFIX)]:
        value, setting = values.pop(key), key.removeprefix(_RECORDER_PREFIX)
        if setting == "name":
            values.setdefault("name", value)
        elif setting in ("tags", "resume"):
            warnings.append(f"{key} has no effect")
        else:
            section.setdefault(setting, value)
    if section:
        values["telemetry"] = section
    return warnings
