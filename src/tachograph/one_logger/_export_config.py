"""Exporters described in a config: in code, in a file, or by an installed package.

A file and a package can name any class. It is imported, and used only if it is a subclass of `Exporter`; nothing else
of a file is executed. A class of One Logger's own packages stands for the class of the same name in this one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tachograph._base.config import parse_yaml
from tachograph._base.guard import faults
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.one_logger._exporter import Exporter
from tachograph.records import mask_text

__all__ = ["ExporterConfig", "ExporterConfigManager"]

_MODULE_OF_CLASS = {
    "FileExporter": "_json_exporters",
    "LoggerExporter": "_json_exporters",
    "OTelExporter": "_otel_exporter",
    "WandBExporterAsync": "_wandb_exporter",
    "WandBExporterSync": "_wandb_exporter",
}
"""The exporters of this package, and the modules that define them."""
_OWN_PACKAGES = ("", "nv_one_logger", "tachograph")
_PATH_VARIABLE = "ONE_LOGGER_EXPORTER_CONFIG_PATH"
_DEFAULT_FILES = tuple(f"one_logger_exporters_config.{suffix}" for suffix in ("yaml", "yml", "json"))


@dataclass
class ExporterConfig:
    """The class of an exporter and its arguments."""

    class_name: str
    config: dict[str, Any] = field(default_factory=dict)
    enabled: bool = True


class ExporterConfigManager:
    """Finds the configs of exporters and creates the exporters."""

    ENTRY_POINT_NAME = "nv_one_logger.exporter_configs"

    @classmethod
    def generate_export_config(
        cls,
        direct_config: Sequence[ExporterConfig | Mapping[str, Any]] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> list[ExporterConfig]:
        """Return the configs of all exporters.

        Installed packages provide configs through entry points. A file replaces them. `direct_config` is merged into
        the result by class: its arguments win.

        Args:
            direct_config: configs of exporters.
            config_file_path: the file. Otherwise it is the one that `ONE_LOGGER_EXPORTER_CONFIG_PATH` names, else
                `one_logger_exporters_config.yaml`, `.yml` or `.json` in the working directory.

        Raises:
            ConfigError: if a file or a package has an invalid config.
        """
        path = _config_file(config_file_path)
        configs = cls._package_configs() if path is None else _read_file(path)
        for item in direct_config or ():
            direct = _parse(item, "exporters_config")
            same = [config for config in configs if config.class_name == direct.class_name]
            if len(same) > 1:
                raise ConfigError(
                    f"{direct.class_name!r} is configured twice already, so exporters_config cannot change it; "
                    "configure it in one place"
                )
            if same:
                same[0].config = {**same[0].config, **direct.config}
                same[0].enabled = direct.enabled
            else:
                configs.append(direct)
        return configs

    @staticmethod
    def create_exporters_from_config(
        exporters_config: Sequence[ExporterConfig | Mapping[str, Any]], training_telemetry_config: object = None
    ) -> list[Exporter]:
        """Create the exporters that are enabled.

        Args:
            exporters_config: as returned by `generate_export_config`.
            training_telemetry_config: accepted for compatibility; exporters do not need it.

        Raises:
            ConfigError: if one cannot be created.
        """
        del training_telemetry_config
        exporter_configs = (_parse(config, "the config of an exporter") for config in exporters_config)
        return [_create(config) for config in exporter_configs if config.enabled]

    @classmethod
    def _package_configs(cls) -> list[ExporterConfig]:
        from importlib.metadata import entry_points

        configs = []
        for point in entry_points(group=cls.ENTRY_POINT_NAME):
            origin = f"entry point {point.name!r} of group {cls.ENTRY_POINT_NAME!r}"
            try:
                provider = point.load()
                default_config = (provider() if isinstance(provider, type) else provider).get_default_config()
            except Exception as error:
                raise ConfigError(f"{origin} cannot be loaded: {type(error).__name__}: {error}") from error
            configs.append(_parse(default_config, origin))
        return configs


def _config_file(argument: str | os.PathLike[str] | None) -> Path | None:
    path = argument or os.environ.get(_PATH_VARIABLE)
    if path:
        return Path(path)
    return next((Path(name) for name in _DEFAULT_FILES if os.path.isfile(name)), None)


def _read_file(file: Path) -> list[ExporterConfig]:
    try:
        text = file.read_text(encoding="utf-8")
    except faults(OSError) as error:
        raise ConfigError(f"cannot read the exporter config {str(file)!r}: {error.strerror}") from error
    import yaml

    try:
        values = json.loads(text) if file.suffix == ".json" else parse_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{str(file)!r} is not valid: {error}") from error
    exporters = values.get("exporters") if isinstance(values, dict) else None
    if not isinstance(exporters, list):
        raise ConfigError(f"{str(file)!r}: expected a list `exporters`")
    return [_parse(item, repr(str(file))) for item in exporters]


def _parse(item: ExporterConfig | Mapping[str, Any] | object, origin: str) -> ExporterConfig:
    """Return a config as an object of its own; errors never quote its arguments, which may be secrets."""
    if isinstance(item, ExporterConfig):
        return ExporterConfig(item.class_name, dict(item.config), item.enabled)
    if not isinstance(item, Mapping) or not isinstance(item.get("class_name"), str):
        raise ConfigError(f"{origin}: each exporter needs a class_name, and may have config and enabled")
    fields = ("class_name", "config", "enabled")
    for name in item:
        if name not in fields:
            raise ConfigError(f"{origin}: an exporter has no field {name!r}{did_you_mean(str(name), fields)}")
    arguments = item.get("config") or {}
    is_enabled = item.get("enabled", True)
    if not isinstance(arguments, Mapping) or not isinstance(is_enabled, bool):
        raise ConfigError(f"{origin}: {item['class_name']!r} needs a dict as config and true or false as enabled")
    return ExporterConfig(item["class_name"], dict(arguments), is_enabled)


def _create(config: ExporterConfig) -> Exporter:
    exporter_class = _load_class(config.class_name)
    arguments = dict(config.config)
    if isinstance(arguments.get("logger"), str):
        arguments["logger"] = logging.getLogger(arguments["logger"])
    try:
        return exporter_class(**arguments)
    except Exception as error:
        reason = mask_text(f"{type(error).__name__}: {error}")
        names = ", ".join(arguments) or "no arguments"
        raise ConfigError(f"exporter {config.class_name!r} cannot be created with {names}: {reason}") from error


def _load_class(name: str) -> type[Exporter]:
    """Import a class and check that it is an exporter, before anything of it is called."""
    module, _, short = name.rpartition(".")
    if short in _MODULE_OF_CLASS and module.partition(".")[0] in _OWN_PACKAGES:
        module = f"tachograph.one_logger.{_MODULE_OF_CLASS[short]}"
    elif not module:
        raise ConfigError(
            f"unknown exporter {name!r}{did_you_mean(name, _MODULE_OF_CLASS) or '.'} "
            f"Available: {', '.join(_MODULE_OF_CLASS)}, or the path of a class: package.module.Class"
        )
    try:
        exporter_class = getattr(import_module(module), short)
    except Exception as error:
        extra = {"OTelExporter": "otlp"}.get(short)
        remedy = f"; pip install 'tachograph[{extra}]'" if extra and isinstance(error, ImportError) else ""
        raise ConfigError(f"exporter {name!r} cannot be imported: {type(error).__name__}: {error}{remedy}") from error
    if not isinstance(exporter_class, type) or not issubclass(exporter_class, Exporter):
        raise ConfigError(f"{name!r} is not an exporter: it must be a subclass of tachograph.one_logger.Exporter")
    return exporter_class
