"""The attributes of spans and events: names with values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from tachograph.exceptions import ConfigError, TachographError
from tachograph.records import bounded_items, freeze, to_plain
from tachograph.spans._names import text_of

__all__ = [
    "Attribute",
    "AttributeValue",
    "Attributes",
    "attribute_of",
    "attributes_of",
]

AttributeValue = str | bool | int | float | list[str] | list[bool] | list[int] | list[float]

_PLAIN = frozenset({bool, int, float, type(None)})
_MAX_SHORT_CHARS = 1_000
_MAX_ITEMS = 1_001
"""One more than a record keeps of a list, so that the record says that the list was cut."""

_Self = TypeVar("_Self", bound="Attributes")


@dataclass
class Attribute:
    """A name with a value: a string, a bool, a number, or a list of one of these."""

    name: str
    value: AttributeValue

    def __post_init__(self) -> None:
        is_plain = type(self.value) in _PLAIN or (type(self.value) is str and len(self.value) <= _MAX_SHORT_CHARS)
        if not is_plain and not isinstance(self.value, Enum):
            # A value that may change, hold on to a graph of tensors or be of any size is copied, read or cut now.
            if isinstance(self.value, (list, tuple)):
                self.value = list(itertools.islice(self.value, _MAX_ITEMS))  # type: ignore[assignment]
            else:
                frozen_values = freeze({self.name: self.value})
                inner = {key.removeprefix(f"{self.name}/"): value for key, value in frozen_values.items()}
                self.value = frozen_values.get(self.name, inner)
        if isinstance(self.value, list) and self.value:
            first = (int, float) if isinstance(self.value[0], (int, float)) else type(self.value[0])
            if not all(isinstance(item, first) for item in self.value):
                kinds = ", ".join(sorted({type(item).__name__ for item in self.value}))
                raise ConfigError(
                    "All elements of a list attribute must be of primitive type, and of the same one: "
                    f"attribute {self.name!r} has {kinds}"
                )


class Attributes(dict[str, Attribute]):
    """Attributes by name.

    Example:
        >>> Attributes({"optimizer": "adam"}).add("lr", 3e-4).to_json()
        {'optimizer': 'adam', 'lr': 0.0003}
    """

    def __init__(self, dictionary: Any = None) -> None:
        super().__init__()
        if dictionary is not None and not isinstance(dictionary, Mapping):
            raise ConfigError(f"expected a dict of attributes, got {type(dictionary).__name__}")
        for name, value in bounded_items(dictionary or {}):
            self.add(name, value.value if isinstance(value, Attribute) else value)

    def add(self: _Self, name: str | Enum, value: AttributeValue) -> _Self:
        """Set one attribute; return the same object, so that calls can be chained."""
        self.add_attribute(Attribute(text_of(name), value))
        return self

    def add_attribute(self, attribute: Attribute) -> Attribute:
        """Set one attribute."""
        self[attribute.name] = attribute
        return attribute

    def add_attributes(self, other_attributes: Attributes) -> None:
        """Set several attributes."""
        self.update(other_attributes)

    def to_json(self) -> dict[str, Any]:
        """Return the names and values as JSON values."""
        return {name: _json_value(attribute.value) for name, attribute in self.items()}

    @classmethod
    def from_json(cls: type[_Self], data: Mapping[str, Any] | None) -> _Self:
        """Create attributes from names and values."""
        attributes = cls.__new__(cls)
        Attributes.__init__(attributes, data)
        return attributes

    @classmethod
    def merge(cls: type[_Self], attributes: Attributes | None = None, other: Attributes | None = None) -> _Self:
        """Return the attributes of both; where both have a name, the second wins."""
        union = cls.from_json(None)
        union.update(attributes or {})
        union.update(other or {})
        return union

    def get_bool_value(self, attribute_name: str) -> bool | None:
        """Return a bool, or None if there is no such attribute."""
        value: bool | None = self._get(attribute_name, bool, "a boolean")
        return value

    def get_int_value(self, attribute_name: str) -> int | None:
        """Return an integer, or None if there is no such attribute."""
        value: int | None = self._get(attribute_name, int, "an integer")
        return value

    def get_float_value(self, attribute_name: str) -> float | None:
        """Return a number, or None if there is no such attribute."""
        value: float | None = self._get(attribute_name, (float, int), "a float")
        return value

    def get_str_value(self, attribute_name: str) -> str | None:
        """Return a string, or None if there is no such attribute."""
        value: str | None = self._get(attribute_name, str, "a string")
        return value

    def _get(self, name: str, kind: Any, description: str) -> Any:
        if name not in self:
            return None
        value = self[name].value
        if not isinstance(value, kind):
            raise TachographError(f"Attribute {name} must be {description}. Got {str(value)[:80]}.")
        return value


def attribute_of(name: str, value: Any, report_misuse: Callable[[str], None]) -> Attribute:
    """Return an attribute; report a value that cannot be one, and store it as a string."""
    try:
        return Attribute(name, value)
    except ConfigError as error:
        report_misuse(f"{error}; stored as a string")
        return Attribute(name, str(to_plain(value, name, []))[:_MAX_SHORT_CHARS])


def attributes_of(values: Any, report_misuse: Callable[[str], None]) -> Attributes:
    """Return attributes unchanged, or created from names and values; see `attribute_of`."""
    if isinstance(values, Attributes):
        return values
    attributes = Attributes()
    if not isinstance(values, Mapping):
        report_misuse(f"expected attributes as a dict, got {type(values).__name__}")
        return attributes
    for name, value in bounded_items(values):
        attributes.add_attribute(attribute_of(text_of(name), value, report_misuse))
    return attributes


def _json_value(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
