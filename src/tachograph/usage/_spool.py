"""Events on disk: files of JSON lines, which are the queue, the record for the user, and what is deleted.

The name of a file says whether its events may be sent (`.on.jsonl`) or stay here (`.local.jsonl`), and for which
receiver they were written. Beside it, `.sent` says how many of its bytes are done with, and which were refused and why.
Taking back consent is a change of names.
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

from tachograph.usage._endpoint import Event
from tachograph.usage._folder import make_private, read_own

__all__ = ["Kept", "Spool", "delete_events", "keep_here", "kept_events", "left_over", "prune"]

_MOST_BYTES_PER_FILE = 1 << 20
_MOST_BYTES = 16 << 20
_MOST_FILES = 200
_LONGEST_KEPT_S = 30 * 86_400.0
_LONGEST_WAIT_S = 14 * 86_400.0
_MAY_BE_SENT, _STAYS = ".on.jsonl", ".local.jsonl"


class Spool:
    """A file of one process. Held while it is open, so that nobody else sends what is in it.

    Args:
        path: the file.
        is_new: whether it is to be made.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        self._file = -1
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0)
        self._file = os.open(path, flags, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        about = os.fstat(self._file)
        if about.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not this user's")
        self.num_bytes = about.st_size
        self._marks = _marks(path)

    @classmethod
    def begin(cls, folder: Path, receiver: str | None) -> Spool:
        """Begin a file.

        Args:
            folder: of the app.
            receiver: who may be sent it; None keeps it here.
        """
        make_private(folder)
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")  # their names are their order
        ending = _STAYS if receiver is None else f"-{_tag(receiver)}{_MAY_BE_SENT}"
        return cls(folder / f"{now}-{os.urandom(4).hex()}{ending}", is_new=True)

    def append(self, events: list[Event]) -> None:
        """Write events at the end, all or none.

        Raises:
            OSError: if that cannot be.
        """
        import json

        data = b"".join(json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n" for event in events)
        try:
            written = os.write(self._file, data)
            if written < len(data):
                raise OSError(f"{written} of {len(data)} bytes were written")
        except OSError:
            os.ftruncate(self._file, self.num_bytes)
            raise
        self.num_bytes += len(data)

    @property
    def is_full(self) -> bool:
        """Whether it is time for another."""
        return self.num_bytes >= _MOST_BYTES_PER_FILE

    @property
    def may_be_sent(self) -> bool:
        """Whether it may, and the user has neither taken that back nor deleted it."""
        return _may_send(self.path) and self.path.exists()

    @property
    def is_gone(self) -> bool:
        """Whether the user has deleted it, and not only said that it stays here."""
        return not self.path.exists() and not _as_local(self.path).exists()

    @property
    def waits(self) -> bool:
        """Whether there is something to send."""
        return self._marks.done < self.num_bytes and self.may_be_sent

    def stay(self) -> None:
        """Make what waits in it stay here for good."""
        _keep(self.path)

    def waiting(self, most: int) -> tuple[list[Event], int]:
        """Return the next events that are not done with, and where they end. What is torn is passed over."""
        begin = self._marks.done
        data = os.pread(self._file, min(self.num_bytes - begin, _MOST_BYTES_PER_FILE), begin)
        lines = data.splitlines(keepends=True)[:most]
        if not lines:
            self.num_bytes = begin  # somebody has cut it off
        elif len(lines) > 1 and not lines[-1].endswith(b"\n"):
            lines.pop()
        return [event for line in lines if (event := _event(line))], begin + sum(map(len, lines))

    def done(self, end: int, refusal: str | None = None) -> None:
        """Remember that all up to here arrived, or that it was refused for good and why."""
        import json

        refused = self._marks.refused
        if refusal is not None:
            refused = [*refused, (self._marks.done, end, refusal)][-100:]
        self._marks = _Marks(end, refused)
        path = self.path if self.path.exists() else _as_local(self.path)
        if path.exists():
            descriptor = os.open(_mark_of(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                json.dump({"done": end, "refused": self._marks.refused}, file)

    def __del__(self) -> None:
        # Whoever uses it holds it: a thread that reads never finds that another has closed the file.
        if self._file >= 0:
            os.close(self._file)


class Kept(NamedTuple):
    """An event on this machine, and what became of it."""

    event: Event
    state: str
    """``sent``, ``refused``, ``waiting`` or ``local``."""
    refusal: str = ""
    """What the receiver said to it, if it refused it."""


class _Marks(NamedTuple):
    done: int
    refused: list[tuple[int, int, str]]


def kept_events(folder: Path, receiver: str | None = None) -> Iterator[Kept]:
    """Return all events of an app, oldest first.

    Args:
        folder: of the app.
        receiver: who is sent them now; for another, and after two weeks, none of them waits. None for whoever it was.
    """
    for path in _files(folder):
        marks, position = _marks(path), 0
        try:
            lines = read_own(path).splitlines(keepends=True)
            waits = "waiting" if _may_send(path) and _is_for(path, receiver) and not _is_too_old(path) else "local"
        except OSError:
            continue  # deleted just now, or not ours
        for line in lines:
            position += len(line)
            event = _event(line)
            if event:
                refusals = [why for begin, end, why in marks.refused if begin < position <= end]
                state = "refused" if refusals else "sent" if position <= marks.done else waits
                yield Kept(event, state, *refusals[:1])


def keep_here(folder: Path) -> None:
    """Make what waits in the files of an app stay here for good."""
    for path in _files(folder):
        if _may_send(path):
            _keep(path)


def _keep(path: Path) -> None:
    renamed = _as_local(path)
    try:
        if _mark_of(path).exists():
            _mark_of(path).rename(_mark_of(renamed))
        path.rename(renamed)
    except OSError:
        return  # it was deleted just now, or is not ours


def left_over(folder: Path, own: Path, receiver: str) -> Iterator[Spool]:
    """Open, one after the other, the files in which processes that are gone left something for the same receiver."""
    for path in _files(folder):
        if path == own or not _may_send(path) or not _is_for(path, receiver):
            continue
        try:
            if path.stat().st_size <= _marks(path).done or _is_too_old(path):
                continue
            spool = Spool(path)
        except OSError:
            continue  # its process still runs, or it was deleted just now
        yield spool


def prune(folder: Path, own: Path) -> None:
    """Delete what is old, and the oldest of too much, unless its process still runs."""
    num_bytes = 0
    for number, path in enumerate(path for path in reversed(_files(folder)) if path != own):
        try:
            about = path.stat()
            num_bytes += about.st_size
            is_too_much = number >= _MOST_FILES or num_bytes > _MOST_BYTES
            if is_too_much or time.time() - about.st_mtime > _LONGEST_KEPT_S:
                held = Spool(path)
                _delete(path)
                del held
        except OSError:
            continue


def delete_events(folder: Path) -> None:
    """Delete what an app kept."""
    for path in _files(folder):
        _delete(path)


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    _mark_of(path).unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith((_MAY_BE_SENT, _STAYS)))
    except OSError:
        return []


def _tag(receiver: str) -> str:
    """Return a short name for a receiver, that can be in the name of a file."""
    return hashlib.sha256(receiver.encode()).hexdigest()[:8]


def _may_send(path: Path) -> bool:
    return path.name.endswith(_MAY_BE_SENT)


def _is_for(path: Path, receiver: str | None) -> bool:
    return receiver is None or path.name.endswith(f"-{_tag(receiver)}{_MAY_BE_SENT}")


def _is_too_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _LONGEST_WAIT_S


def _as_local(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(_MAY_BE_SENT).removesuffix(_STAYS) + _STAYS)


def _mark_of(path: Path) -> Path:
    return path.with_suffix(".sent")


def _marks(path: Path) -> _Marks:
    import json

    try:
        values = json.loads(read_own(_mark_of(path)))
        refused = [(int(begin), int(end), "".join(map(str, why))) for begin, end, *why in values["refused"]]
        return _Marks(int(values["done"]), refused)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return _Marks(0, [])


def _event(line: bytes) -> dict[str, Any]:
    """Return the event of a line, empty if it is torn or none."""
    import json

    def refuse(_text: str) -> None:
        raise ValueError("no number of JSON")

    try:
        event = json.loads(line, parse_constant=refuse)
    except (ValueError, RecursionError):
        return {}
    wanted = {"uuid": str, "event": str, "timestamp": str, "run_id": str, "app": str, "properties": dict}
    is_event = isinstance(event, dict) and all(isinstance(event.get(name), kind) for name, kind in wanted.items())
    return event if is_event else {}
