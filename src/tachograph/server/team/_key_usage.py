"""The bytes that each key has stored on a server, its open runs and its rate: for the limits of keys.

The bytes are counted from the copies themselves when a key with a limit sends for the first time, and then as they
arrive. Copies may be deleted in several ways, so a key that has reached its limit is counted again now and then.

The counts of a key with limits are in a file, because several processes may receive its runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from tachograph._base.files import (
    exclusive_lock,
    make_folder,
    open_to_append,
    open_to_read,
    read_small,
    replace_file,
    write_all,
)
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder
from tachograph.server._copy_status import read_copy_status
from tachograph.server.team._shared_file import SharedFile

__all__ = [
    "KeyUsage",
    "ProjectUsage",
    "count_kept_bytes",
    "count_project_usage",
    "forget_missing_blobs",
    "list_blob",
]

_MAX_ENTRY_BYTES = 64 << 10
_BLOB_LISTS = Path(".server", "blobs_of_keys")
"""One file per key, with the paths of its blobs."""
_BLOB_LISTS_LOCK = Path(".server", "blobs_of_keys.lock")
_COUNTS = Path(".server", "counts_of_keys")
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
            # .server/blobs/all/…, .server/blobs/projects/PROJECT/…, or PROJECT/.tachograph/artifacts/names/…
            parts = Path(blob_path).parts
            project = parts[3] if len(parts) > 4 and parts[2] == "projects" else ""
            project = parts[0] if parts and parts[0] != ".server" else project
            num_bytes = _file_bytes(os.path.join(root, blob_path))
            if num_bytes:
                usage_of(project, key).num_bytes += num_bytes
    return [usages[place] for place in sorted(usages)]


def list_blob(root: Path, owner: str, path: Path) -> None:
    """Note that a blob, or the list of files of an artifact, belongs to a key: one more line in the list of the key.

    Raises:
        OSError: if it cannot be written.
    """
    list_path = root / _BLOB_LISTS / owner
    make_folder(list_path.parent, below=root, mode=0o700)
    with exclusive_lock(root / _BLOB_LISTS_LOCK, below=root, mode=0o600):
        list_fd = open_to_append(list_path, below=root, mode=0o600)
        try:
            write_all(list_fd, f"{path.relative_to(root).as_posix()}\n".encode())
        finally:
            os.close(list_fd)


def forget_missing_blobs(root: Path) -> None:
    """Remove the blobs that were deleted from the lists of the keys: another key may send them again.

    Raises:
        OSError: if a list cannot be written.
    """
    with exclusive_lock(root / _BLOB_LISTS_LOCK, below=root, mode=0o600):
        for owner, paths in _list_blobs(root).items():
            lines = sorted(path for path in paths if os.path.lexists(os.path.join(root, path)))
            if len(lines) < len(paths):
                data = "".join(f"{line}\n" for line in lines).encode()
                replace_file(root / _BLOB_LISTS / owner, data, below=root, mode=0o600)


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


class _CountedKey(msgspec.Struct):
    """The counts of one key; times are by the clock of `SharedFile`."""

    stored_bytes: int | None = None
    counted_at: float = 0.0
    """When the bytes were counted from the copies."""
    last_seen: dict[str, float] = {}
    """By the id of a run, when it was last heard."""
    budget_bytes: float | None = None
    """How many bytes the key may send now; negative if it has sent too many."""
    budget_at: float = 0.0


class KeyUsage:
    """Counts bytes and open runs by the name of the key. Any thread and any process may use it.

    Args:
        root: the data folder.
        clock: see `SharedFile`.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] | None = None) -> None:
        self._root = root
        self._clock = clock
        self._counting = threading.Lock()
        self._keys: dict[str, SharedFile[_CountedKey]] = {}
        """Those with limits that sent something to this process."""

    def add_bytes(self, owner: str, num_bytes: int) -> None:
        """Count bytes that were stored; nothing happens for a key without limits."""
        if owner in self._keys:
            with self._update(owner) as (counted, _):
                if counted.stored_bytes is not None:
                    counted.stored_bytes += num_bytes

    def has_room(self, owner: str, num_bytes: int, max_bytes: int) -> bool:
        """Return whether so many more bytes may be stored."""
        with self._update(owner) as (counted, now_s):
            stored_bytes, counted_s_ago = counted.stored_bytes, now_s - counted.counted_at
        is_full = stored_bytes is not None and stored_bytes + num_bytes > max_bytes
        if stored_bytes is None or (is_full and not 0 <= counted_s_ago < _RECOUNT_S):
            stored_bytes = self._count(owner, counted.counted_at)
        return stored_bytes + num_bytes <= max_bytes

    def open_run(self, owner: str, run_id: str, max_runs: int) -> bool:
        """Count a run as being sent, and return True, unless too many others are."""
        with self._update(owner) as (counted, now_s):
            # A time in the future is one from before the clock was set.
            counted.last_seen = {run: seen for run, seen in counted.last_seen.items() if abs(now_s - seen) < OPEN_S}
            if run_id not in counted.last_seen and len(counted.last_seen) >= max_runs:
                return False
            counted.last_seen[run_id] = now_s
            return True

    def send_wait_s(self, owner: str, bytes_per_s: int) -> float:
        """Return how long a key must wait before it sends; 0 if it may now. A burst is two seconds long."""
        with self._update(owner) as (counted, now_s):
            _refill(counted, bytes_per_s, now_s)
            return max(0.0, -(counted.budget_bytes or 0.0) / bytes_per_s)

    def add_sent_bytes(self, owner: str, num_bytes: int, bytes_per_s: int) -> None:
        """Count bytes that a key with a limited rate has sent."""
        with self._update(owner) as (counted, now_s):
            _refill(counted, bytes_per_s, now_s)
            counted.budget_bytes = (counted.budget_bytes or 0.0) - num_bytes

    def _update(self, owner: str) -> contextlib.AbstractContextManager[tuple[_CountedKey, float]]:
        file = self._keys.get(owner)
        if file is None:
            path = self._root / _COUNTS / f"{owner}.json"
            file = self._keys[owner] = SharedFile(path, _CountedKey, below=self._root, clock=self._clock)
        return file.update()

    def _count(self, owner: str, last_counted_at: float) -> int:
        """Count the stored bytes of a key from the copies, unless another thread did so meanwhile."""
        with self._counting:
            with self._update(owner) as (counted, _):
                bytes_before = counted.stored_bytes
                if bytes_before is not None and counted.counted_at != last_counted_at:
                    return bytes_before
            num_bytes = count_kept_bytes(self._root).get(owner, 0)
            with self._update(owner) as (counted, now_s):
                # Some of what arrived meanwhile may count twice, and nothing is left out.
                num_bytes += max(0, (counted.stored_bytes or 0) - (bytes_before or 0))
                counted.stored_bytes, counted.counted_at = num_bytes, now_s
            return num_bytes


def _refill(counted: _CountedKey, bytes_per_s: int, now_s: float) -> None:
    """Add the bytes that a key may send since the last time."""
    burst_bytes = 2.0 * bytes_per_s
    elapsed_s = max(0.0, now_s - counted.budget_at)
    budget_bytes = burst_bytes if counted.budget_bytes is None else counted.budget_bytes + elapsed_s * bytes_per_s
    counted.budget_bytes, counted.budget_at = min(burst_bytes, budget_bytes), now_s


def _folder_bytes(folder: Path) -> int:
    """Return the size of a run's files from a client.

    The server's own files, in `.tacho`, do not count, nor do media that are second names of blobs: see `BlobStore`.
    """
    total = 0
    media_folder = os.path.join(folder, "media")
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        is_media = path.startswith(media_folder)
        total += sum(_file_bytes(os.path.join(path, name), only_one_name=is_media) for name in files)
    return total


def _file_bytes(path: str, *, only_one_name: bool = False) -> int:
    """Return the size of a file; 0 if it is missing, or has several names and must have only one."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return 0 if only_one_name and status.st_nlink > 1 else status.st_size
