"""`TrainingTelemetryProvider`: One Logger's setup interface."""

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
from typing import Any, Literal

from tachograph._base import ranks
from tachograph._base.guard import faults, guard, suppress
from tachograph._init import init
from tachograph.exceptions import ConfigError, TachographError
from tachograph.one_logger._config import LoggerConfig, OneLoggerConfig, TrainingTelemetryConfig
from tachograph.one_logger._export_config import ExporterConfig, ExporterConfigManager
from tachograph.one_logger._exporter import Exporter
from tachograph.one_logger._recorder import DefaultRecorder, ExportFilter, RunRecorder, TrainingRecorder, get_recorder
from tachograph.one_logger._relay import attach_exporters
from tachograph.recorder import DisabledRun, Run, latest_run
from tachograph.sinks import SinkDriver
from tachograph.spans import (
    DEFAULT_SPANS_EXPORT_BLACKLIST,
    ExportCustomizationMode,
    SpanFilter,
    SpanRecorder,
    metadata_texts,
    recorder_of,
    set_run_factory,
)

__all__ = ["OneLoggerProvider", "TrainingTelemetryProvider"]

_NOT_CONFIGURED = "You need to call OneLoggerProvider.instance().configure() once in your application"


class TrainingTelemetryProvider:
    """Sets up telemetry from a config, exporters and filters; `instance()` returns the only one.

    Example:
        >>> (TrainingTelemetryProvider.instance()
        ...     .with_base_config(base_config)
        ...     .with_exporter(FileExporter(file_path=Path("training_telemetry.json")))
        ...     .configure_provider())
    """

    _instance: TrainingTelemetryProvider | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be instantiated directly. Use {name}.instance() instead.")

    @classmethod
    def instance(cls) -> TrainingTelemetryProvider:
        """Return the provider."""
        with cls._lock:
            if cls._instance is None:
                cls._instance = cls.__new__(cls)
                cls._instance._clear()
            return cls._instance

    def _clear(self) -> None:
        self._base: OneLoggerConfig | None = None
        self._overrides: list[Mapping[str, Any]] = []
        self._exporters: list[Exporter] = []
        self._filter: ExportFilter | None = None
        self._config: OneLoggerConfig | None = None
        self._run: Run | None = None
        """The run to attach to, if one was chosen."""
        self._recorder: SpanRecorder | None = None
        self._handlers: list[logging.Handler] = []
        self._previous_level: int | None = None
        """The level of our logger before the config set it."""
        self._chosen_recorder: TrainingRecorder | None = None
        """The recorder that `configure` got, or the last one that `recorder` returned."""
        self._drivers: list[SinkDriver] = []
        self._is_disabled = False

    def reset(self) -> None:
        """Restore the initial state and finish the run that was started by configuring."""
        recorder = self._recorder
        if recorder is not None and recorder.owns_run:
            recorder.run.finish()
        elif recorder is not None and recorder.run.status == "running":
            recorder.run.flush()
            for driver in self._drivers:
                recorder.run.remove_follower(driver)
            recorder.propagate_exceptions, recorder.application_attributes = False, {}
            recorder.customize_export(ExportCustomizationMode.BLACKLIST_SPANS, DEFAULT_SPANS_EXPORT_BLACKLIST)
        for handler in self._handlers:
            logging.getLogger("tachograph").removeHandler(handler)
            handler.close()
        if self._previous_level is not None:
            logging.getLogger("tachograph").setLevel(self._previous_level)
        set_run_factory(None)
        self._clear()

    # Building ------------------------------------------------------------------------------------------------------

    def _start_building(self, method: str) -> TrainingTelemetryProvider:
        """Prepare for building; after a run that has ended, start from scratch."""
        if self._config is not None:
            if self._recorder is not None and self._recorder.run.status == "running":
                raise TachographError(
                    f"{method} can be called only before configure_provider is called. The run is still running: "
                    "call on_app_end() or reset() first"
                )
            self.reset()
        return self

    def with_base_config(self, one_logger_config: OneLoggerConfig) -> TrainingTelemetryProvider:
        """Set the base config, once; `with_config_override` changes fields of it."""
        if not isinstance(one_logger_config, OneLoggerConfig):
            raise ConfigError(f"with_base_config expects a OneLoggerConfig, got {type(one_logger_config).__name__}")
        self._start_building("with_base_config")
        if self._base is not None:
            raise ConfigError(
                "You can only call with_base_config once: use with_config_override({...}) to change fields, "
                "or reset() to start over"
            )
        self._base = one_logger_config
        return self

    def with_config_override(self, partial_config: Mapping[str, Any]) -> TrainingTelemetryProvider:
        """Override fields of the config; ``telemetry_config`` may be a dict, too."""
        if not isinstance(partial_config, Mapping):
            raise ConfigError(f"with_config_override expects a dict, got {type(partial_config).__name__}")
        self._start_building("with_config_override")._overrides.append(partial_config)
        return self

    def with_config_override_from_json_file(self, file_path: str | os.PathLike[str]) -> TrainingTelemetryProvider:
        """Override fields of the config from a JSON file."""
        self._start_building("with_config_override_from_json_file")
        try:
            values = json.loads(Path(file_path).read_text(encoding="utf-8"))
        except faults(OSError) as error:
            raise ConfigError(f"cannot read the config {str(file_path)!r}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{str(file_path)!r} is not valid JSON: {error}") from error
        return self.with_config_override(values)

    def with_config_override_from_config_server(self, config_server_url: str) -> TrainingTelemetryProvider:
        """Raise an error: a config is never fetched over the network."""
        raise ConfigError(
            f"{config_server_url!r}: Tachograph never fetches a config over the network; "
            "save it to a file and use with_config_override_from_json_file(path)"
        )

    def with_exporter(self, exporter: Exporter) -> TrainingTelemetryProvider:
        """Add an exporter."""
        if not isinstance(exporter, Exporter):
            raise ConfigError(f"with_exporter expects an Exporter, got {type(exporter).__name__}")
        self._start_building("with_exporter")._exporters.append(exporter)
        return self

    def with_export_config(
        self,
        exporters_config: Sequence[ExporterConfig | dict[str, Any]] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> TrainingTelemetryProvider:
        """Add exporters described in a list, in a file or by an installed package; see `ExporterConfigManager`."""
        building = self._start_building("with_export_config")
        configs = ExporterConfigManager.generate_export_config(exporters_config, config_file_path)
        building._exporters += ExporterConfigManager.create_exporters_from_config(configs)
        return self

    def with_export_customization(
        self,
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Collection[Enum | str] | None = None,
    ) -> TrainingTelemetryProvider:
        """Set which spans are recorded one by one, once."""
        SpanFilter(export_customization_mode, span_name_filter)  # raises if it is invalid
        self._start_building("with_export_customization")
        if self._filter is not None:
            raise ConfigError(
                "You can only call with_export_customization once: pass all names in one call, or reset() to start over"
            )
        self._filter = (export_customization_mode, span_name_filter)
        return self

    def configure(self, config: OneLoggerConfig, recorder: DefaultRecorder | SpanRecorder | None = None) -> None:
        """Set up telemetry in one call.

        Args:
            config: the config.
            recorder: a `DefaultRecorder` with exporters, or the recorder of the run to attach to.

        Raises:
            ConfigError: if the config or the recorder is invalid.
        """
        if recorder is not None and not isinstance(recorder, (DefaultRecorder, SpanRecorder)):
            raise ConfigError(f"configure expects a DefaultRecorder, got {type(recorder).__name__}")
        if self.one_logger_ready and self._recorder is not None and self._recorder.run.status == "running":
            raise TachographError(
                "OneLoggerProvider already configured! You must call configure() once and only once: "
                "call on_app_end() or reset() first"
            )
        try:
            self.with_base_config(config)
            if isinstance(recorder, (RunRecorder, SpanRecorder)):
                self._run = recorder.run
            elif recorder is not None:
                exporters, export_filter = recorder.hand_over()
                if isinstance(recorder, TrainingRecorder):
                    self._chosen_recorder = recorder
                self._exporters += exporters
                self.with_export_customization(*export_filter)
            self.configure_provider()
        except BaseException:
            self.reset()  # so that the next attempt starts from scratch
            raise

    def configure_provider(self) -> None:
        """Set up telemetry: attach to the current run, or start one.

        Raises:
            ConfigError: if the config is missing or invalid.
        """
        if self.one_logger_ready and self._recorder is not None and self._recorder.run.status == "running":
            raise TachographError(
                "You can only call configure_provider once per application: call on_app_end() or reset() first"
            )
        self._start_building("configure_provider")
        if self._base is None and not self._overrides:
            raise ConfigError(
                "No configuration was provided. Please provide a base config and/or config overrides: "
                "with_base_config(OneLoggerConfig(...)) or with_config_override({...})"
            )
        try:
            config = self._merge(self._base)
        except ConfigError as error:
            raise ConfigError(f"Invalid configuration! {error}") from error
        try:
            if config.is_set("logger_config") or not config.enable_for_current_rank:
                self._previous_level = logging.getLogger("tachograph").level
                _set_logging(config.logger_config, self._handlers)
            if not config.enable_for_current_rank:
                self._exporters = []
            for exporter in self._exporters:
                exporter.initialize()
            self._config = config
            self._attach(None)
        except BaseException:
            self.reset()  # so that the next attempt starts from scratch
            raise
        set_run_factory(self._attach_again)

    def _merge(self, base: OneLoggerConfig | None) -> OneLoggerConfig:
        values = base.to_dict() if base is not None else {}
        for override in self._overrides:
            _update(values, override)
        telemetry = values.get("telemetry_config")
        if isinstance(telemetry, Mapping):
            values["telemetry_config"] = TrainingTelemetryConfig(**telemetry)
        elif telemetry is not None and not isinstance(telemetry, TrainingTelemetryConfig):
            raise ConfigError(f"telemetry_config={telemetry!r:.80}: expected a TrainingTelemetryConfig")
        if isinstance(values.get("logger_config"), Mapping):
            values["logger_config"] = LoggerConfig(**values["logger_config"])
        return OneLoggerConfig(**values)

    def _attach(self, _name: str | None) -> SpanRecorder:
        """Attach to the current run, or start one for this config."""
        config = self.config
        run = self._run or latest_run()
        is_ours = run is None or run.status != "running" or run._is_forked
        if run is None or is_ours:
            run = self._start_run(config)
        recorder = self._recorder = recorder_of(run)
        recorder.owns_run = is_ours
        recorder.propagate_exceptions = config.propagate_exceptions
        recorder.application_attributes = {
            "application_name": config.application_name,
            "session_tag": str(config.session_tag),
            "is_baseline_run": bool(config.is_baseline_run),
            "summary_data_schema_version": config.summary_data_schema_version,
            "enable_for_current_rank": bool(config.enable_for_current_rank),
        }
        if config.custom_metadata:
            recorder.application_attributes["custom_metadata"] = metadata_texts(config.custom_metadata)
        if self._filter is not None:
            recorder.customize_export(*self._filter)
        recorder.configure({"world_size": config.world_size_or_fn}, record="never")
        if config.telemetry_config is not None:
            recorder.configure(config.telemetry_config.parameters(), record="later")
        self._drivers += attach_exporters(run, self._exporters)
        return recorder

    def _attach_again(self, name: str | None) -> SpanRecorder:
        """Start another run after the previous one; an exporter that fails to initialize is reported and removed."""
        ready = []
        for exporter in self._exporters:
            with guard(f"initializing {type(exporter).__name__} again"):
                exporter.initialize()
                ready.append(exporter)
        self._exporters = ready
        return self._attach(name)

    def _start_run(self, config: OneLoggerConfig) -> Run:
        if not config.enable_for_current_rank or self._is_disabled:
            return init(_run_name(config), enabled=False)
        perf_tag = _perf_tag(config)
        return init(
            _run_name(config),
            resume=True,  # the jobs of a session share one run
            session_tag=str(config.session_tag),
            perf_tag=perf_tag if isinstance(perf_tag, str) else None,
            facts={"perf_tag": perf_tag} if isinstance(perf_tag, list) else None,  # the setting is one tag
            config=config.custom_metadata,
            any_rank=config.is_set("enable_for_current_rank"),
        )

    # After building --------------------------------------------------------------------------------------------------

    @property
    def config(self) -> OneLoggerConfig:
        """The active config."""
        if self._config is None:
            raise TachographError(f"{_NOT_CONFIGURED} before accessing the config. configure_provider() does so")
        return self._config

    @property
    def recorder(self) -> TrainingRecorder:
        """The recorder of the current span, else of the current run.

        Raises:
            TachographError: if the provider is not configured and no run is running.
        """
        run = latest_run()
        if self._config is None and (run is None or run.status != "running"):
            raise TachographError(
                f"{_NOT_CONFIGURED} before accessing the recorder. configure_provider() does so, or start a run with "
                "tachograph.init(...)"
            )
        span_recorder = get_recorder().span_recorder
        chosen = self._chosen_recorder
        if chosen is None or (isinstance(chosen, RunRecorder) and not chosen.records_with(span_recorder)):
            if self._filter is None:
                chosen = RunRecorder(span_recorder, self._exporters)
            else:
                chosen = RunRecorder(span_recorder, self._exporters, self._filter)
            self._chosen_recorder = chosen
        return chosen

    @property
    def one_logger_ready(self) -> bool:
        """Whether the provider is configured."""
        return self._config is not None

    @property
    def one_logger_enabled(self) -> bool:
        """Whether anything is recorded."""
        return self._recorder is not None and self._recorder.run.enabled and not self._is_disabled

    def force_disable_logging(self) -> None:
        """Stop recording until `reset`."""
        self._is_disabled = True
        if self._recorder is not None and not isinstance(self._recorder.run, DisabledRun):
            self._recorder.close()

    def set_training_telemetry_config(self, training_telemetry_config: TrainingTelemetryConfig) -> None:
        """Set the parameters of the training, at any time and repeatedly; they apply from then on."""
        if not isinstance(training_telemetry_config, TrainingTelemetryConfig):
            raise ConfigError(
                "set_training_telemetry_config expects a TrainingTelemetryConfig, "
                f"got {type(training_telemetry_config).__name__}"
            )
        run = latest_run()
        if self._config is None and (run is None or run.status != "running"):
            raise TachographError(
                f"{_NOT_CONFIGURED} before setting the training config. configure_provider() does so, or start a run "
                "with tachograph.init(...)"
            )
        recorder = self.recorder.span_recorder
        # Before the application they belong to the application, which records them when it starts.
        record: Literal["now", "later"] = "now" if recorder.current.name else "later"
        recorder.configure(training_telemetry_config.parameters(), record=record)
        if self._config is not None:
            self._config.telemetry_config = training_telemetry_config


OneLoggerProvider = TrainingTelemetryProvider
"""One Logger has a second provider with this name; here both are one."""


def _run_name(config: OneLoggerConfig) -> str:
    """Return a run name that all jobs of a session share, and no other job."""
    parts = [str(config.application_name), str(config.session_tag)]
    rank = ranks.rank()
    if config.is_set("enable_for_current_rank") and rank > 0:
        parts.append(f"rank{rank}")
    name = "-".join(part for part in (re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts) if part)[:90]
    if all(re.fullmatch(r"\w[\w.]*", part) for part in parts) and len("-".join(parts)) <= 90:
        return name
    return f"{name}-{zlib.crc32(chr(0).join(parts).encode()):08x}"  # different tags may give the same text


def _perf_tag(config: OneLoggerConfig) -> str | list[str] | None:
    """Return the tags that are known when the run starts."""
    with suppress(Exception):  # a function that cannot tell yet; it is called again later
        tag = config.telemetry_config.perf_tag
        return [str(item) for item in tag] if isinstance(tag, list) else str(tag or "") or None
    return None


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
        except faults(OSError) as error:
            raise ConfigError(f"cannot write the log file {path!r}: {error.strerror}") from error
        handler.setLevel(level)
        handler.setFormatter(logging.Formatter(config.log_format))
        logger.addHandler(handler)
        handlers.append(handler)
