"""The format of a dump: the folder ``dumps/<number>-<reason>/`` of a run, with ``dump.json`` and larger files.

`dump.json` is small and typed; `VERSION` is raised when a field changes its meaning. Each *part* is what one function
found out, such as the last steps or the statistics of the layers. A part that is too large for `dump.json` is in the
file ``<part>.json`` beside it. NaN and infinities are encoded as in the journal.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from tachograph._base.files import read_small
from tachograph._base.guard import faults
from tachograph._base.typed import convert, decode_json
from tachograph.journal import RunFolder
from tachograph.records import restore_non_finite, to_json

__all__ = [
    "DUMP_FILE",
    "DumpDocument",
    "DumpFile",
    "VERSION",
    "Verdict",
    "dump_names",
    "dumps_folder",
    "encode_part",
    "is_dump_name",
    "rank_dumps_folders",
    "read_document",
    "read_part",
    "reason_word",
]

VERSION = 1
DUMP_FILE = "dump.json"
_MAX_DOCUMENT_BYTES = 4 << 20
_MAX_PART_BYTES = 64 << 20
_NAME = re.compile(r"[1-9][0-9]{0,5}-[a-z0-9_]{1,40}")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a fault, as far as the evidence shows it."""

    kind: str
    """A word for the cause, such as `activation_overflow`."""
    text: str
    """One sentence for a person."""
    confidence: Literal["certain", "likely", "possible"] = "likely"
    details: dict[str, Any] = {}
    """The facts of the sentence, such as the name of the module."""


class DumpFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a dump beside `dump.json`."""

    name: str
    size_bytes: int
    sha256: str


class DumpDocument(msgspec.Struct, kw_only=True):
    """The content of `dump.json`."""

    version: int = VERSION
    reason: str
    """Why the dump was made: the rule of an alert, or `exception`, `hang`, `signal`, `request` and the like."""
    time: float
    """The wall time of the dump, in seconds since 1970."""
    step: int | None = None
    rank: int = 0
    alert_id: str | None = None
    verdict: Verdict | None = None
    parts: dict[str, Any] = {}
    """The parts by name; one that is in a file of its own is ``{"file": name}``."""
    files: list[DumpFile] = []
    problems: list[str] = []
    """The parts that are missing, and why."""


def dumps_folder(folder: RunFolder, rank: int = 0) -> Path:
    """Return the folder of a run, or of one of its ranks, that contains its dumps."""
    return folder.path / "dumps" if rank == 0 else folder.ranks / f"{rank:05d}.dumps"


def rank_dumps_folders(folder: RunFolder) -> list[Path]:
    """Return the folders of the ranks of a run that contain dumps, in order."""
    try:
        names = sorted(os.listdir(folder.ranks))
    except OSError:
        return []
    return [folder.ranks / name for name in names if re.fullmatch(r"\d{5,9}\.dumps", name)]


def reason_word(text: str) -> str:
    """Return a reason in the user's words as one word of lower-case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", str(text).lower()).strip("_")[:40] or "request"


def is_dump_name(name: str) -> bool:
    """Return whether a name is one that dumps have."""
    return _NAME.fullmatch(name) is not None


def dump_names(folder: Path) -> list[str]:
    """Return the names of the complete dumps in a folder of dumps, oldest first."""
    try:
        names = [path.name for path in folder.iterdir() if is_dump_name(path.name)]
    except faults(OSError):
        return []
    return sorted(names, key=lambda name: int(name.partition("-")[0]))


def encode_part(value: Any) -> bytes:
    """Return plain values as JSON."""
    return to_json(value).encode()


def read_document(path: Path) -> DumpDocument | None:
    """Return the `dump.json` in the folder of a dump, or None if it cannot be read."""
    try:
        data = read_small(path / DUMP_FILE, _MAX_DOCUMENT_BYTES)
        return convert(restore_non_finite(decode_json(data, Any)), DumpDocument)
    except faults(OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None


def read_part(path: Path, document: DumpDocument, name: str) -> Any:
    """Return a part of a dump, wherever it is; None if the dump has no such part or it cannot be read."""
    part = document.parts.get(name)
    if not isinstance(part, dict) or part.keys() != {"file"} or part["file"] != f"{name}.json":
        return part
    try:
        return restore_non_finite(decode_json(read_small(path / f"{name}.json", _MAX_PART_BYTES), Any))
    except faults(OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
