"""`.tacho/destination.json`: the server that a run is to be sent to, for the process that sends it.

A run in the mode `cloud` or `offline` has this file; the last attempt of a run decides. A run without it stays on this
machine.
"""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from tachograph._base.files import is_trusted, make_folder, read_small, replace_file
from tachograph._base.guard import faults
from tachograph._base.typed import decode_json
from tachograph.journal._folder import RunFolder

__all__ = ["Destination", "read_destination", "remove_destination", "write_destination"]

_MAX_BYTES = 64 << 10


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is to be sent, and when."""

    server: str | None
    """The address of the server; None if it was not known when the run started."""
    mode: Literal["cloud", "offline"]
    """`cloud`: while the run is recorded; `offline`: on request."""
    remote_control: bool = False
    """Whether the server may pass requests on to the run."""

    def sync_command(self, path: str) -> str:
        """Return the command that sends the run at a path."""
        return f"tacho sync {shlex.quote(path)}{'' if self.server else ' --server URL'}"


def write_destination(folder: RunFolder, destination: Destination) -> None:
    """Mark a run to be sent.

    Raises:
        OSError: if the file cannot be written.
    """
    make_folder(folder.private, below=folder.path)
    replace_file(folder.destination, msgspec.json.encode(destination), below=folder.path, mode=0o644)


def remove_destination(folder: RunFolder) -> None:
    """Remove the mark of an earlier attempt.

    Raises:
        OSError: if the file cannot be removed.
    """
    folder.destination.unlink(missing_ok=True)


def read_destination(folder: RunFolder) -> Destination | None:
    """Return where a run is to be sent; None if it is not, or if the file is damaged or belongs to another user."""
    try:
        data = read_small(folder.destination, _MAX_BYTES, below=folder.path)
        # Records and a key go to this address, so it must come from someone who could replace the file anyway.
        return decode_json(data, Destination) if is_trusted(folder.destination) else None
    except faults(OSError, msgspec.MsgspecError, RecursionError):
        return None
