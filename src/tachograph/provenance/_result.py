"""The result of capturing code that took longer than the run: a file in the folder `code` that the journal names."""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import Any

import msgspec

from tachograph._base.files import make_folder, read_small, replace_file
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder

__all__ = ["new_result_name", "read_result", "remove_result", "write_result"]

_NAME = re.compile(r"result-[0-9a-f]{16}\.json")
_MAX_BYTES = 16 << 20


def new_result_name() -> str:
    """Return a name that no other attempt uses."""
    return f"result-{secrets.token_hex(8)}.json"


def write_result(folder: RunFolder, name: str, data: bytes) -> None:
    """Write the fields of a `code` record.

    Raises:
        OSError: if they cannot be written.
    """
    make_folder(folder.code, below=folder.path)
    replace_file(folder.code / name, data, below=folder.path)


def read_result(folder: RunFolder, name: Any) -> dict[str, Any] | None:
    """Return the fields of a `code` record, or None if the file is missing or invalid."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
            return decode_json(read_small(folder.code / name, _MAX_BYTES, below=folder.path), dict[str, Any])
    return None


def remove_result(folder: RunFolder, name: str) -> None:
    """Delete a result that the journal has."""
    with contextlib.suppress(OSError):
        (folder.code / name).unlink()
