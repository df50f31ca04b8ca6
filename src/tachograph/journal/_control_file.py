"""`control.json`: the only way back up, from readers to the trainer.

The file is one JSON object: the names of controls with the wanted values, a `timestamp`, and for each name an id that
tells a new request from one already handled. A file with nothing but ``{"log_every": 100, "timestamp": …}`` is fine.
Whoever asks writes it, whole and at once; the trainer only ever reads it, and distrusts it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from tachograph.journal._folder import RunFolder, atomic_write, read_small

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
"""Names that ask for something to be done, not for a value."""
NOT_CONTROLS = frozenset({"timestamp", "source", "ids"})


class Request(NamedTuple):
    """One wanted value."""

    name: str
    value: Any
    id: str
    source: str


class ControlFileError(Exception):
    """The file cannot be used; the text says why."""


def is_number_of_steps(value: Any) -> bool:
    """Tell whether a value can be asked for as `profile_steps`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= PROFILE_STEPS_MAX


class ControlFile:
    """The trainer's view: returns requests it has not returned before."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: tuple[int, ...] | None = None
        self._handled: dict[str, str] = {}

    def reset(self, values: Mapping[str, Any], timestamp: float) -> None:
        """Begin with the values in force; what an earlier attempt was asked is over."""
        atomic_write(self._folder.control, msgspec.json.encode({**values, "timestamp": timestamp, "source": "trainer"}))
        self._handled = {request.name: request.id for request in read_requests(self._folder)}
        self._seen = self._look()

    def poll(self) -> list[Request]:
        """Return new requests.

        Raises:
            ControlFileError: once for each bad state of the file.
        """
        seen = self._look()
        if seen == self._seen:
            return []
        self._seen = seen
        if seen is None:
            return []
        asked = read_requests(self._folder)
        new = [request for request in asked if self._handled.get(request.name) != request.id]
        self._handled = {request.name: request.id for request in asked}
        return [request for request in new if request.source != "trainer"]

    def _look(self) -> tuple[int, ...] | None:
        try:
            found = os.lstat(self._folder.control)
        except OSError:
            return None
        return (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns)


def read_requests(folder: RunFolder) -> list[Request]:
    """Return what the file asks for.

    Raises:
        ControlFileError: if it is not a small regular file that holds a JSON object.
    """
    return _requests(_read(folder))


def write_requests(folder: RunFolder, values: Mapping[str, Any], *, source: str) -> dict[str, str]:
    """Ask the trainer for new values, keeping what others asked; return the id of each request.

    Raises:
        OSError: if the folder cannot be written.
    """
    with _one_asker(folder):
        try:
            content = _read(folder)
        except ControlFileError:
            content = {}
        ids = {name: os.urandom(6).hex() for name in values}
        # What others asked keeps the id it had, or the trainer would take it for asked again.
        kept = {request.name: request.id for request in _requests(content)}
        content.update(values)
        content.update(timestamp=time.time(), source=source, ids={**kept, **ids})
        atomic_write(folder.control, msgspec.json.encode(content))
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
        raise ControlFileError(f"asks for more than {MAX_NAMES} things")
    return content


@contextlib.contextmanager
def _one_asker(folder: RunFolder) -> Iterator[None]:
    """Two askers at once must not lose one of the requests."""
    folder.private.mkdir(exist_ok=True)
    # Not following a link: opening must not touch another file.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    with open(os.open(folder.private / "control.lock", flags, 0o666), "r+b") as file:
        with contextlib.suppress(OSError, AttributeError):  # a system or a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
