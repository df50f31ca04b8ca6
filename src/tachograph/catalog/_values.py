"""The meaning of values in an expression: a number, a switch, a time or a text."""

from __future__ import annotations

import functools
import re
from datetime import datetime, timedelta

import msgspec

__all__ = ["Ago", "Meaning", "Period", "Value", "as_number", "meaning_of", "parse_age_s", "parse_size_bytes"]

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)([a-zA-Z]*)")
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2})?(Z|[-+]\d{2}:\d{2})?)?)?")


class Value(msgspec.Struct, frozen=True):
    """A value as it was written, and its meaning."""

    text: str
    is_quoted: bool = False


class Period(msgspec.Struct, frozen=True):
    """A date or time, as the range from its first to its last moment, in seconds since the epoch."""

    first: float
    end: float


class Ago(msgspec.Struct, frozen=True):
    """A time before now."""

    seconds: float


Meaning = float | bool | str | Period | Ago


@functools.lru_cache(maxsize=1_000)
def meaning_of(value: Value) -> Meaning:
    """Return the number, switch, time or text that a value stands for."""
    if value.is_quoted:
        return value.text
    if value.text.lower() in {"true", "false"}:
        return value.text.lower() == "true"
    if _DATE.fullmatch(value.text):
        period = _period(value.text)
        if period is not None:
            return period
    number = _NUMBER.fullmatch(value.text)
    if number is None:
        return value.text
    size, unit = float(number[1]), number[2]
    if unit in _UNITS_S:
        # A duration is never negative, so a negative one means a time ago.
        return Ago(-size * _UNITS_S[unit]) if value.text.startswith("-") else size * _UNITS_S[unit]
    if not unit or unit in _FACTORS:
        return size * _FACTORS.get(unit, 1.0)
    return value.text


def _period(text: str) -> Period | None:
    try:
        if len(text) == 7:
            first = datetime.fromisoformat(f"{text}-01")
            end = (first + timedelta(days=32)).replace(day=1)
        else:
            first = datetime.fromisoformat(text.replace("Z", "+00:00"))
            has_seconds = text.count(":") >= (3 if re.search(r"[-+]\d{2}:\d{2}$", text[10:]) else 2)
            end = first + (
                timedelta(days=1) if len(text) == 10 else timedelta(seconds=1) if has_seconds else timedelta(minutes=1)
            )
        return Period(first.timestamp(), end.timestamp())  # without a zone: in the zone of this machine
    except (ValueError, OverflowError, OSError):
        return None


def as_number(text: str) -> float | None:
    """Return the number that a text consists of, or None."""
    try:
        return float(text) if len(text) <= 40 and text.strip() == text and "_" not in text else None
    except ValueError:
        return None


def parse_age_s(text: str) -> float | None:
    """Return the seconds of a duration with a unit, such as ``30d``; None if it is not one."""
    number = _NUMBER.fullmatch(text.strip())
    if number is None or number[2] not in _UNITS_S or float(number[1]) < 0:
        return None
    return float(number[1]) * _UNITS_S[number[2]]


def parse_size_bytes(text: str) -> int | None:
    """Return the bytes of a size such as ``10MB``, ``10M`` or ``5000``; None if it is not one."""
    number = _NUMBER.fullmatch(text.strip())
    unit = number[2].removesuffix("B") if number is not None else ""
    if number is None or (unit and unit not in _FACTORS):
        return None
    size_bytes = float(number[1]) * _FACTORS.get(unit, 1.0)
    return int(size_bytes) if 0 <= size_bytes < 1e18 else None
