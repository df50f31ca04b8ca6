"""The exporter interface: an exporter receives every span that starts and stops, and every event.

Exporters are called in a thread of their own, which follows the journal, so they may be slow and may fail.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod

from tachograph.exceptions import TachographError
from tachograph.one_logger._error_events import ErrorEvent, TelemetryDataError
from tachograph.spans import Event, Span

__all__ = ["BaseExporter", "ExportError", "Exporter", "UnreachableError"]


class ExportError(TachographError):
    """An exporter failed.

    Attributes:
        may_retry: whether the same call may succeed later. If not, the record is dropped and reported at once.
    """

    def __init__(self, message: str = "", *, may_retry: bool = True) -> None:
        super().__init__(message)
        self.may_retry = may_retry


class UnreachableError(ExportError):
    """The receiver of an exporter cannot be reached. All records wait until it can; none is dropped."""


class Exporter(ABC):
    """Base of all exporters. A method that raises is called again later with the same arguments."""

    @abstractmethod
    def initialize(self) -> None:
        """Prepare the exporter; exceptions propagate to the code that configures the provider."""

    @abstractmethod
    def export_start(self, span: Span) -> None:
        """Export a span that has started."""

    @abstractmethod
    def export_stop(self, span: Span) -> None:
        """Export a span that has stopped."""

    @abstractmethod
    def export_event(self, event: Event, span: Span) -> None:
        """Export an event."""

    @abstractmethod
    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Export an error of the training code."""

    @abstractmethod
    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Export a fault of telemetry itself."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""


class _State(enum.Enum):
    NOT_INITIALIZED = "not initialized"
    READY = "ready"
    CLOSED = "closed"


class BaseExporter(Exporter):
    """An exporter that tracks whether it is ready. It may be initialized again after it was closed."""

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
        """Mark the exporter as ready."""
        self._state = _State.READY

    def close(self) -> None:
        """Release all resources."""
        self._state = _State.CLOSED

    def _check_state(self) -> None:
        if self._state is not _State.READY:
            problem = (
                "is closed and cannot be used anymore, unless you initialize it again"
                if self.closed
                else "not initialized. Call initialize first"
            )
            raise ExportError(f"{type(self).__name__} {problem}")
