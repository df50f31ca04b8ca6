"""One Logger's recorders: its methods for spans, events and errors, on top of the span recorder of a run."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

from tachograph import spans
from tachograph.exceptions import ConfigError
from tachograph.one_logger._callback_methods import RecorderCallbacks
from tachograph.one_logger._config import OneLoggerConfig
from tachograph.one_logger._error_events import ErrorEvent
from tachograph.one_logger._exporter import Exporter
from tachograph.one_logger._relay import attach_exporters
from tachograph.recorder import Run
from tachograph.sinks import SinkDriver
from tachograph.spans import (
    DEFAULT_SPANS_EXPORT_BLACKLIST,
    DISABLED_SPAN,
    Attributes,
    Event,
    ExportCustomizationMode,
    Span,
    SpanFilter,
    SpanName,
    SpanOptions,
    SpanRecorder,
    SpanScope,
    TracingTimestamp,
    attributes_of,
)

__all__ = ["DefaultRecorder", "ExportFilter", "RunRecorder", "TrainingRecorder", "get_recorder"]

ExportFilter = tuple[ExportCustomizationMode, Collection[Enum | str] | None]
_DEFAULT_FILTER: ExportFilter = (ExportCustomizationMode.BLACKLIST_SPANS, DEFAULT_SPANS_EXPORT_BLACKLIST)


class DefaultRecorder(RecorderCallbacks):
    """Records into the current run, with exporters and a filter.

    Pass it to `OneLoggerProvider.configure`, or use it alone: then the exporters and the filter take effect with its
    first span or event, until `close`.

    Args:
        exporters: the exporters.
        export_customization_mode: how `span_name_filter` is used.
        span_name_filter: names of spans.

    Raises:
        ConfigError: if an exporter is not one, or the mode needs names and there are none, or accepts none and there
            are some.
    """

    def __init__(
        self,
        exporters: Sequence[Exporter],
        export_customization_mode: ExportCustomizationMode = ExportCustomizationMode.EXPORT_ALL_SPANS,
        span_name_filter: Collection[Enum | str] | None = None,
    ) -> None:
        SpanFilter(export_customization_mode, span_name_filter)  # raises if it is invalid
        self._exporters = list(exporters)
        for exporter in self._exporters:
            if not isinstance(exporter, Exporter):
                raise ConfigError(f"{type(self).__name__} expects an Exporter, got {type(exporter).__name__}")
        self._export_customization_mode = export_customization_mode
        self._span_name_filter = span_name_filter
        self._is_configured = False
        """Whether a provider uses its exporters and its filter."""
        self._lock = threading.Lock()
        self._attached_run: Run | None = None
        """The run to which its exporters are attached, if it is used alone."""
        self._closed_recorder: SpanRecorder | None = None
        """The span recorder of that run, after `close`."""
        self._drivers: list[SinkDriver] = []

    def hand_over(self) -> tuple[list[Exporter], ExportFilter]:
        """Return the exporters and the filter to a provider, which uses them from now on."""
        self._is_configured = True
        return self._exporters, (self._export_customization_mode, self._span_name_filter)

    @property
    def span_recorder(self) -> SpanRecorder:
        """The span recorder of the current span, else of the current run."""
        if self._closed_recorder is not None:  # a new run would surprise, and its exporters are closed
            if self._closed_recorder.run.status == "running":
                self._closed_recorder.report_misuse("Recorder is already closed: its exporters receive nothing more")
            return self._closed_recorder
        if not self._is_configured and self._attached_run is None:
            with self._lock:
                if self._attached_run is None:
                    self._attach()
        return spans.get_recorder()

    def _attach(self) -> SpanRecorder:
        """Attach the exporters and the filter to the current run, or to a new one if none is running."""
        recorder = spans.get_recorder()
        if recorder.run.status != "running":
            recorder = spans.active_recorder(None)
        ready_exporters = []
        for exporter in self._exporters:
            with recorder.guarded(f"initializing {type(exporter).__name__}"):
                exporter.initialize()
                ready_exporters.append(exporter)
        recorder.customize_export(self._export_customization_mode, self._span_name_filter)
        self._drivers = attach_exporters(recorder.run, ready_exporters)
        self._attached_run = recorder.run
        return recorder

    @property
    def run(self) -> Run:
        """The run it records into."""
        return self.span_recorder.run

    @property
    def current(self) -> Span:
        """The innermost open span of the run in the current context."""
        return self.span_recorder.current

    def start(
        self,
        span_name: SpanName,
        span_attributes: Attributes | None = None,
        start_event_attributes: Attributes | None = None,
        start_time: TracingTimestamp | None = None,
        parent_span: Span | None = None,
    ) -> Span:
        """Start a span, which becomes the current one."""
        recorder = self.span_recorder
        scope = SpanScope(span_name, SpanOptions(span_attributes, start_event_attributes))
        return scope.start(recorder, recorder.times.of_timestamp(start_time, "start_time"), parent_span)

    def stop(
        self,
        span: Span | None,
        stop_event_attributes: Attributes | None = None,
        stop_time: TracingTimestamp | None = None,
    ) -> None:
        """Stop a span."""
        recorder = self.span_recorder
        recorder.check_run()
        if not isinstance(span, Span):
            recorder.report_misuse(f"No span to stop: expected a span, got {span!r:.80}")
        elif span.recorder is not None:
            stop_s = recorder.times.of_timestamp(stop_time, "stop_time")
            span.recorder.close_span(span, stop_s, stop_attributes=stop_event_attributes)
        elif span is not DISABLED_SPAN:
            recorder.report_misuse(f"Span {span.name_str!r} not found: it was not started by a recorder")

    def event(self, span: Span | Event | None, event: Event | None = None) -> Event:
        """Record an event of a span, or of the current span if only the event is given."""
        return self.span_recorder.event(span, event)

    def error(self, span: Span | None, error_message: str, exception: BaseException | None = None) -> ErrorEvent:
        """Record an error of the training code in a span."""
        event = ErrorEvent.create(error_message, exception)
        if not isinstance(span, Span):
            self.span_recorder.report_misuse(f"No span to add error to: expected a span, got {span!r:.80}")
            return event
        self.event(span, event)
        return event

    def telemetry_data_error(self, error_message: str, attributes: Attributes | None = None) -> None:
        """Record that telemetry data is missing or invalid."""
        recorder = self.span_recorder
        recorder.check_run()
        with recorder.guarded("recording a telemetry error"):
            fields: dict[str, Any] = {"kind": "telemetry_data_error", "field": "", "reason": error_message}
            if attributes:
                fields["attributes"] = attributes_of(attributes, recorder.report_misuse).to_json()
            if recorder.run.status == "running":
                recorder.run.add_record("telemetry_error", fields)

    def get_active_spans_by_name(self, span_name: SpanName) -> list[Span]:
        """Return the open spans of a name, oldest first."""
        return self.span_recorder.open_spans(span_name)

    def close(self) -> None:
        """Stop all open spans and close the exporters; finish the run if configuring or this recorder started it."""
        run = self._attached_run
        if run is None and not self._is_configured:
            return  # it was not used, or is closed
        recorder = spans.recorder_of(run) if run is not None else spans.get_recorder()
        recorder.close_open()
        if recorder.owns_run:
            recorder.run.finish()
        elif run is not None and run.status == "running":
            run.flush()
            for driver in self._drivers:
                run.remove_follower(driver)
            recorder.customize_export(*_DEFAULT_FILTER)
        if run is not None:
            self._closed_recorder = recorder
        self._attached_run, self._drivers = None, []


class TrainingRecorder(DefaultRecorder):
    """A `DefaultRecorder` for a training job, as `provider.recorder` is.

    Args:
        config: the config. Used alone, the recorder uses the training config in it; all else needs a provider.
        exporters: the exporters.
        export_customization_mode: how `span_name_filter` is used.
        span_name_filter: names of spans; by default iterations and their phases are not exported one by one.
    """

    def __init__(
        self,
        config: OneLoggerConfig,
        exporters: Sequence[Exporter] = (),
        export_customization_mode: ExportCustomizationMode = ExportCustomizationMode.BLACKLIST_SPANS,
        span_name_filter: Collection[Enum | str] | None = tuple(DEFAULT_SPANS_EXPORT_BLACKLIST),
    ) -> None:
        super().__init__(exporters, export_customization_mode, span_name_filter)
        self._config = config

    def _attach(self) -> SpanRecorder:
        recorder = super()._attach()
        recorder.configure({"world_size": self._config.world_size_or_fn}, record="never")
        if self._config.telemetry_config is not None:
            recorder.configure(self._config.telemetry_config.parameters(), record="later")
        return recorder


class RunRecorder(TrainingRecorder):
    """The recorder of one run, to which a provider or nothing has attached exporters."""

    def __init__(
        self,
        span_recorder: SpanRecorder,
        exporters: Sequence[Exporter] = (),
        export_filter: ExportFilter = _DEFAULT_FILTER,
    ) -> None:
        self._span_recorder = span_recorder
        self._exporters = list(exporters)
        self._export_customization_mode, self._span_name_filter = export_filter
        self._is_configured = True
        self._closed_recorder: SpanRecorder | None = None

    @property
    def span_recorder(self) -> SpanRecorder:
        """The span recorder of the run."""
        return self._span_recorder if self._closed_recorder is None else super().span_recorder

    def records_with(self, span_recorder: SpanRecorder) -> bool:
        """Return whether it records with a span recorder."""
        return self._span_recorder is span_recorder

    def close(self) -> None:
        """Stop all open spans and stop recording."""
        self._span_recorder.close()
        self._closed_recorder = self._span_recorder


def get_recorder() -> TrainingRecorder:
    """Return the recorder of the current span, else of the current run.

    If no run was started yet, one is started with the settings of the environment.
    """
    return RunRecorder(spans.get_recorder())
