"""`init_from_config`: the `telemetry` section of a training config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError, nearest
from tachograph.recorder import Run, init
from tachograph.settings import Settings

__all__ = ["init_from_config"]

_NOT_YET = ("tensorboard", "wandb")


def init_from_config(config: str | os.PathLike[str] | Mapping[str, Any], **settings: Any) -> Run:
    """Begin a run as a training config says: its `telemetry` section, its `name`, and all of it as the snapshot.

    Args:
        config: the config, or the path of a YAML or JSON file.
        settings: settings that win over the section; also `name`, `resume`, `tags` and `facts` of `init`.

    Raises:
        ConfigError: if the file cannot be read, or the section has an unknown key or a wrong value.

    Example:
        >>> run = tachograph.init_from_config("config/train_lora.yaml")
    """
    values = config if isinstance(config, Mapping) else _load(Path(config))
    section = values.get("telemetry", {})
    if section is None:
        section = {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"telemetry: a section such as `telemetry: {{enabled: true}}` is expected, got {section!r}")
    for key in section:
        if key not in Settings.__struct_fields__ and key not in _NOT_YET:
            known = (*Settings.__struct_fields__, *_NOT_YET)
            raise ConfigError(f"unknown key telemetry.{key}{nearest(str(key), known)}")
    for key in _NOT_YET:
        if section.get(key):
            raise ConfigError(f"telemetry.{key}: this version cannot write to {key} yet; set it to false or remove it")
    own = {key: value for key, value in section.items() if key not in _NOT_YET}
    return init(settings.pop("name", None) or _name(values), config=values, section=own, **settings)


def _name(values: Mapping[str, Any]) -> str | None:
    inner = values.get("config")
    name = values.get("name") or (inner.get("name") if isinstance(inner, Mapping) else None)
    return str(name) if name else None


def _load(path: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config {str(path)!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{str(path)!r} does not hold a mapping at its top")
    return values
