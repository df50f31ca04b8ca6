"""Reads the wire format of protocol buffers, without the package and without schemas.

A message is a sequence of fields, each with a number and a value. The reader of a message knows what its numbers mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["as_double", "as_signed", "as_text", "read_doubles", "read_fields", "read_varints"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_double = struct.Struct("<d")
_float = struct.Struct("<f")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: an int for a varint, and bytes for everything else.

    Raises:
        ValueError: if the message is damaged.
    """
    position, end = 0, len(data)
    while position < end:
        key = data[position]
        position += 1
        if key > 0x7F:
            key, position = _read_varint(data, position - 1)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, position = _read_varint(data, position)
        else:
            if kind == _BYTES:
                if position < end and data[position] < 0x80:  # almost all sizes are a single byte
                    size, position = data[position], position + 1
                else:
                    size, position = _read_varint(data, position)
            elif kind in {_FIXED32, _FIXED64}:
                size = 4 if kind == _FIXED32 else 8
            else:
                raise ValueError(f"unknown wire type {kind}")
            value = data[position : position + size]
            position += size
            if position > end:
                raise ValueError("a field ends after its message")
        yield key >> 3, value


def as_double(value: int | bytes) -> float:
    """Return a field of type double or float."""
    data = _as_bytes(value)
    number: float = (_double if len(data) == 8 else _float).unpack(data)[0]
    return number


def as_signed(value: int | bytes) -> int:
    """Return a field of type int64 or int32."""
    if not isinstance(value, int):
        raise ValueError("expected an integer")
    return value - (1 << 64) if value >> 63 else value


def as_text(value: int | bytes) -> str:
    """Return a field of type string."""
    return _as_bytes(value).decode("utf-8", "replace")


def read_doubles(value: int | bytes) -> list[float]:
    """Return the packed values of a repeated field of type double."""
    data = _as_bytes(value)
    return [item for (item,) in _double.iter_unpack(data[: len(data) // 8 * 8])]


def read_varints(value: int | bytes) -> list[int]:
    """Return the values of a repeated field of integers, packed or not."""
    if isinstance(value, int):
        return [value]
    numbers, position = [], 0
    while position < len(value):
        number, position = _read_varint(value, position)
        numbers.append(number)
    return numbers


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("expected bytes")
    return value


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    for index in range(position, min(position + _MAX_VARINT_BYTES, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, index + 1
        shift += 7
    raise ValueError("an integer is not complete")
