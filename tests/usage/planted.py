"""Secrets of every kind, values that contain them, and a search for them in bytes."""

from __future__ import annotations

import base64
import dataclasses
import decimal
import enum
import fractions
import getpass
import json
import os
import socket
import sys
from collections import OrderedDict, UserDict, UserString, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType, SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np

from tachograph.usage._fields import Group, ListOf, SchemaField

SECRETS: dict[str, tuple[str, ...]] = {
    "hf_KqRtVwYzAbCdEfGhJkMnPqRsTuVwXyZa12": (),
    "sk-proj-Zq81LmNaPs47XyTuVb29Rk55WcEd": (),
    "AKIAQ7PLN3XWV5TZ2MRB": (),
    "ghp_a8Fk2LmQ9xZr4TnWb7YcVd1Es6Gh3Jp5Ku0": (),
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b": (),
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl": (),
    "/home/alice/acme-merger/patients.jsonl": ("alice", "acme-merger", "patients"),
    "/Users/alice/Library/acme_merger": ("alice", "acme_merger"),
    "C:\\Users\\alice\\acme-merger\\patients.csv": ("alice", "acme-merger", "patients"),
    "\\\\fileserver\\projects\\acme-merger": ("fileserver", "acme-merger"),
    "~/acme-merger/run1": ("acme-merger",),
    "google/acme-merger/run1": ("acme-merger",),
    "acme-merger/patients": ("acme-merger", "patients"),
    "alice.liddell@acme-merger.example": ("alice", "liddell"),
    "192.168.17.43": ("168.17",),
    "2001:db8:85a3::8a2e:370:7334": ("85a3::8a2e",),
    "gpu-box-17.acme-merger.internal": ("gpu-box",),
    "https://alice:hunter2@git.acme-merger.example/x?token=abc": ("alice", "hunter2"),
    "s3://acme-merger/checkpoints": ("acme-merger",),
    "Summarise the diagnosis of patient Liddell in one sentence.": ("diagnosis", "Liddell"),
    "acme_merger": (),
    "AcmeMergerModel": (),
    "patientenakte-ü-日本": ("patientenakte", "日本"),
    "line one\nacme-merger: \"quoted\" 'twice'\x00\x1b[31m": ("line one", "acme-merger"),
    "llama\n/home/alice": ("alice",),
    "1.4.2+alice.laptop": ("alice", "laptop"),
    "+49 151 23456789": ("23456789", "151 234"),
}
"""Each secret with the parts that reveal it."""

NUMBERS = (4915123456789, -4915123456789, 4915123456789.0, 52.520008, 1234.5678, 1e300, 10**5000, 2**63, 0.123456)


class StickyText(str):
    """A text whose methods all return itself."""

    def __str__(self) -> str:
        return self

    __repr__ = __str__

    def __format__(self, _how: str) -> str:
        return self

    def lower(self) -> str:
        return self

    def strip(self, *_characters: Any) -> str:
        return self


class LeakyObject:
    """Returns or raises a secret from every method and attribute."""

    def __init__(self, secret: str, raises: bool = True) -> None:
        self.secret = secret
        self.raises = raises

    def _leak(self, *_arguments: Any) -> Any:
        if self.raises:
            raise ValueError(self.secret)
        return self.secret

    __str__ = __repr__ = __float__ = __int__ = __index__ = __bool__ = __eq__ = __len__ = __iter__ = _leak
    __getitem__ = __contains__ = __format__ = __fspath__ = __bytes__ = __lt__ = _leak

    def __hash__(self) -> int:
        return 7

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._leak()


class Disguised(LeakyObject):
    """Claims to be of another type."""

    def __init__(self, secret: str, kind: type) -> None:
        super().__init__(secret, False)
        self.kind = kind

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self.kind


@dataclasses.dataclass
class Record:
    secret: str


def shapes() -> dict[str, Callable[[str], Any]]:
    """Return functions that build a value containing a secret."""
    return {
        "text": str,
        "sticky text": StickyText,
        "user string": UserString,
        "numpy text": np.str_,
        "bytes": str.encode,
        "bytearray": lambda s: bytearray(s, "utf-8"),
        "path": lambda s: Path(s.replace("\x00", "")),
        "windows path": lambda s: (PureWindowsPath(s), PurePosixPath(s)),
        "list": lambda s: [s],
        "lists": lambda s: [[s], [[[s]]], s] * 8,
        "tuple": lambda s: (s, (s,)),
        "set": lambda s: {s},
        "frozenset": lambda s: frozenset({s}),
        "deque": lambda s: deque([s]),
        "iterator": lambda s: iter([s]),
        "dict": lambda s: {s: s, "name": s, "loss": s, "memory": [s], "torch": s},
        "dicts": lambda s: OrderedDict(a={"b": {s: [{s: s}]}}),
        "mapping": lambda s: (MappingProxyType({s: s}), UserDict({s: s})),
        "dataclass": Record,
        "namespace": lambda s: SimpleNamespace(name=s, memory=s),
        "type": lambda s: type("".join(filter(str.isalnum, s)) or "x", (), {"secret": s}),
        "enum": lambda s: enum.Enum("Kind", {"one": s}).one,  # type: ignore[attr-defined]
        "enum of text": lambda s: enum.Enum("Kind", {"one": s}, type=str).one,  # type: ignore[attr-defined]
        "exception": ValueError,
        "number of text": lambda s: int.from_bytes(s.encode(), "big"),
        "leaky": lambda s: LeakyObject(s, raises=False),
        "raising": LeakyObject,
        "raising ones": lambda s: [LeakyObject(s), s],
        "disguised": lambda s: [Disguised(s, kind) for kind in (bool, str, float, dict, list)],
        "as a flag": lambda s: Disguised(s, bool),
        "as a dict": lambda s: Disguised(s, dict),
        "as a list": lambda s: Disguised(s, list),
    }


def numbers() -> Iterator[Any]:
    """Return numbers with too many digits."""
    for number in NUMBERS:
        yield number
        yield str(number) if abs(number) < 1e30 else "1" * 400
        yield [number, [number]]
        if abs(number) < 1e15:
            yield from (np.float64(number), np.int64(int(number)), decimal.Decimal(number), fractions.Fraction(number))
            yield np.array([number])


def filled(fields: Iterable[tuple[str, SchemaField]], value: Callable[[], Any]) -> dict[str, Any]:
    """Return properties with a value in every field, including nested ones."""
    return {name: _filled(field, value) for name, field in fields}


def _filled(field: SchemaField, value: Callable[[], Any]) -> Any:
    if isinstance(field, Group):
        return {**filled(field.fields.items(), value), "unknown": value()}
    if isinstance(field, ListOf):
        return [_filled(field.field, value), _filled(field.field, value)]
    return value()


def machine() -> list[str]:
    """Return the names and paths that identify this machine and its user."""
    facts = [socket.gethostname(), getpass.getuser(), os.path.expanduser("~"), os.getcwd(), sys.prefix, sys.executable]
    return [fact for fact in facts if len(fact) > 5 and fact not in {"localhost", "runner"}]


def needles(secrets: Iterable[str] = tuple(SECRETS)) -> set[bytes]:
    """Return the bytes that must not be found: secrets and their parts, plain and in common encodings."""
    found: set[bytes] = set()
    for secret in secrets:
        for text in (secret, *SECRETS.get(secret, ())):
            found |= {
                text.encode(),
                repr(text)[1:-1].encode(),
                json.dumps(text)[1:-1].encode(),
                quote(text, "").encode(),
            }
            found |= {text.encode("utf-16-le"), text.encode("utf-16-be"), text.encode().hex().encode()}
            found |= {json.dumps(text, ensure_ascii=False)[1:-1].encode(), base64.b64encode(text.encode()).rstrip(b"=")}
            found |= {
                base64.urlsafe_b64encode(text.encode()).rstrip(b"="),
                str(int.from_bytes(text.encode(), "big")).encode(),
            }
    return found


def leaked(places: dict[str, bytes], secrets: Iterable[str] = tuple(SECRETS), more: Iterable[str] = ()) -> list[str]:
    """Return which secret was found where."""
    wanted = needles(secrets) | {text.encode() for text in more}
    return [f"{needle!r} in {place}" for place, data in places.items() for needle in sorted(wanted) if needle in data]


def leaves(value: Any) -> Iterator[Any]:
    """Return every leaf of a JSON value, without keys."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value
