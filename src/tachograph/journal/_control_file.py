"""`control.json`: the only channel from readers back to the trainer.

The file is one JSON object: the requested value of each control by name, a `timestamp`, and for each name an id that
distinguishes a new request from one already handled. ``{"log_every": 100, "timestamp": …}`` is a complete file.
Requesters replace the file atomically. The trainer only polls it, validates it, and never writes it after the start.

A requester cannot know whether the trainer has read the request that it replaces. So it moves that request to
`replaced`, a list of the latest ones. The trainer returns each request once, by its id, in the order in which they were
made; one that was replaced between two polls is answered, too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from tachograph._base.files import make_folder, open_lock, read_small, replace_file
from tachograph._base.guard import faults, suppress
from tachograph._base.typed import convert, decode_json
from tachograph.journal._folder import RunFolder

try:
    import fcntl
except faults(ImportError):  # Windows
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
REQUESTS = ("checkpoint_now", "dump_now", "profile_steps", "stop")
"""Names that request an action, not a value."""
NOT_CONTROLS = frozenset({"timestamp", "source", "sources", "ids", "replaced"})
_MAX_REPLACED = 200


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
        self._returned_ids: set[tuple[str, str]] = set()
        """Name and id of each request in the file that `poll` has returned."""

    def reset(self, values: Mapping[str, Any], timestamp: float) -> None:
        """Write the current values; requests to an earlier attempt are discarded."""
        content = {**values, "timestamp": timestamp, "source": "trainer"}
        replace_file(self._folder.control, msgspec.json.encode(content), below=self._folder.path)
        self._returned_ids = {(request.name, request.id) for request in read_requests(self._folder)}
        self._last_stat = self._stat()

    def poll(self) -> list[Request]:
        """Return new requests, in the order in which they were made.

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
        new = [request for request in requests if (request.name, request.id) not in self._returned_ids]
        self._returned_ids = {(request.name, request.id) for request in requests}
        return [request for request in new if request.source != "trainer"]

    def _stat(self) -> tuple[int, ...] | None:
        try:
            status = os.lstat(self._folder.control)
        except faults(OSError):
            return None
        return (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns)


def read_requests(folder: RunFolder) -> list[Request]:
    """Return the requests in the file: first the replaced ones, then the current ones.

    Raises:
        ControlFileError: if it is not a small regular file with a JSON object.
    """
    content = _read_content(folder)
    return [*_replaced_requests(content), *_requests(content)]


def write_requests(
    folder: RunFolder, values: Mapping[str, Any], *, source: str, ids: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Request new values from the trainer and keep the requests of others; return the id of each request.

    Args:
        folder: the run.
        values: the value of each control.
        source: the program that requests them.
        ids: the id of each request, if it was made elsewhere; new ones by default.

    Raises:
        OSError: if the folder cannot be written.
    """
    with _exclusive_access(folder):
        try:
            content = _read_content(folder)
        except faults(ControlFileError):
            content = {}
        ids = {name: (ids or {}).get(name) or os.urandom(6).hex() for name in values}
        # Requests of others keep their ids; otherwise the trainer would handle them again.
        current_requests = _requests(content)
        replaced_requests = [
            *_replaced_requests(content),
            *(request for request in current_requests if request.name in values),
        ]
        content.update(values)
        content.update(
            timestamp=time.time(),
            source=source,
            sources={**{request.name: request.source for request in current_requests}, **dict.fromkeys(values, source)},
            ids={**{request.name: request.id for request in current_requests}, **ids},
            replaced=replaced_requests[-_MAX_REPLACED:],
        )
        while len(data := msgspec.json.encode(content)) > MAX_BYTES and content["replaced"]:
            content["replaced"] = content["replaced"][len(content["replaced"]) // 2 + 1 :]
        replace_file(folder.control, data, below=folder.path)
    return ids


def _requests(content: dict[str, Any]) -> list[Request]:
    timestamp = content.get("timestamp", 0)
    ids, sources = (entry if isinstance(entry := content.get(name), dict) else {} for name in ("ids", "sources"))
    source = content.get("source", "file")
    return [
        Request(
            name=name[:200],
            value=value,
            id=str(ids.get(name) or f"{timestamp}:{value!r:.100}"),
            source=_source(sources.get(name, source)),
        )
        for name, value in content.items()
        if name not in NOT_CONTROLS
    ]


def _replaced_requests(content: dict[str, Any]) -> list[Request]:
    """Return the requests that later ones replaced; none if the list is invalid."""
    try:
        requests = convert(content.get("replaced", []), list[Request])
    except faults(msgspec.ValidationError):
        return []
    return [Request(item.name[:200], item.value, item.id[:200], _source(item.source)) for item in requests]


def _source(source: Any) -> str:
    return source[:100] if isinstance(source, str) else "file"


def _read_content(folder: RunFolder) -> dict[str, Any]:
    try:
        text = read_small(folder.control, MAX_BYTES)
    except faults(OSError) as error:
        raise ControlFileError(str(error.strerror)) from None
    try:
        content = decode_json(text, Any)
    except faults(msgspec.MsgspecError, ValueError, RecursionError):
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
        with suppress(OSError, AttributeError):  # no locks on this system or file system
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
