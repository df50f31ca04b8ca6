"""Something that happened, at a moment, with attributes."""

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
    """Something that happened; `Event.create` is the usual way to make one.

    Example:
        >>> Event.create("curriculum_switch", Attributes({"stage": 2}))
    """

    __slots__ = ("_attributes", "_name", "_timestamp")

    def __init__(
        self, name: EventName, timestamp: TracingTimestamp, attributes: Attributes | Mapping[str, Any] | None = None
    ) -> None:
        if not timestamp:
            raise ConfigError(f"event {text_of(name)!r} needs a time stamp; Event.create gives it the present one")
        self._name = name
        self._timestamp = timestamp
        # A copy: the caller's attributes may serve for the next event as well.
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
        """Make an event, of now unless a time is given."""
        return Event(name, timestamp or TracingTimestamp.now(), attributes)

    @property
    def name(self) -> EventName:
        """The name as it was given."""
        return self._name

    @property
    def name_str(self) -> str:
        """The name as a text."""
        return text_of(self._name)

    @property
    def timestamp(self) -> TracingTimestamp:
        """When it happened."""
        return self._timestamp

    @property
    def attributes(self) -> Attributes:
        """What is said about it."""
        return self._attributes

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain values."""
        return {
            "name": self.name_str,
            "timestamp": self._timestamp.to_json(),
            "attributes": self._attributes.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Event:
        """Make an event from what `to_json` returned."""
        if not data.get("name"):
            raise TachographError(f"an event needs a 'name', got {data!r}")
        timestamp = TracingTimestamp.from_json(data.get("timestamp") or {})
        attributes = Attributes.from_json(data.get("attributes"))
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
        said = Attributes.merge(attributes)
        values = (error_message, exception_type, exception_message, exception_traceback)
        for name, value in zip(_ERROR_FIELDS, values, strict=True):
            if value is not None:
                said.add(name, mask_text(value))
        super().__init__(StandardEventName.ERROR, timestamp, said)

    @classmethod
    def create(  # type: ignore[override] # One Logger's signature
        cls, error_message: str, exception: BaseException | None = None, exception_traceback: str | None = None
    ) -> ErrorEvent:
        """Make an event of an exception, or of a message alone."""
        if exception is None:
            return cls(TracingTimestamp.now(), error_message, exception_traceback=exception_traceback)
        trace = exception_traceback or traceback_of(exception)
        return cls(TracingTimestamp.now(), error_message, error_type(exception), message_of(exception), trace)

    @property
    def error_message(self) -> str:
        """What went wrong."""
        return str(self._attributes["error_message"].value)

    @property
    def exception_type(self) -> str | None:
        """The exception's class."""
        return self._attributes.get_str_value("exception_type")

    @property
    def exception_message(self) -> str | None:
        """The exception's own message."""
        return self._attributes.get_str_value("exception_message")

    @property
    def exception_traceback(self) -> str | None:
        """Where it was raised."""
        return self._attributes.get_str_value("exception_traceback")

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain values."""
        known = {name: self._attributes[name].value for name in _ERROR_FIELDS if name in self._attributes}
        return {**super().to_json(), **known}


class TelemetryDataError(Event):
    """A fault of telemetry itself: what was recorded is not whole."""

    __slots__ = ()

    class ErrorType(_Name):
        """How much is missing."""

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
        """Make an event of now."""
        return cls(TracingTimestamp.now(), error_type, error_message, attributes)

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain values."""
        kind = self._attributes[StandardEventAttributeName.TELEMETRY_DATA_ERROR_TYPE].value
        return {**super().to_json(), "error_type": kind, "error_message": self._attributes["error_message"].value}
