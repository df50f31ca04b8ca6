"""Exporters described in a config. A file can only name exporters of this package: it cannot make us import code."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tachograph._base.config import parse_yaml
from tachograph.exceptions import ConfigError
from tachograph.one_logger._exporter import Exporter
from tachograph.one_logger._json_exporters import FileExporter, LoggerExporter

__all__ = ["ExporterConfig", "make_exporters", "read_exporter_configs"]

_KNOWN = {"FileExporter": FileExporter, "LoggerExporter": LoggerExporter}
_PATH_VARIABLE = "ONE_LOGGER_EXPORTER_CONFIG_PATH"


@dataclass
class ExporterConfig:
    """The class of an exporter and its arguments."""

    class_name: str
    config: dict[str, Any] = field(default_factory=dict)
    enabled: bool = True


def read_exporter_configs(path: str | os.PathLike[str] | None = None) -> list[ExporterConfig]:
    """Return the exporters described in a file: the given one, else the one named in the environment, else none.

    Raises:
        ConfigError: if the file cannot be read, or names an exporter outside this package.
    """
    chosen = path or os.environ.get(_PATH_VARIABLE)
    if not chosen:
        return []
    file = Path(chosen)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the exporter config {str(file)!r}: {error.strerror}") from error
    import yaml

    try:
        values = json.loads(text) if file.suffix == ".json" else parse_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{str(file)!r} is not valid: {error}") from error
    exporters = values.get("exporters") if isinstance(values, dict) else None
    if not isinstance(exporters, list):
        raise ConfigError(f"{str(file)!r}: expected a list `exporters`")
    configs = []
    for item in exporters:
        if not isinstance(item, dict) or "class_name" not in item:
            raise ConfigError(f"{str(file)!r}: each exporter needs a class_name, got {item!r}")
        if str(item["class_name"]).rpartition(".")[2] not in _KNOWN:
            raise ConfigError(
                f"{str(file)!r}: {item['class_name']!r} is not one of {', '.join(_KNOWN)}; "
                "pass your own exporter to with_exporter(...)"
            )
        configs.append(ExporterConfig(**item))
    return configs


def make_exporters(configs: Sequence[ExporterConfig | dict[str, Any]]) -> list[Exporter]:
    """Create the exporters that are enabled.

    Raises:
        ConfigError: if one cannot be created.
    """
    exporters = []
    for given in configs:
        config = ExporterConfig(**given) if isinstance(given, dict) else given
        if not config.enabled:
            continue
        try:
            made = _class_of(config.class_name)(**_arguments(config))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"exporter {config.class_name!r} cannot be created with {config.config}: {what}"
            ) from error
        if not isinstance(made, Exporter):
            raise ConfigError(f"exporter {config.class_name!r} is not an Exporter")
        exporters.append(made)
    return exporters


def _class_of(name: str) -> Any:
    module, _, short = name.rpartition(".")
    return _KNOWN[short] if short in _KNOWN else getattr(import_module(module), short)


def _arguments(config: ExporterConfig) -> dict[str, Any]:
    arguments = dict(config.config)
    if isinstance(arguments.get("logger"), str):
        arguments["logger"] = logging.getLogger(arguments["logger"])
    return arguments
