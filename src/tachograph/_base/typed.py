"""Decoding into typed values, safe in threads.

msgspec collects the fields of a class when a value is decoded into it for the first time, and stores the collection
before it is complete. A second thread that decodes into the same class at that moment crashes the process. So the
fields of each class are collected here, by one thread at a time, before it is used.

This thread does nothing else. The main thread could be interrupted by a signal handler that decodes into another class,
or waits for a thread that does, and it would hold the lock for ever.
"""

from __future__ import annotations

import _thread
import functools
import os
import queue
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

__all__ = ["convert", "decode_json", "decode_msgpack", "field_types", "lines_decoder"]

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
    return _in_own_thread(lambda: msgspec.json.Decoder(kind)).decode_lines  # noqa: TID251


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Convert plain Python values to a type; without `strict`, numbers may be given as text.

    Raises:
        msgspec.ValidationError: if the value is not of this type.
    """
    _collect_fields(kind)
    return msgspec.convert(value, kind, strict=strict)  # noqa: TID251


@functools.cache
def field_types(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the types of a struct's fields by name; msgspec evaluates all annotations at each call."""
    return types.MappingProxyType({field.name: field.type for field in msgspec.structs.fields(kind)})


def _collect_fields(kind: Any) -> None:
    if kind not in _kinds_with_fields:
        _in_own_thread(lambda: msgspec.json.Decoder(kind))  # noqa: TID251
        _kinds_with_fields.add(kind)


def _in_own_thread(make_decoder: Callable[[], T]) -> T:
    """Return a decoder that a new thread has made, one thread at a time; see the module."""
    results: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

    def make() -> None:
        try:
            with _locks[0]:
                decoder = make_decoder()
            results.put(decoder)
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            results.put(error)

    try:
        _thread.start_new_thread(make, ())  # a `Thread` has locks that the interrupted code may hold
    except RuntimeError:  # the interpreter is ending, or has no threads
        make()
    result = results.get()
    if isinstance(result, Exception):
        raise result
    return result
