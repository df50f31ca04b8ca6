"""The audit log of a server: who controlled, changed or deleted runs, and created or revoked keys.

One JSON line per action is appended to `.server/audit.jsonl` in the data folder. Lines are only ever added. A file that
has reached its size gets a number, `audit-000001.jsonl`, and stays; the server deletes none of them.

The server and the commands on its machine write the same file, so a lock orders them, and every line is one write at
the end of the file. A process that is killed in the middle leaves a line without its end, which readers skip; the next
writer ends it first, so that it cannot damage another line.

Values are shortened and masked like the config of a run: the log has no secrets.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from tachograph._base.files import exclusive_lock, make_folder, move_file, open_to_append, open_to_read, write_all
from tachograph._base.typed import decode_json
from tachograph.records import mask_mapping, mask_text

__all__ = ["AuditEntry", "AuditLog", "add_local_entry", "read_audit_log"]

_log = logging.getLogger("tachograph.server")
_NAME = "audit.jsonl"
_NUMBERED = re.compile(r"audit-(\d{6,})\.jsonl", re.ASCII)
_MAX_FILE_BYTES = 16 << 20
_MAX_TEXT_CHARS = 200
_MAX_ITEMS = 100
_MAX_DEPTH = 4

Outcome = Literal["done", "partly", "refused", "failed"]


class AuditEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One action. Times are seconds since the epoch."""

    time: float
    action: str
    outcome: Outcome = "done"
    user: str
    """The name of the key, the user whom a proxy has authenticated, or the user who ran a command on the server."""
    key_id: str = ""
    address: str = ""
    """The address of the client; empty for a command on the server's machine."""
    project: str | None = None
    """The project that the key is limited to; names of runs are then relative to it."""
    runs: list[str] = []
    old: Any = None
    new: Any = None
    reason: str = ""
    """Why it was refused or failed."""


class AuditLog:
    """Appends to the audit log of a data folder. Several processes and threads may do so at the same time.

    Args:
        root: the data folder.
        is_durable: flush each line to the disk.
        max_file_bytes: the size at which a new file begins.
        clock: returns the time.
    """

    def __init__(
        self,
        root: Path,
        *,
        is_durable: bool = False,
        max_file_bytes: int = _MAX_FILE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._folder = root / ".server"
        self._is_durable = is_durable
        self._max_file_bytes = max_file_bytes
        self._clock = clock

    def add(self, action: str, user: str, **fields: Any) -> None:
        """Append one action; `fields` are more fields of `AuditEntry`.

        Raises:
            OSError: if it cannot be written.
        """
        for name in ("old", "new"):
            fields[name] = _shorten(fields.get(name))
        fields["reason"] = mask_text(fields.get("reason", ""))[:_MAX_TEXT_CHARS]
        entry = AuditEntry(time=self._clock(), action=action, user=user, **fields)
        line = msgspec.json.encode(entry) + b"\n"
        make_folder(self._folder, below=self._root, mode=0o700)
        with exclusive_lock(self._folder / "audit.lock", below=self._root, mode=0o600):
            descriptor = self._open()
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                write_all(descriptor, line)
                if self._is_durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _open(self) -> int:
        path = self._folder / _NAME
        descriptor = open_to_append(path, below=self._root, mode=0o600)
        if os.fstat(descriptor).st_size < self._max_file_bytes:
            return descriptor
        os.close(descriptor)
        last_number = max(_numbered_files(self._folder), default=0)
        move_file(path, self._folder / f"audit-{last_number + 1:06}.jsonl", below=self._root)
        return open_to_append(path, below=self._root, mode=0o600)


def add_local_entry(root: Path, action: str, **fields: Any) -> None:
    """Append an action of a command on the server's machine. A failure is logged: the action has been done."""
    try:
        AuditLog(root, is_durable=True).add(action, _local_user(), **fields)
    except OSError as error:
        _log.warning("cannot write the audit log in %s: %s", root, error.strerror or error)


def read_audit_log(root: Path, *, since: float = 0.0) -> Iterator[AuditEntry]:
    """Yield the actions in the audit log of a data folder, oldest first; skip lines that are damaged.

    Args:
        root: the data folder.
        since: leave out actions before this time.

    Raises:
        OSError: if it cannot be read.
    """
    folder = root / ".server"
    numbered_files = _numbered_files(folder)
    for path in (*(numbered_files[number] for number in sorted(numbered_files)), folder / _NAME):
        with contextlib.suppress(FileNotFoundError), open_to_read(path) as lines:
            if os.fstat(lines.fileno()).st_mtime < since:
                continue
            for line in lines:
                with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                    entry = decode_json(line, AuditEntry)
                    if entry.time >= since:
                        yield entry


def _numbered_files(folder: Path) -> dict[int, Path]:
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    return {int(match[1]): folder / match[0] for match in map(_NUMBERED.fullmatch, names) if match is not None}


def _local_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _shorten(value: Any) -> Any:
    plain_value = msgspec.to_builtins(value)
    if isinstance(plain_value, dict):
        plain_value = mask_mapping(plain_value)
    return _shorten_plain(plain_value, _MAX_DEPTH)


def _shorten_plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        text = mask_text(value[: 10 * _MAX_TEXT_CHARS])
        return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…"
    if isinstance(value, (dict, list)) and depth == 0:
        return "…"
    if isinstance(value, dict):
        items = list(value.items())
        short = {str(key)[:_MAX_TEXT_CHARS]: _shorten_plain(item, depth - 1) for key, item in items[:_MAX_ITEMS]}
        return {**short, "…": len(items) - _MAX_ITEMS} if len(items) > _MAX_ITEMS else short
    if isinstance(value, list):
        short_items = [_shorten_plain(item, depth - 1) for item in value[:_MAX_ITEMS]]
        return [*short_items, "…"] if len(value) > _MAX_ITEMS else short_items
    return value
