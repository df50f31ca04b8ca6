"""Decoding into typed values, safe in threads.

msgspec collects the fields of a class when a value is decoded into it for the first time, and stores the collection
before it is complete. A second thread that decodes into the same class at that moment crashes the process. So the
fields of each class are collected here, by one thread at a time, before it is used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

__all__ = ["convert", "decode_json", "decode_msgpack", "lines_decoder"]

T = TypeVar("T")

_kinds_with_fields: set[Any] = set()
_locks = [threading.Lock()]

if hasattr(os, "register_at_fork"):
    # Another thread may have held the lock when the process was forked.
    os.register_at_fork(after_in_child=lambda: _locks.__setitem__(0, threading.Lock()))


def decode_json(data: bytes | str, kind: type[T]) -> T:
    """Decode JSON into a type.

    Raises:
        msgspec.MsgspecError: if the data are not JSON, or not of this type.
    """
    _collect_fields(kind)
    return msgspec.json.decode(data, type=kind)  # noqa: TID251


def decode_msgpack(data: bytes | memoryview, kind: type[T]) -> T:
    """Decode MessagePack into a type.

    Raises:
        msgspec.MsgspecError: if the data are not MessagePack, or not of this type.
    """
    _collect_fields(kind)
    return msgspec.msgpack.decode(data, type=kind)  # noqa: TID251


def lines_decoder(kind: type[T]) -> Callable[[bytes], list[T]]:
    """Return a function that decodes lines of JSON into a type that was made at run time.

    The function raises:
        msgspec.MsgspecError: if a line is not JSON, or not of this type.
    """
    with _locks[0]:
        return msgspec.json.Decoder(kind).decode_lines  # noqa: TID251


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Convert plain Python values to a type; without `strict`, numbers may be given as text.

    Raises:
        msgspec.ValidationError: if the value is not of this type.
    """
    _collect_fields(kind)
    return msgspec.convert(value, kind, strict=strict)  # noqa: TID251


def _collect_fields(kind: Any) -> None:
    if kind not in _kinds_with_fields:
        with _locks[0]:
            msgspec.json.Decoder(kind)  # noqa: TID251
            _kinds_with_fields.add(kind)
