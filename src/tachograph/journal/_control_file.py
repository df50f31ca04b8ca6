"""`control.json`: the only channel from readers back to the trainer.

The file is one JSON object: the requested value of each control by name, a `timestamp`, and for each name an id that
distinguishes a new request from one already handled. ``{"log_every": 100, "timestamp": …}`` is a complete file.
Requesters replace the file atomically. The trainer only polls it, validates it, and never writes it after the start.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from tachograph._base.files import make_folder, open_lock, read_small, replace_file
from tachograph.journal._folder import RunFolder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "LOG_EVERY_MAX",
    "LOG_EVERY_MIN",
    "NOT_CONTROLS",
    "PROFILE_STEPS_MAX",
    "REQUESTS",
    "ControlFile",
    "ControlFileError",
    "Request",
    "is_number_of_steps",
    "read_requests",
    "write_requests",
]

MAX_BYTES = 64 << 10
MAX_NAMES = 256
LOG_EVERY_MIN, LOG_EVERY_MAX = 5, 2000
PROFILE_STEPS_MAX = 1000
REQUESTS = ("checkpoint_now", "profile_steps", "stop")
"""Names that request an action, not a value."""
NOT_CONTROLS = frozenset({"timestamp", "source", "ids"})


class Request(NamedTuple):
    """A requested value of a control, or a requested action."""

    name: str
    value: Any
    id: str
    source: str


class ControlFileError(Exception):
    """The control file is invalid; the message states why."""


def is_number_of_steps(value: Any) -> bool:
    """Return whether a value is valid for `profile_steps`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= PROFILE_STEPS_MAX


class ControlFile:
    """Polls the file for the trainer and returns each request once."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._last_stat: tuple[int, ...] | None = None
        self._handled: dict[str, str] = {}

    def reset(self, values: Mapping[str, Any], timestamp: float) -> None:
        """Write the current values; requests to an earlier attempt are discarded."""
        content = {**values, "timestamp": timestamp, "source": "trainer"}
        replace_file(self._folder.control, msgspec.json.encode(content), below=self._folder.path)
        self._handled = {request.name: request.id for request in read_requests(self._folder)}
        self._last_stat = self._stat()

    def poll(self) -> list[Request]:
        """Return new requests.

        Raises:
            ControlFileError: once for each invalid version of the file.
        """
        current = self._stat()
        if current == self._last_stat:
            return []
        self._last_stat = current
        if current is None:
            return []
        requests = read_requests(self._folder)
        new = [request for request in requests if self._handled.get(request.name) != request.id]
        self._handled = {request.name: request.id for request in requests}
        return [request for request in new if request.source != "trainer"]

    def _stat(self) -> tuple[int, ...] | None:
        try:
            found = os.lstat(self._folder.control)
        except OSError:
            return None
        return (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns)


def read_requests(folder: RunFolder) -> list[Request]:
    """Return the requests in the file.

    Raises:
        ControlFileError: if it is not a small regular file with a JSON object.
    """
    return _requests(_read(folder))


def write_requests(folder: RunFolder, values: Mapping[str, Any], *, source: str) -> dict[str, str]:
    """Request new values from the trainer and keep the requests of others; return the id of each request.

    Raises:
        OSError: if the folder cannot be written.
    """
    with _exclusive_access(folder):
        try:
            content = _read(folder)
        except ControlFileError:
            content = {}
        ids = {name: os.urandom(6).hex() for name in values}
        # Requests of others keep their ids; otherwise the trainer would handle them again.
        kept = {request.name: request.id for request in _requests(content)}
        content.update(values)
        content.update(timestamp=time.time(), source=source, ids={**kept, **ids})
        replace_file(folder.control, msgspec.json.encode(content), below=folder.path)
    return ids


def _requests(content: dict[str, Any]) -> list[Request]:
    timestamp = content.get("timestamp", 0)
    ids = content.get("ids")
    source = content.get("source", "file")
    return [
        Request(
            name=name[:200],
            value=value,
            id=str((ids.get(name) if isinstance(ids, dict) else None) or f"{timestamp}:{value!r:.100}"),
            source=source[:100] if isinstance(source, str) else "file",
        )
        for name, value in content.items()
        if name not in NOT_CONTROLS
    ]


def _read(folder: RunFolder) -> dict[str, Any]:
    try:
        text = read_small(folder.control, MAX_BYTES)
    except OSError as error:
        raise ControlFileError(str(error.strerror)) from None
    try:
        content = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ControlFileError("is not JSON") from None
    if not isinstance(content, dict):
        raise ControlFileError("is not a JSON object")
    if len(content) > MAX_NAMES:
        raise ControlFileError(f"has more than {MAX_NAMES} entries")
    return content


@contextlib.contextmanager
def _exclusive_access(folder: RunFolder) -> Iterator[None]:
    """Serialise requesters: two concurrent updates must not lose a request."""
    make_folder(folder.private, below=folder.path)
    descriptor = open_lock(folder.private / "control.lock", below=folder.path, mode=0o666)
    try:
        with contextlib.suppress(OSError, AttributeError):  # no locks on this system or file system
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
