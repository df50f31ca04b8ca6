"""Events on disk, as files of JSON lines: the queue of the sender, which the user can read, hold back or delete.

Files of an app's folder:

``<time>-<random>-<endpoint tag>.on.jsonl``
    Events that may be sent, and only to the endpoint with this tag.
``<time>-<random>.local.jsonl``
    Events that stay on this machine for good.
``<same name>.sent``
    Progress: ``done`` is the number of bytes that need no more work, because they were sent or rejected. ``refused``
    lists the rejected ranges as ``[begin, end, reason]``.

Consent is part of the name. Withdrawing it renames ``.on`` to ``.local``, which a running process notices at once
because its file is gone. The process that writes a file holds a lock on it, so that no other process sends its events;
the kernel releases the lock when the process ends, however that happens. The next process sends the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from tachograph._base.files import create_file, open_to_append, replace_file
from tachograph._base.guard import faults
from tachograph.usage._endpoint import Event
from tachograph.usage._folder import make_private_folder, read_own_file

__all__ = ["Spool", "StoredEvent", "delete_events", "keep_all_local", "open_leftovers", "prune", "read_events"]

_MAX_FILE_BYTES = 1 << 20
_MAX_TOTAL_BYTES = 16 << 20
_MAX_FILES = 200
_MAX_REJECTIONS = 100
_MAX_AGE_S = 30 * 86_400.0
_MAX_PENDING_S = 14 * 86_400.0
_SENDABLE, _LOCAL = ".on.jsonl", ".local.jsonl"


class Spool:
    """An open, locked file of events.

    Args:
        path: the file.
        is_new: whether to create it.

    Raises:
        OSError: if it cannot be opened, another process holds it, or it belongs to another user.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        self._file = -1
        if is_new:
            self._file = create_file(path, below=path.parent, mode=0o600)
        else:
            self._file = open_to_append(path, below=path.parent, must_exist=True)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(self._file)
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        self.num_bytes = status.st_size
        self._progress = _read_progress(path)

    @classmethod
    def create(cls, folder: Path, endpoint: str | None) -> Spool:
        """Create a file.

        Args:
            folder: the app's folder.
            endpoint: name of the endpoint that may receive the events; None keeps them on this machine.
        """
        make_private_folder(folder)
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")  # names sort by time
        ending = _LOCAL if endpoint is None else f"-{_tag(endpoint)}{_SENDABLE}"
        return cls(folder / f"{now}-{os.urandom(4).hex()}{ending}", is_new=True)

    def append(self, events: list[Event]) -> None:
        """Append events, all or none.

        Raises:
            OSError: if they cannot be written.
        """
        import json

        data = b"".join(json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n" for event in events)
        try:
            num_written = os.write(self._file, data)
            if num_written < len(data):
                raise OSError(f"{num_written} of {len(data)} bytes were written")
        except faults(OSError):
            os.ftruncate(self._file, self.num_bytes)
            raise
        self.num_bytes += len(data)

    @property
    def is_full(self) -> bool:
        """Whether the next events belong into another file."""
        return self.num_bytes >= _MAX_FILE_BYTES

    @property
    def is_sendable(self) -> bool:
        """Whether its events may be sent: the user has neither held them back nor deleted them."""
        return _is_sendable(self.path) and self.path.exists()

    @property
    def is_deleted(self) -> bool:
        """Whether the user deleted it, and did not just hold it back."""
        return not self.path.exists() and not _local_path(self.path).exists()

    @property
    def has_pending(self) -> bool:
        """Whether there are events to send."""
        return self._progress.done < self.num_bytes and self.is_sendable

    def keep_local(self) -> None:
        """Keep the events on this machine for good."""
        _keep_local(self.path)

    def read_pending(self, max_events: int) -> tuple[list[Event], int]:
        """Return the next events to send, and the position where they end. Torn lines are skipped."""
        begin = self._progress.done
        data = os.pread(self._file, min(self.num_bytes - begin, _MAX_FILE_BYTES), begin)
        lines = data.splitlines(keepends=True)[:max_events]
        if not lines:
            self.num_bytes = begin  # the user truncated the file
        elif len(lines) > 1 and not lines[-1].endswith(b"\n"):
            lines.pop()
        return [event for line in lines if (event := _parse_event(line))], begin + sum(map(len, lines))

    def mark_done(self, end: int, refusal: str | None = None) -> None:
        """Save that the events up to a position were sent, or were rejected for good and why."""
        import json

        refusals = self._progress.refused
        if refusal is not None:
            refusals = [*refusals, (self._progress.done, end, refusal)][-_MAX_REJECTIONS:]
        self._progress = _Progress(end, refusals)
        path = self.path if self.path.exists() else _local_path(self.path)
        if path.exists():
            data = json.dumps({"done": end, "refused": self._progress.refused}).encode()
            replace_file(_progress_path(path), data, below=path.parent, mode=0o600)

    def __del__(self) -> None:
        # Closed with the last reference and not by a method: the reading and the writing thread share the file, and
        # neither can close it under the other.
        if self._file >= 0:
            os.close(self._file)


class StoredEvent(NamedTuple):
    """An event on this machine and its state."""

    event: Event
    state: str
    """``sent``, ``refused``, ``waiting`` or ``local``."""
    refusal: str = ""
    """Why the receiver rejected it, if it did."""


class _Progress(NamedTuple):
    """Content of a ``.sent`` file."""

    done: int
    refused: list[tuple[int, int, str]]


def read_events(folder: Path, endpoint: str | None = None) -> Iterator[StoredEvent]:
    """Return all events of an app, oldest first.

    Args:
        folder: the app's folder.
        endpoint: name of the current endpoint. Events for another one, and events older than two weeks, are no longer
            waiting. None accepts every endpoint.
    """
    for path in _files(folder):
        progress, position = _read_progress(path), 0
        try:
            lines = read_own_file(path).splitlines(keepends=True)
            is_waiting = _is_sendable(path) and _is_for(path, endpoint) and not _is_too_old(path)
        except faults(OSError):
            continue  # deleted meanwhile, or another user's
        for line in lines:
            position += len(line)
            event = _parse_event(line)
            if event:
                refusals = [reason for begin, end, reason in progress.refused if begin < position <= end]
                pending_state = "waiting" if is_waiting else "local"
                state = "refused" if refusals else "sent" if position <= progress.done else pending_state
                yield StoredEvent(event, state, *refusals[:1])


def keep_all_local(folder: Path) -> None:
    """Keep the pending events of an app on this machine for good."""
    for path in _files(folder):
        if _is_sendable(path):
            _keep_local(path)


def _keep_local(path: Path) -> None:
    local_path = _local_path(path)
    try:
        if _progress_path(path).exists():
            _progress_path(path).rename(_progress_path(local_path))
        path.rename(local_path)
    except faults(OSError):
        return  # deleted meanwhile, or another user's


def open_leftovers(folder: Path, current_path: Path, endpoint: str) -> Iterator[Spool]:
    """Open one by one the files that ended processes left with pending events for an endpoint."""
    for path in _files(folder):
        if path == current_path or not _is_sendable(path) or not _is_for(path, endpoint):
            continue
        try:
            if path.stat().st_size <= _read_progress(path).done or _is_too_old(path):
                continue
            spool = Spool(path)
        except faults(OSError):
            continue  # its process is still running, or it was deleted meanwhile
        yield spool


def prune(folder: Path, current_path: Path) -> None:
    """Delete old files, and the oldest ones beyond the limits, unless their process is still running."""
    num_bytes = 0
    for number, path in enumerate(path for path in reversed(_files(folder)) if path != current_path):
        try:
            status = path.stat()
            num_bytes += status.st_size
            is_beyond_limits = number >= _MAX_FILES or num_bytes > _MAX_TOTAL_BYTES
            if is_beyond_limits or time.time() - status.st_mtime > _MAX_AGE_S:
                spool = Spool(path)  # fails while its process holds it
                _delete(path)
                del spool
        except faults(OSError):
            continue


def delete_events(folder: Path) -> None:
    """Delete all events of an app."""
    for path in _files(folder):
        _delete(path)


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    _progress_path(path).unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith((_SENDABLE, _LOCAL)))
    except faults(OSError):
        return []


def _tag(endpoint: str) -> str:
    """Return a short hash of an endpoint's name that can be part of a file name."""
    return hashlib.sha256(endpoint.encode()).hexdigest()[:8]


def _is_sendable(path: Path) -> bool:
    return path.name.endswith(_SENDABLE)


def _is_for(path: Path, endpoint: str | None) -> bool:
    return endpoint is None or path.name.endswith(f"-{_tag(endpoint)}{_SENDABLE}")


def _is_too_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _MAX_PENDING_S


def _local_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(_SENDABLE).removesuffix(_LOCAL) + _LOCAL)


def _progress_path(path: Path) -> Path:
    return path.with_suffix(".sent")


def _read_progress(path: Path) -> _Progress:
    import json

    try:
        values = json.loads(read_own_file(_progress_path(path)))
        refusals = [(int(begin), int(end), "".join(map(str, reason))) for begin, end, *reason in values["refused"]]
        return _Progress(int(values["done"]), refusals)
    except faults(OSError, ValueError, TypeError, KeyError, RecursionError):
        return _Progress(0, [])


def _parse_event(line: bytes) -> dict[str, Any]:
    """Return the event of a line; empty if the line is torn or not an event."""
    import json

    def reject_constant(_text: str) -> None:
        raise ValueError("NaN and Infinity are not JSON")

    try:
        event = json.loads(line, parse_constant=reject_constant)
    except (ValueError, RecursionError):
        return {}
    required_types = {"uuid": str, "event": str, "timestamp": str, "run_id": str, "app": str, "properties": dict}
    is_event = isinstance(event, dict) and all(
        isinstance(event.get(name), kind) for name, kind in required_types.items()
    )
    return event if is_event else {}
