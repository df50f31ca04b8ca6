"""One Logger's events of errors: in the training code, and of telemetry itself."""

from __future__ import annotations

from typing import Any

from tachograph.exceptions import ConfigError
from tachograph.recorder import error_message as message_of
from tachograph.recorder import error_type, traceback_of
from tachograph.records import mask_text
from tachograph.spans import (
    Attributes,
    Event,
    NameEnum,
    StandardEventAttributeName,
    StandardEventName,
    TracingTimestamp,
)

__all__ = ["ErrorEvent", "TelemetryDataError"]

_ERROR_FIELDS = ("error_message", "exception_type", "exception_message", "exception_traceback")


class ErrorEvent(Event, standard_name=StandardEventName.ERROR):
    """An error of the training code."""

    __slots__ = ()

    def __init__(
        self,
        timestamp: TracingTimestamp,
        error_message: str,
        exception_type: str | None = None,
        exception_message: str | None = None,
        exception_traceback: str | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        if exception_type is not None and exception_message is None:
            raise ConfigError(f"exception_message must be provided when exception_type is set: {exception_type!r}")
        error_attributes = Attributes.merge(attributes)
        values = (error_message, exception_type, exception_message, exception_traceback)
        for name, value in zip(_ERROR_FIELDS, values, strict=True):
            if value is not None:
                error_attributes.add(name, mask_text(value))
        super().__init__(StandardEventName.ERROR, timestamp, error_attributes)

    @classmethod
    def create(  # type: ignore[override] # One Logger's signature
        cls, error_message: str, exception: BaseException | None = None, exception_traceback: str | None = None
    ) -> ErrorEvent:
        """Create an event from an exception, or from a message alone."""
        if exception is None:
            return cls(TracingTimestamp.now(), error_message, exception_traceback=exception_traceback)
        trace = exception_traceback or (traceback_of(exception) if exception.__traceback__ is not None else None)
        return cls(TracingTimestamp.now(), error_message, error_type(exception), message_of(exception), trace)

    @classmethod
    def _from_attributes(cls, timestamp: TracingTimestamp, attributes: Attributes) -> ErrorEvent:
        values = {name: str(attributes[name].value) for name in _ERROR_FIELDS if name in attributes}
        return cls(timestamp, values.pop("error_message", ""), attributes=attributes, **values)

    @property
    def error_message(self) -> str:
        """The error message."""
        return str(self._attributes["error_message"].value)

    @property
    def exception_type(self) -> str | None:
        """The class of the exception."""
        return self._attributes.get_str_value("exception_type")

    @property
    def exception_message(self) -> str | None:
        """The message of the exception."""
        return self._attributes.get_str_value("exception_message")

    @property
    def exception_traceback(self) -> str | None:
        """The traceback of the exception."""
        return self._attributes.get_str_value("exception_traceback")

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON values."""
        values = {name: self._attributes[name].value for name in _ERROR_FIELDS if name in self._attributes}
        return {**super().to_json(), **values}

    def to_record(self) -> tuple[str, dict[str, Any]]:
        """Return the kind and the fields of the record, which has the form of an exception's record."""
        fields = {
            "error_type": self.exception_type,
            "error_message": self.exception_message or self.error_message,
            "traceback": self.exception_traceback,
            "fatal": False,
            "where": self.error_message,
        }
        return "error", fields


class TelemetryDataError(Event, standard_name=StandardEventName.TELEMETRY_DATA_ERROR):
    """A fault of telemetry itself: recorded data is missing or incomplete."""

    __slots__ = ()

    class ErrorType(NameEnum):
        """How much data is missing."""

        NO_TELEMETRY_DATA = "no_telemetry_data"
        INCOMPLETE_TELEMETRY_DATA = "incomplete_telemetry_data"

    def __init__(
        self,
        timestamp: TracingTimestamp,
        error_type: TelemetryDataError.ErrorType,
        error_message: str,
        attributes: Attributes | None = None,
    ) -> None:
        super().__init__(StandardEventName.TELEMETRY_DATA_ERROR, timestamp, attributes)
        self._attributes.add(StandardEventAttributeName.TELEMETRY_DATA_ERROR_TYPE, error_type.value)
        self._attributes.add(StandardEventAttributeName.ERROR_MESSAGE, error_message)

    @classmethod
    def create(  # type: ignore[override] # One Logger's signature
        cls, error_type: TelemetryDataError.ErrorType, error_message: str, attributes: Attributes | None = None
    ) -> TelemetryDataError:
        """Create an event at the current time."""
        return cls(TracingTimestamp.now(), error_type, error_message, attributes)

    @classmethod
    def _from_attributes(cls, timestamp: TracingTimestamp, attributes: Attributes) -> TelemetryDataError:
        kind = cls.ErrorType(attributes[StandardEventAttributeName.TELEMETRY_DATA_ERROR_TYPE].value)
        return cls(timestamp, kind, str(attributes[StandardEventAttributeName.ERROR_MESSAGE].value), attributes)

    @property
    def error_type(self) -> TelemetryDataError.ErrorType:
        """How much data is missing."""
        return self.ErrorType(self._attributes[StandardEventAttributeName.TELEMETRY_DATA_ERROR_TYPE].value)

    @property
    def error_message(self) -> str:
        """The error message."""
        return str(self._attributes[StandardEventAttributeName.ERROR_MESSAGE].value)

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON values."""
        return {**super().to_json(), "error_type": self.error_type.value, "error_message": self.error_message}
