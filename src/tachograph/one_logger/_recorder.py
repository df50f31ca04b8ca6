"""`DefaultRecorder`: exporters and a filter, for programs that pass a recorder to `OneLoggerProvider.configure`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

from tachograph.one_logger._exporter import Exporter
from tachograph.spans import ExportCustomizationMode, get_recorder
from tachograph.spans._filter import SpanFilter

__all__ = ["DefaultRecorder"]


class DefaultRecorder:
    """Records into the current run, and has the same methods as `TrainingRecorder`.

    The exporters and the filter take effect when it is passed to `OneLoggerProvider.configure`.

    Args:
        exporters: the exporters.
        export_customization_mode: how `span_name_filter` is used.
        span_name_filter: names of spans.

    Raises:
        ConfigError: if the mode needs names and there are none, or accepts none and there are some.
    """

    def __init__(
        self,
        exporters: Sequence[Exporter],
        export_customization_mode: ExportCustomizationMode = ExportCustomizationMode.EXPORT_ALL_SPANS,
        span_name_filter: Collection[Enum | str] | None = None,
    ) -> None:
        SpanFilter(export_customization_mode, span_name_filter)  # raises if it is invalid
        self.exporters = list(exporters)
        self.export_filter = (export_customization_mode, span_name_filter)

    def close(self) -> None:
        """Stop all open spans, and finish the run if configuring has started it."""
        recorder = get_recorder()
        recorder.close_open()
        if recorder.owns_run:
            recorder.run.finish()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(get_recorder(), name)
