"""What an exporter is: it is told of every span that starts and stops, and of every event.

Exporters are called in a thread of their own, which follows the journal: they may be slow, and they may fail.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod

from tachograph.exceptions import TachographError
from tachograph.spans import ErrorEvent, Event, Span, TelemetryDataError

__all__ = ["BaseExporter", "ExportError", "Exporter"]


class ExportError(TachographError):
    """An exporter could not do what it was asked to."""


class Exporter(ABC):
    """Base of all exporters. One whose method raises is called again with the same, later."""

    @abstractmethod
    def initialize(self) -> None:
        """Get ready; what is raised here is raised where the provider is configured."""

    @abstractmethod
    def export_start(self, span: Span) -> None:
        """Take a span that has begun."""

    @abstractmethod
    def export_stop(self, span: Span) -> None:
        """Take a span that has ended."""

    @abstractmethod
    def export_event(self, event: Event, span: Span) -> None:
        """Take an event."""

    @abstractmethod
    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Take an error of the training code."""

    @abstractmethod
    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Take a fault of telemetry itself."""

    @abstractmethod
    def close(self) -> None:
        """Finish up."""


class _State(enum.Enum):
    NOT_INITIALIZED = "not initialized"
    READY = "ready"
    CLOSED = "closed"


class BaseExporter(Exporter):
    """An exporter that knows whether it is ready. It may be initialized again after it was closed."""

    def __init__(self) -> None:
        self._state = _State.NOT_INITIALIZED

    @property
    def ready(self) -> bool:
        """Whether it was initialized and not closed."""
        return self._state is _State.READY

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._state is _State.CLOSED

    def initialize(self) -> None:
        """Get ready."""
        self._state = _State.READY

    def close(self) -> None:
        """Finish up."""
        self._state = _State.CLOSED

    def _check_state(self) -> None:
        if self._state is not _State.READY:
            raise ExportError(f"{type(self).__name__} is {self._state.value}; call initialize() first")
