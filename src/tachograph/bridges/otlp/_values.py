"""Attributes and times in OTLP's form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from tachograph.records import finite_or_none

__all__ = ["MAX_INT", "any_value", "double", "key_values", "nanoseconds", "utf8"]

MAX_INT = 2**63 - 1


def any_value(value: Any) -> AnyValue:
    """Return a value of a record; what OTLP has no type for becomes text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -MAX_INT <= value <= MAX_INT:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=key_values(value)))
    if isinstance(value, (list, tuple)):
        return AnyValue(array_value=ArrayValue(values=map(any_value, value)))
    return AnyValue(string_value=utf8(value))


def key_values(values: Mapping[str, Any]) -> list[KeyValue]:
    """Return attributes, without the ones that are None."""
    return [KeyValue(key=utf8(key), value=any_value(value)) for key, value in values.items() if value is not None]


def utf8(value: object) -> str:
    """Return a value as text that UTF-8 can encode, unlike half of a surrogate pair."""
    return str(value).encode("utf-8", "replace").decode()


def double(value: float) -> float:
    """Return a number as a float; infinity if it is an integer beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


def nanoseconds(time_s: Any) -> int:
    """Return a time of a record in nanoseconds since the epoch; 0 if it has none that OTLP can express."""
    time_ns = (finite_or_none(time_s) or 0.0) * 1e9
    return int(time_ns) if 0 <= time_ns <= MAX_INT else 0
