"""The last lines that the program printed, if `tacho run` records them."""

from __future__ import annotations

import os
from typing import Any

from tachograph._base.files import open_to_read
from tachograph._base.guard import suppress
from tachograph.journal import RunFolder, list_output_segments

__all__ = ["describe_output"]

_MAX_LINES = 200
_MAX_BYTES = 64 << 10


def describe_output(folder: RunFolder) -> dict[str, Any] | None:
    """Return the last lines of the output of a run, oldest first; None if none is recorded."""
    data = b""
    with suppress(OSError):
        for segment in reversed(list_output_segments(folder)):
            with open_to_read(segment.path, below=folder.path) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_BYTES))
                data = file.read(_MAX_BYTES) + data
            if len(data) >= _MAX_BYTES or data.count(b"\n") > _MAX_LINES:
                break
    lines = data[-_MAX_BYTES:].decode("utf-8", "replace").splitlines()[-_MAX_LINES:]
    return {"lines": lines} if lines else None
