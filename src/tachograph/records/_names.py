"""Run names. A run name must be usable as the name of one folder directly inside the log folder."""

from __future__ import annotations

import re
import unicodedata

from tachograph.exceptions import RunNameError

__all__ = ["SPLIT_FOLDERS", "check_run_name", "suggest_run_name"]

_MAX_BYTES = 200  # file systems allow 255; leaves room for a suffix


def check_run_name(name: object) -> str:
    """Return a valid run name unchanged.

    Raises:
        RunNameError: if the name is invalid; the message suggests a similar valid name.
    """
    if not isinstance(name, str):
        raise RunNameError(f"a run name must be a string, got {name!r}")
    problem = _problem(name)
    if problem is None:
        return name
    proposal = suggest_run_name(name)
    hint = f"; try {proposal!r}" if proposal else ""
    raise RunNameError(f"run name {name!r} {problem}{hint}")


SPLIT_FOLDERS = frozenset({"train", "training", "val", "valid", "validation", "eval", "test"})
"""Names of folders that hold one split of a run, rather than a run."""


def suggest_run_name(text: str) -> str | None:
    """Return a valid run name that is similar to a text, or None if no character is usable."""
    name = re.sub(r"[^\w.+=@-]+", "-", text).strip(".- ")[:80]
    name = name.encode()[:_MAX_BYTES].decode(errors="ignore").rstrip(".- ")
    return name if name and _problem(name) is None else None


def _problem(name: str) -> str | None:
    if not name.strip():
        return "is empty"
    if "/" in name or "\\" in name:
        return "has a path separator; a run is one folder inside the log folder"
    if name.startswith("."):
        return "starts with a dot, which is reserved for hidden and parent folders"
    if name != name.strip() or name.endswith("."):
        return "starts or ends with a space or a dot"
    for character in name:
        # Control, format (invisible, text direction), surrogate and line or paragraph separators.
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} or character in ':*?"<>|':
            return f"contains the character {character!r}, which is not allowed"
    if len(name.encode()) > _MAX_BYTES:
        return f"is longer than {_MAX_BYTES} bytes"
    return None
