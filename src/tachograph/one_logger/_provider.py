"""`TrainingTelemetryProvider`: One Logger's way to set things up."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from tachograph._base import ranks
from tachograph._base.guard import guard
from tachograph._init import init
from tachograph.exceptions import ConfigError, TachographError
from tachograph.one_logger._config import LoggerConfig, OneLoggerConfig, TrainingTelemetryConfig
from tachograph.one_logger._export_config import ExporterConfig, make_exporters, read_exporter_configs
from tachograph.one_logger._exporter import Exporter
from tachograph.one_logger._relay import ExporterSink
from tachograph.recorder import DisabledRun, Run, latest_run
from tachograph.sinks import SinkFollower
from tachograph.spans import (
    DEFAULT_SPANS_EXPORT_BLACKLIST,
    ExportCustomizationMode,
    TrainingRecorder,
    get_recorder,
    recorder_of,
)
from tachograph.spans._current import set_run_factory
from tachograph.spans._filter import SpanFilter
from tachograph.spans._parameters import metadata_list

__all__ = ["OneLoggerProvider", "TrainingTelemetryProvider"]


class TrainingTelemetryProvider:
    """Sets telemetry up from a config, exporters and filters; `instance()` is the only one there is.

    Example:
        >>> (TrainingTelemetryProvider.instance()
        ...     .with_base_config(base_config)
        ...     .with_exporter(FileExporter(file_path=Path("training_telemetry.json")))
        ...     .configure_provider())
    """

    _instance: TrainingTelemetryProvider | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._forget()

    @classmethod
    def instance(cls) -> TrainingTelemetryProvider:
        """Return the provider."""
        with cls._lock:
            if cls._instance is None:
                cls._instance = cls()
            return cls._instance

    def _forget(self) -> None:
        self._base: OneLoggerConfig | None = None
        self._overrides: list[Mapping[str, Any]] = []
        self._exporters: list[Exporter] = []
        self._filter: tuple[ExportCustomizationMode, Collection[Enum | str] | None] | None = None
        self._config: OneLoggerConfig | None = None
        self._recorder: TrainingRecorder | None = None
        self._handlers: list[logging.Handler] = []
        self._followers: list[SinkFollower] = []
        self._is_disabled = False

    def reset(self) -> None:
        """Forget everything, and end the run that was begun by configuring: as in a new process."""
        recorder = self._recorder
        if recorder is not None and recorder.owns_run:
            recorder.run.finish()
        elif recorder is not None and recorder.run.status == "running":
            recorder.run.flush()
            for follower in self._followers:
                recorder.run.remove_follower(follower)
            recorder.propagates, recorder.identity = False, {}
            recorder.customize_export(ExportCustomizationMode.BLACKLIST_SPANS, DEFAULT_SPANS_EXPORT_BLACKLIST)
        for handler in self._handlers:
            logging.getLogger("tachograph").removeHandler(handler)
            handler.close()
        set_run_factory(None)
        self._forget()

    # Building ------------------------------------------------------------------------------------------------------

    def _building(self) -> TrainingTelemetryProvider:
        """Begin to build: after a run that has ended, from scratch."""
        if self._config is not None:
            if self._recorder is not None and self._recorder.run.status == "running":
                raise TachographError(
                    "the provider is configured and its run goes on: end it with on_app_end() or reset() first"
                )
            self.reset()
        return self

    def with_base_config(self, config: OneLoggerConfig) -> TrainingTelemetryProvider:
        """Use a config."""
        if not isinstance(config, OneLoggerConfig):
            raise ConfigError(f"with_base_config takes a OneLoggerConfig, got {type(config).__name__}")
        self._building()._base = config
        return self

    def with_config_override(self, config_override: Mapping[str, Any]) -> TrainingTelemetryProvider:
        """Replace some fields of the config; ``telemetry_config`` may be a dict as well."""
        if not isinstance(config_override, Mapping):
            raise ConfigError(f"with_config_override takes a dict, got {type(config_override).__name__}")
        self._building()._overrides.append(config_override)
        return self

    def with_config_override_from_json_file(self, path: str | os.PathLike[str]) -> TrainingTelemetryProvider:
        """Replace some fields of the config by those of a JSON file."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the config {str(path)!r}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{str(path)!r} is not valid JSON: {error}") from error
        return self.with_config_override(values)

    def with_config_override_from_config_server(self, url: str) -> TrainingTelemetryProvider:
        """Raise: a config is never fetched from a network."""
        raise ConfigError(
            f"{url!r}: Tachograph fetches no config from a network; "
            "save it to a file and use with_config_override_from_json_file(path)"
        )

    def with_exporter(self, exporter: Exporter) -> TrainingTelemetryProvider:
        """Send everything to an exporter as well."""
        if not isinstance(exporter, Exporter):
            raise ConfigError(f"with_exporter takes an Exporter, got {type(exporter).__name__}")
        self._building()._exporters.append(exporter)
        return self

    def with_export_config(
        self,
        exporters_config: Sequence[ExporterConfig | dict[str, Any]] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> TrainingTelemetryProvider:
        """Use exporters that are described by a list, a file, or the file that the environment names."""
        building = self._building()
        building._exporters += make_exporters(read_exporter_configs(config_file_path))
        building._exporters += make_exporters(exporters_config or ())
        return self

    def with_export_customization(
        self,
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Collection[Enum | str] | None = None,
    ) -> TrainingTelemetryProvider:
        """Choose which spans are recorded one by one."""
        SpanFilter(export_customization_mode, span_name_filter)  # raises if it makes no sense
        self._building()._filter = (export_customization_mode, span_name_filter)
        return self

    def configure_provider(self) -> None:
        """Set telemetry up: attach to the current run, or begin one.

        Raises:
            ConfigError: if the config is missing or makes no sense.
        """
        self._building()
        if self._base is None:
            raise ConfigError("configure_provider() needs a config: call with_base_config(OneLoggerConfig(...)) first")
        config = self._merged(self._base)
        try:
            if config.given("logger_config"):
                _set_logging(config.logger_config, self._handlers)
            if not config.enable_for_current_rank:
                self._exporters = []
            for exporter in self._exporters:
                exporter.initialize()
            self._config = config
            self._begin(None)
        except BaseException:
            self.reset()  # so that the next try begins from scratch
            raise
        set_run_factory(self._begin_again)

    def _merged(self, base: OneLoggerConfig) -> OneLoggerConfig:
        values = base.to_dict()
        for override in self._overrides:
            _update(values, override)
        telemetry = values.get("telemetry_config")
        if isinstance(telemetry, Mapping):
            values["telemetry_config"] = TrainingTelemetryConfig(**telemetry)
        elif telemetry is not None and not isinstance(telemetry, TrainingTelemetryConfig):
            raise ConfigError(f"telemetry_config={telemetry!r:.80}: a TrainingTelemetryConfig is expected")
        if isinstance(values.get("logger_config"), Mapping):
            values["logger_config"] = LoggerConfig(**values["logger_config"])
        return OneLoggerConfig(**values)

    def _begin(self, _name: str | None) -> TrainingRecorder:
        """Attach to the run that goes on, or begin one for this config."""
        config = self.config
        run = latest_run()
        is_ours = run is None or run.status != "running" or run._is_forked
        if run is None or is_ours:
            run = self._make_run(config)
        recorder = self._recorder = recorder_of(run)
        recorder.owns_run = is_ours
        recorder.propagates = config.propagates
        recorder.identity = {
            "application_name": config.application_name,
            "session_tag": str(config.session_tag),
            "is_baseline_run": bool(config.is_baseline_run),
            "summary_data_schema_version": config.summary_data_schema_version,
            "custom_metadata": metadata_list(config.custom_metadata),
            "enable_for_current_rank": bool(config.enable_for_current_rank),
        }
        if self._filter is not None:
            recorder.customize_export(*self._filter)
        recorder.configure({"world_size": config.world_size_or_fn}, record="never")
        if config.telemetry_config is not None:
            recorder.configure(config.telemetry_config.parameters(), record="later")
        if run.folder is None:
            for exporter in self._exporters:
                exporter.close()
        else:
            for index, exporter in enumerate(self._exporters):
                sink = ExporterSink(exporter, _cursor_name(exporter, index), run.report_error)
                follower = SinkFollower(run.folder, sink, run.report_error, from_start=not run.resumed)
                self._followers.append(follower)
                run.add_follower(follower)
        return recorder

    def _begin_again(self, name: str | None) -> TrainingRecorder:
        """Begin another run after the one before has ended; an exporter that cannot is left out, and told."""
        ready = []
        for exporter in self._exporters:
            with guard(f"initializing {type(exporter).__name__} again"):
                exporter.initialize()
                ready.append(exporter)
        self._exporters = ready
        return self._begin(name)

    def _make_run(self, config: OneLoggerConfig) -> Run:
        if not config.enable_for_current_rank or self._is_disabled:
            return init(_run_name(config), enabled=False)
        return init(
            _run_name(config),
            resume=True,  # the jobs of a session are one story
            session_tag=str(config.session_tag),
            config=config.custom_metadata,
            any_rank=config.given("enable_for_current_rank"),
        )

    # Afterwards ----------------------------------------------------------------------------------------------------

    @property
    def config(self) -> OneLoggerConfig:
        """The config in force."""
        if self._config is None:
            raise TachographError("the provider is not configured: call configure_provider() first")
        return self._config

    @property
    def recorder(self) -> TrainingRecorder:
        """What records spans and events at the present place."""
        return get_recorder()

    @property
    def one_logger_ready(self) -> bool:
        """Whether the provider is configured."""
        return self._config is not None

    @property
    def one_logger_enabled(self) -> bool:
        """Whether anything is recorded."""
        return self._recorder is not None and self._recorder.run.enabled and not self._is_disabled

    def force_disable_logging(self) -> None:
        """Record nothing any more, until `reset`."""
        self._is_disabled = True
        if self._recorder is not None and not isinstance(self._recorder.run, DisabledRun):
            self._recorder.close()

    def set_training_telemetry_config(self, training_telemetry_config: TrainingTelemetryConfig) -> None:
        """Say what is known of the training, at any time and as often as need be; it holds from then on."""
        if not isinstance(training_telemetry_config, TrainingTelemetryConfig):
            raise ConfigError(
                "set_training_telemetry_config takes a TrainingTelemetryConfig, "
                f"got {type(training_telemetry_config).__name__}"
            )
        run = latest_run()
        if self._config is None and (run is None or run.status != "running"):
            raise TachographError(
                "there is nothing to configure yet: call configure_provider() first, or tachograph.init(...)"
            )
        self.recorder.configure(training_telemetry_config.parameters())
        if self._config is not None:
            self._config.update(telemetry_config=training_telemetry_config)


OneLoggerProvider = TrainingTelemetryProvider
"""One Logger has a provider below the provider; there is one here."""


def _cursor_name(exporter: Exporter, index: int) -> str:
    """Return a name under which a later job finds how far the same exporter has come."""
    path = getattr(exporter, "path", None)
    identity = f"{zlib.crc32(os.path.abspath(path).encode()):08x}" if path is not None else str(index)
    return f"exporter-{type(exporter).__name__}-{identity}"


def _run_name(config: OneLoggerConfig) -> str:
    """Return a name for the run that all jobs of the session share, and no others."""
    parts = [str(config.application_name), str(config.session_tag)]
    rank = ranks.rank()
    if config.given("enable_for_current_rank") and rank > 0:
        parts.append(f"rank{rank}")
    name = "-".join(part for part in (re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts) if part)[:90]
    if all(re.fullmatch(r"\w[\w.]*", part) for part in parts) and len("-".join(parts)) <= 90:
        return name
    return f"{name}-{zlib.crc32(chr(0).join(parts).encode()):08x}"  # the text alone does not tell them apart


def _update(values: dict[str, Any], override: Mapping[str, Any]) -> None:
    for name, value in override.items():
        present = values.get(name)
        if isinstance(value, Mapping) and isinstance(present, (TrainingTelemetryConfig, LoggerConfig)):
            values[name] = {**present.to_dict(), **value}
        elif isinstance(value, Mapping) and isinstance(present, Mapping):
            values[name] = {**present, **value}
        else:
            values[name] = value


def _set_logging(config: LoggerConfig, handlers: list[logging.Handler]) -> None:
    logger = logging.getLogger("tachograph")
    logger.setLevel(config.log_level)
    for path, level in ((config.log_file_path_for_info, "INFO"), (config.log_file_path_for_err, "ERROR")):
        if path is None:
            continue
        try:
            handler = logging.FileHandler(path)
        except OSError as error:
            raise ConfigError(f"cannot write the log file {path!r}: {error.strerror}") from error
        handler.setLevel(level)
        handler.setFormatter(logging.Formatter(config.log_format))
        logger.addHandler(handler)
        handlers.append(handler)
