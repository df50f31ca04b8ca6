"""Run names: one folder inside the log folder, never anything else."""

from __future__ import annotations

import re
import unicodedata

from tachograph.exceptions import RunNameError

__all__ = ["check_run_name"]

_MOST_BYTES = 200  # file systems allow 255; a suffix must fit


def check_run_name(name: object) -> str:
    """Return the name if it can be a folder of its own; raise with a name that could otherwise.

    Raises:
        RunNameError: naming the fault and a valid name close to the one given.
    """
    if not isinstance(name, str):
        raise RunNameError(f"a run name is a string, got {name!r}")
    fault = _fault(name)
    if fault is None:
        return name
    proposal = re.sub(r"[^\w.+=@-]+", "-", name).strip(".- ")[:80]
    hint = f"; try {proposal!r}" if proposal and _fault(proposal) is None else ""
    raise RunNameError(f"run name {name!r} {fault}{hint}")


def _fault(name: str) -> str | None:
    if not name.strip():
        return "is empty"
    if "/" in name or "\\" in name:
        return "has a path separator, and a run is one folder inside the log folder"
    if name.startswith("."):
        return "starts with a dot, which is kept for hidden and parent folders"
    if name != name.strip() or name.endswith("."):
        return "starts or ends with a space or a dot"
    for character in name:
        # Control, format (invisible, text direction), surrogate and line or paragraph separators.
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} or character in ':*?"<>|':
            return f"has the character {character!r}"
    if len(name.encode()) > _MOST_BYTES:
        return f"is longer than {_MOST_BYTES} bytes"
    return None
