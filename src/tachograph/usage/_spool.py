"""Events on disk: a file of JSON lines per process, which is the queue, the record for the user, and what is deleted.

The name of a file says whether its events may be sent (`.on.jsonl`) or stay here (`.local.jsonl`). Beside it, `.sent`
holds how many of its bytes arrived. Taking back consent is a change of names.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.usage._endpoint import Event
from tachograph.usage._folder import make_private

__all__ = ["Kept", "Spool", "delete_events", "keep_here", "kept_events", "left_over", "prune"]

_MOST_BYTES_PER_FILE = 1 << 20
_MOST_BYTES = 16 << 20
_MOST_FILES = 200
_LONGEST_KEPT_S = 30 * 86_400.0
_LONGEST_WAIT_S = 14 * 86_400.0


class Spool:
    """The file of one process. Held while it is open, so that nobody else sends what is in it.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise
        self.num_bytes = os.fstat(self._file).st_size
        self.num_sent_bytes = _sent(path)

    @classmethod
    def begin(cls, folder: Path, *, may_send: bool) -> Spool:
        """Begin a file."""
        make_private(folder)
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")  # their names are their order
        return cls(folder / f"{now}-{os.urandom(4).hex()}.{'on' if may_send else 'local'}.jsonl")

    def append(self, events: list[Event]) -> None:
        """Write events at the end."""
        import json

        lines = [json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n" for event in events]
        self.num_bytes += os.write(self._file, b"".join(lines))

    @property
    def is_full(self) -> bool:
        """Whether it is time for another."""
        return self.num_bytes >= _MOST_BYTES_PER_FILE

    def waiting(self, most: int) -> tuple[list[Event], int]:
        """Return the next events that were not sent, and where they end. What is torn counts as sent."""
        num_bytes = min(self.num_bytes - self.num_sent_bytes, _MOST_BYTES_PER_FILE)
        lines = os.pread(self._file, num_bytes, self.num_sent_bytes).splitlines(keepends=True)[:most]
        if not lines:
            self.num_bytes = self.num_sent_bytes  # somebody has cut it off
        elif len(lines) > 1 and not lines[-1].endswith(b"\n"):
            lines.pop()
        return [event for line in lines if (event := _event(line))], self.num_sent_bytes + sum(map(len, lines))

    def sent(self, num_bytes: int) -> None:
        """Remember that all up to here arrived."""
        self.num_sent_bytes = num_bytes
        if self.path.exists():
            _mark(self.path).write_text(str(num_bytes), encoding="ascii")

    @property
    def waits(self) -> bool:
        """Whether there is something to send, and the user has neither changed their mind nor deleted it."""
        return self.num_sent_bytes < self.num_bytes and _may_send(self.path) and self.path.exists()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class Kept(NamedTuple):
    """An event on this machine, and what became of it."""

    event: Event
    state: str
    """``sent``, ``waiting`` or ``local``."""


def kept_events(folder: Path) -> Iterator[Kept]:
    """Return all events of an app, oldest first."""
    for path in _files(folder):
        num_sent_bytes, position = _sent(path), 0
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except OSError:
            continue  # deleted just now, or not ours
        for line in lines:
            position += len(line)
            event = _event(line)
            if event:
                waits = "waiting" if _may_send(path) else "local"
                yield Kept(event, "sent" if position <= num_sent_bytes else waits)


def keep_here(folder: Path) -> None:
    """Make what waits in the files of an app stay here for good."""
    for path in _files(folder):
        if _may_send(path):
            renamed = path.with_name(path.name.replace(".on.jsonl", ".local.jsonl"))
            if _mark(path).exists():
                _mark(path).rename(_mark(renamed))
            path.rename(renamed)


def left_over(folder: Path, own: Path) -> Iterator[Spool]:
    """Open, one after the other, the files in which processes that are gone left something to send."""
    for path in _files(folder):
        try:
            about = path.stat()
            is_due = about.st_size > _sent(path) and time.time() - about.st_mtime < _LONGEST_WAIT_S
            if path == own or not _may_send(path) or not is_due:
                continue
            spool = Spool(path)
        except OSError:
            continue  # its process still runs, or it was deleted just now
        try:
            yield spool
        finally:
            spool.close()


def prune(folder: Path, own: Path) -> None:
    """Delete what is old, and the oldest of too much."""
    num_bytes = 0
    for number, path in enumerate(path for path in reversed(_files(folder)) if path != own):
        try:
            about = path.stat()
            num_bytes += about.st_size
            is_too_much = number >= _MOST_FILES or num_bytes > _MOST_BYTES
            if is_too_much or time.time() - about.st_mtime > _LONGEST_KEPT_S:
                path.unlink()
                _mark(path).unlink(missing_ok=True)
        except OSError:
            continue


def delete_events(folder: Path) -> None:
    """Delete what an app kept."""
    for path in _files(folder):
        path.unlink(missing_ok=True)
        _mark(path).unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith((".on.jsonl", ".local.jsonl")))
    except OSError:
        return []


def _may_send(path: Path) -> bool:
    return path.name.endswith(".on.jsonl")


def _mark(path: Path) -> Path:
    return path.with_suffix(".sent")


def _sent(path: Path) -> int:
    try:
        text = _mark(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return 0
    return int(text) if text.isdecimal() else 0


def _event(line: bytes) -> dict[str, Any]:
    """Return the event of a line, empty if it is torn or none."""
    import json

    try:
        event = json.loads(line)
    except ValueError:
        return {}
    wanted = {"uuid": str, "event": str, "timestamp": str, "run_id": str, "app": str, "properties": dict}
    is_event = isinstance(event, dict) and all(isinstance(event.get(name), kind) for name, kind in wanted.items())
    return event if is_event else {}
