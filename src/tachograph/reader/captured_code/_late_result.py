"""Results of capturing code in files of their own.

Runs of earlier versions could end before their code was captured. Their `code` record names a file in the folder `code`
that has the other fields.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tachograph._base.files import read_small
from tachograph._base.guard import suppress
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder

__all__ = ["read_capture_result"]

_NAME = re.compile(r"result-[0-9a-f]{16}\.json")
_MAX_BYTES = 16 << 20


def read_capture_result(folder: RunFolder, name: Any) -> dict[str, Any] | None:
    """Return the fields of a `code` record, or None if the file is missing or invalid."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        with suppress(OSError, msgspec.MsgspecError, RecursionError):
            return decode_json(read_small(folder.code / name, _MAX_BYTES, below=folder.path), dict[str, Any])
    return None
