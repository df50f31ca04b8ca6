"""Events: a name, a timestamp and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from tachograph.exceptions import ConfigError, TachographError
from tachograph.recorder import error_message as message_of
from tachograph.recorder import error_type, traceback_of
from tachograph.records import mask_text
from tachograph.spans._attributes import Attributes
from tachograph.spans._names import StandardEventAttributeName, StandardEventName, _Name, text_of
from tachograph.spans._timestamp import TracingTimestamp

__all__ = ["ErrorEvent", "Event", "EventName", "TelemetryDataError"]

EventName = Enum | str


class Event:
    """An event; `Event.create` is the usual way to create one.

    Example:
        >>> Event.create("curriculum_switch", Attributes({"stage": 2}))
    """

    __slots__ = ("_attributes", "_name", "_timestamp")

    def __init__(
        self, name: EventName, timestamp: TracingTimestamp, attributes: Attributes | Mapping[str, Any] | None = None
    ) -> None:
        if not timestamp:
            raise ConfigError(f"event {text_of(name)!r} needs a timestamp; Event.create uses the current time")
        self._name = name
        self._timestamp = timestamp
        # A copy: the caller may reuse the attributes for the next event.
        if isinstance(attributes, Attributes):
            self._attributes = type(attributes).merge(attributes)
        else:
            self._attributes = Attributes(attributes)
        self._attributes.add(StandardEventAttributeName.TIMESTAMP_MSEC, timestamp.milliseconds_since_epoch)

    @classmethod
    def create(
        cls,
        name: EventName,
        attributes: Attributes | Mapping[str, Any] | None = None,
        timestamp: TracingTimestamp | None = None,
    ) -> Event:
        """Create an event, at the current time unless a timestamp is given."""
        return Event(name, timestamp or TracingTimestamp.now(), attributes)

    @property
    def name(self) -> EventName:
        """The name as given: a string or a member of an enum."""
        return self._name

    @property
    def name_str(self) -> str:
        """The name as a string."""
        return text_of(self._name)

    @property
    def timestamp(self) -> TracingTimestamp:
        """The time of the event."""
        return self._timestamp

    @property
    def attributes(self) -> Attributes:
        """The attributes of the event."""
        return self._attributes

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON values."""
        return {
            "name": self.name_str,
            "timestamp": self._timestamp.to_json(),
            "attributes": self._attributes.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Event:
        """Create an event from the result of `to_json`."""
        if not data.get("name"):
            raise TachographError(f"an event needs a 'name', got {data!r}")
        timestamp = TracingTimestamp.from_json(data.get("timestamp") or {})
        attributes = Attributes.from_json(data.get("attributes"))
        if data["name"] == StandardEventName.TELEMETRY_DATA_ERROR:
            kind = TelemetryDataError.ErrorType(attributes[StandardEventAttributeName.TELEMETRY_DATA_ERROR_TYPE].value)
            return TelemetryDataError(timestamp, kind, str(attributes["error_message"].value), attributes)
        if data["name"] == StandardEventName.ERROR:
            known = {name: str(attributes[name].value) for name in _ERROR_FIELDS if name in attributes}
            return ErrorEvent(timestamp, known.pop("error_message", ""), attributes=attributes, **known)
        return Event(data["name"], timestamp, attributes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (self.name_str, self._timestamp, self._attributes) == (
            other.name_str,
            other._timestamp,
            other._attributes,
        )

    def __hash__(self) -> int:
        return hash((self.name_str, self._timestamp))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name_str!r}, {self._attributes.to_json()})"


_ERROR_FIELDS = ("error_message", "exception_type", "exception_message", "exception_traceback")


class ErrorEvent(Event):
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
            raise ConfigError(f"exception_type={exception_type!r} needs an exception_message")
        merged = Attributes.merge(attributes)
        values = (error_message, exception_type, exception_message, exception_traceback)
        for name, value in zip(_ERROR_FIELDS, values, strict=True):
            if value is not None:
                merged.add(name, mask_text(value))
        super().__init__(StandardEventName.ERROR, timestamp, merged)

    @classmethod
    def create(  # type: ignore[override] # One Logger's signature
        cls, error_message: str, exception: BaseException | None = None, exception_traceback: str | None = None
    ) -> ErrorEvent:
        """Create an event from an exception, or from a message alone."""
        if exception is None:
            return cls(TracingTimestamp.now(), error_message, exception_traceback=exception_traceback)
        trace = exception_traceback or (traceback_of(exception) if exception.__traceback__ is not None else None)
        return cls(TracingTimestamp.now(), error_message, error_type(exception), message_of(exception), trace)

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
        known = {name: self._attributes[name].value for name in _ERROR_FIELDS if name in self._attributes}
        return {**super().to_json(), **known}


class TelemetryDataError(Event):
    """A fault of telemetry itself: recorded data is missing or incomplete."""

    __slots__ = ()

    class ErrorType(_Name):
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
