"""Events: a name, a timestamp and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

from tachograph.exceptions import ConfigError, TachographError
from tachograph.spans._attributes import Attributes
from tachograph.spans._names import StandardEventAttributeName, text_of
from tachograph.spans._timestamp import TracingTimestamp

__all__ = ["EVENT_FIELDS", "Event", "EventName"]

EventName = Enum | str

EVENT_FIELDS = frozenset({"name", "span_id", "span_name"})
"""Fields of an event record; an attribute with one of these names is stored with an underscore appended."""


class Event:
    """An event; `Event.create` is the usual way to create one.

    A subclass may name the standard event that it stands for, and then defines `_from_attributes` for `from_json`.

    Example:
        >>> Event.create("curriculum_switch", Attributes({"stage": 2}))
    """

    __slots__ = ("_attributes", "_name", "_timestamp")

    _subclasses: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls, standard_name: str | None = None) -> None:
        if standard_name is not None:
            Event._subclasses[str(standard_name)] = cls

    def __init__(
        self, name: EventName, timestamp: TracingTimestamp, attributes: Attributes | Mapping[str, Any] | None = None
    ) -> None:
        if not timestamp:
            raise ConfigError(f"Event {text_of(name)} must have a valid timestamp; Event.create uses the current time")
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

    def to_record(self) -> tuple[str, dict[str, Any]]:
        """Return the kind and the fields of the record of this event."""
        attributes = self._attributes.to_json()
        attributes.pop(StandardEventAttributeName.TIMESTAMP_MSEC, None)
        fields = {f"{name}_" if name in EVENT_FIELDS else name: value for name, value in attributes.items()}
        return "event", {"name": self.name_str, **fields}

    @classmethod
    def _from_attributes(cls, timestamp: TracingTimestamp, attributes: Attributes) -> Event:
        raise NotImplementedError

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Event:
        """Create an event from the result of `to_json`."""
        if not isinstance(data, Mapping) or not data:
            raise TachographError(f"Event data must be a dictionary, got {data!r:.200}")
        if not data.get("name") or not data.get("timestamp"):
            raise TachographError(f"an Event must have a name and a timestamp: {data!r:.200}")
        timestamp = TracingTimestamp.from_json(data["timestamp"])
        attributes = Attributes.from_json(data.get("attributes"))
        subclass = Event._subclasses.get(data["name"])
        if subclass is not None:
            return subclass._from_attributes(timestamp, attributes)
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
