"""The status of a run that was sent by another machine: when the sender was last heard, and how far it is behind."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tachograph._base.files import read_small
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder

__all__ = ["CopyStatus", "copy_status_path", "read_copy_status"]

_MAX_BYTES = 64 << 10


class CopyStatus(msgspec.Struct, frozen=True):
    """The last report of the sender of a copy; `.tacho/copy.json` in the folder of the copy."""

    run_id: str
    seen: float
    """When the client was heard, by the clock of the server."""
    lag_bytes: int = 0
    media_pending: int = 0
    """How many media files the client knows to be missing here."""
    media_offset: int = 0
    """All media that the first so many bytes of the journal name have arrived, unless the client has lost them."""
    skew_s: float | None = None
    """By how much the clock of the trainer's machine is ahead of the clock of the server."""


def read_copy_status(folder: RunFolder) -> CopyStatus | None:
    """Return the status of a copy; None if the run is not a copy."""
    try:
        return decode_json(read_small(copy_status_path(folder), _MAX_BYTES), CopyStatus)
    except (OSError, msgspec.MsgspecError):
        return None


def copy_status_path(folder: RunFolder) -> Path:
    """Return the path of the file that holds the status."""
    return folder.private / "copy.json"
