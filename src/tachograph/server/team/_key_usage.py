"""The bytes that each key has stored on a server, and the runs that it is sending: for the limits of keys.

The bytes are counted from the copies themselves when a key with a limit sends for the first time, and then as they
arrive. Copies may be deleted in several ways, so a key that has reached its limit is counted again now and then.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tachograph._base.files import make_folder, open_to_append, open_to_read, read_small, write_all
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder
from tachograph.server._copy_status import read_copy_status

__all__ = ["KeyUsage", "ProjectUsage", "count_kept_bytes", "count_project_usage", "list_blob"]

_MAX_ENTRY_BYTES = 64 << 10
_BLOB_LISTS = Path(".server", "blobs_of_keys")
"""One file per key, with the paths of its blobs."""
_RECOUNT_S = 10.0
OPEN_S = 300.0
"""A run that was not heard for so long is not being sent any more."""


class _EntryOwner(msgspec.Struct):
    """The part of an entry in `.server/runs` that is needed here."""

    folder: str
    owner: str


def count_kept_bytes(root: Path) -> dict[str, int]:
    """Return the number of bytes of all copies and blobs in the data folder of a server, by the name of the key."""
    num_bytes = _count_blob_bytes(root)
    try:
        entries = list(os.scandir(root / ".server" / "runs"))
    except OSError:
        return num_bytes
    for file in entries:
        try:
            entry = decode_json(read_small(Path(file.path), _MAX_ENTRY_BYTES), _EntryOwner)
        except (OSError, msgspec.MsgspecError):
            continue
        num_bytes[entry.owner] = num_bytes.get(entry.owner, 0) + _folder_bytes(root / entry.folder)
    return num_bytes


class ProjectUsage(msgspec.Struct, kw_only=True):
    """What one key has stored in one project."""

    project: str | None
    """The folder of the project; None for files that a key for all projects sent."""
    key: str
    num_runs: int = 0
    num_bytes: int = 0
    """Bytes of runs and of files that belong to records."""
    last_seen: float | None = None
    """When a client was last heard, in seconds since the epoch."""


def count_project_usage(root: Path) -> list[ProjectUsage]:
    """Return the runs and bytes in the data folder of a server by project and key, without deleted runs."""
    usages: dict[tuple[str, str], ProjectUsage] = {}

    def usage_of(project: str, key: str) -> ProjectUsage:
        return usages.setdefault((project, key), ProjectUsage(project=project or None, key=key))

    for path in sorted((root / ".server" / "runs").glob("*.json")):
        try:
            entry = decode_json(read_small(path, _MAX_ENTRY_BYTES), _EntryOwner)
        except (OSError, msgspec.MsgspecError):
            continue
        folder = RunFolder(root / entry.folder)
        status = read_copy_status(folder)
        if not folder.path.is_dir() or (status is not None and status.run_id != path.stem):
            continue  # deleted; another run may have its name
        usage = usage_of(entry.folder.rpartition("/")[0], entry.owner)
        usage.num_runs += 1
        usage.num_bytes += _folder_bytes(folder.path)
        if status is not None:
            usage.last_seen = max(usage.last_seen or 0.0, status.seen)
    for key, blob_paths in _list_blobs(root).items():
        for blob_path in blob_paths:
            parts = Path(blob_path).parts  # .server/blobs/all/… or .server/blobs/projects/PROJECT/…
            project = parts[3] if len(parts) > 4 and parts[2] == "projects" else ""
            num_bytes = _file_bytes(os.path.join(root, blob_path))
            if num_bytes:
                usage_of(project, key).num_bytes += num_bytes
    return [usages[place] for place in sorted(usages)]


def list_blob(root: Path, owner: str, path: Path) -> None:
    """Note that a blob belongs to a key: one more line in the list of the key.

    Raises:
        OSError: if it cannot be written.
    """
    list_path = root / _BLOB_LISTS / owner
    make_folder(list_path.parent, below=root, mode=0o700)
    list_fd = open_to_append(list_path, below=root, mode=0o600)
    try:
        write_all(list_fd, f"{path.relative_to(root).as_posix()}\n".encode())
    finally:
        os.close(list_fd)


def _list_blobs(root: Path) -> dict[str, set[str]]:
    """Return the paths of blobs by the name of the key."""
    blobs: dict[str, set[str]] = {}
    try:
        owners = os.listdir(root / _BLOB_LISTS)
    except OSError:
        return blobs
    for owner in owners:
        with contextlib.suppress(OSError), open_to_read(root / _BLOB_LISTS / owner) as lines:
            blobs[owner] = {line.rstrip(b"\n").decode("utf-8", "replace") for line in lines}
    return blobs


def _count_blob_bytes(root: Path) -> dict[str, int]:
    return {
        owner: sum(_file_bytes(os.path.join(root, path)) for path in paths)
        for owner, paths in _list_blobs(root).items()
    }


class KeyUsage:
    """Counts bytes and open runs by the name of the key. Any thread may use it."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._lock = threading.Lock()
        self._stored_bytes: dict[str, int] | None = None
        self._last_count_s = 0.0
        self._last_seen_s: dict[str, dict[str, float]] = {}

    def add_bytes(self, owner: str, num_bytes: int) -> None:
        """Count bytes that were stored."""
        with self._lock:
            if self._stored_bytes is not None:
                self._stored_bytes[owner] = self._stored_bytes.get(owner, 0) + num_bytes

    def has_room(self, owner: str, num_bytes: int, max_bytes: int) -> bool:
        """Return whether so many more bytes may be stored."""
        with self._lock:
            is_full = self._stored_bytes is not None and self._stored_bytes.get(owner, 0) + num_bytes > max_bytes
            if self._stored_bytes is None or (is_full and self._clock() - self._last_count_s >= _RECOUNT_S):
                self._stored_bytes = count_kept_bytes(self._root)
                self._last_count_s = self._clock()
            return self._stored_bytes.get(owner, 0) + num_bytes <= max_bytes

    def open_run(self, owner: str, run_id: str, max_runs: int) -> bool:
        """Count a run as being sent, and return True, unless too many others are."""
        oldest_s = self._clock() - OPEN_S
        with self._lock:
            last_seen_s = {run: time_s for run, time_s in self._last_seen_s.get(owner, {}).items() if time_s > oldest_s}
            self._last_seen_s[owner] = last_seen_s
            if run_id not in last_seen_s and len(last_seen_s) >= max_runs:
                return False
            last_seen_s[run_id] = self._clock()
            return True


def _folder_bytes(folder: Path) -> int:
    """Return the size of a run's files from a client; the server's own files, in `.tacho`, do not count."""
    total = 0
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        total += sum(_file_bytes(os.path.join(path, name)) for name in files)
    return total


def _file_bytes(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
