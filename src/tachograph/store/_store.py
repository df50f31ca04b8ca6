"""The runs of a log folder: listed by their overviews, opened on demand.

A dashboard lists the runs every few seconds, and a log folder collects thousands of them, so listing must not read what
did not change. A run is read again only if its *signature* changed: device, inode, size and time of its journal and of
its heartbeat. Only the state of a run can change without a file, when its process dies or stops sending heartbeats. So
the state of a run that is running or stale is inferred again each time, from the process and the heartbeat read before.
A run that finished, failed or crashed stays so until a resume writes to its journal.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import msgspec

from tachograph.exceptions import RunNotFoundError, did_you_mean
from tachograph.journal import (
    Heartbeat,
    RunFolder,
    RunState,
    infer_writer_state,
    read_heartbeat,
    stat_journal,
    this_process,
)
from tachograph.reader import RunOverview, overview_with_heartbeat
from tachograph.store._run import StoredRun

__all__ = ["Store"]

_MAX_OPEN_RUNS = 16
_MAY_CHANGE = {RunState.RUNNING, RunState.STALE}
"""The states that can change although no file changes."""


class _Signature(NamedTuple):
    journal: tuple[int, int, int, int]
    heartbeat: tuple[int, int, int, int] | None


class _ListedRun(NamedTuple):
    signature: _Signature
    overview: RunOverview
    heartbeat: Heartbeat | None


class Store:
    """The runs of a log folder. Never opens anything outside of it, whatever name is requested."""

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = Path(log_dir)
        self._path = os.fspath(self.log_dir)
        self._here = this_process()
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._listed: dict[str, _ListedRun] = {}
        self._open: OrderedDict[str, StoredRun] = OrderedDict()

    def runs(self) -> list[RunOverview]:
        """Return an overview of each run, newest first: the same object as before if nothing about it changed."""
        with self._listing:
            found = {name: self._list_run(name) for name in self._names()}
            self._listed = {name: item for name, item in found.items() if item is not None}
            lines = [item.overview for item in self._listed.values()]
        return sorted(lines, key=lambda line: (-(line.started or 0.0), line.name))

    def open(self, name: str) -> StoredRun:
        """Return a run by its name.

        Raises:
            RunNotFoundError: if there is no such run, or it is outside the log folder.
        """
        folder = self._folder(name)
        if folder is None:
            known = did_you_mean(name, self._listed.keys() - {name}) if len(name) <= 200 else ""
            raise RunNotFoundError(f"no run {name[:200]!r} in the log folder{known}")
        # Two threads may build the same run at once; `setdefault` below keeps one of them.
        run = self._open.get(name) or StoredRun(folder)  # slow, so not inside the lock
        with self._lock:
            run = self._open.setdefault(name, run)
            self._open.move_to_end(name)
            while len(self._open) > _MAX_OPEN_RUNS:
                self._open.popitem(last=False)
        return run

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.log_dir) if _is_folder_name(entry.name)]
        except OSError:
            return []

    def _list_run(self, name: str) -> _ListedRun | None:
        """Return the overview of a run, or None if there is no such run; see the module for what is read again."""
        path = f"{self._path}/{name}"
        signature = _read_signature(path)
        if signature is None:
            return None
        known = self._listed.get(name)
        if known is None or known.signature != signature:
            return self._read_run(RunFolder(path), signature)
        if known.overview.state not in _MAY_CHANGE:
            return known
        state = infer_writer_state(known.overview.process, known.heartbeat, self._here)
        if state is known.overview.state:
            return known
        return known._replace(overview=msgspec.structs.replace(known.overview, state=state))

    def _read_run(self, folder: RunFolder, signature: _Signature) -> _ListedRun | None:
        if not self._is_inside(folder, (folder.path, folder.journal, folder.compressed_journal, folder.private)):
            return None
        heartbeat = read_heartbeat(folder.heartbeat)
        found = overview_with_heartbeat(folder, heartbeat)
        if found.size_bytes < signature.journal[2]:
            # The journal could not be read, perhaps only for now: read it again the next time.
            signature = _Signature((0, 0, 0, 0), None)
        return _ListedRun(signature, found, heartbeat)

    def _folder(self, name: str) -> RunFolder | None:
        """Return the folder of a run, or None if it or a file in it is a link out of the log folder."""
        if not _is_folder_name(name):
            return None
        folder = RunFolder(self.log_dir / name)
        journals = (folder.journal, folder.compressed_journal)
        paths = (folder.path, *journals, folder.private, folder.cache, folder.control)
        return folder if self._is_inside(folder, paths) else None

    def _is_inside(self, folder: RunFolder, paths: tuple[Path, ...]) -> bool:
        try:
            for path in paths:
                if os.path.islink(path) and not path.resolve(strict=True).is_relative_to(self.log_dir.resolve()):
                    return False
            return stat.S_ISREG(stat_journal(folder.journal).st_mode)
        except (OSError, ValueError, RuntimeError):
            return False


def _read_signature(path: str) -> _Signature | None:
    """Return the signature of a run folder, or None if it has no journal."""
    try:
        journal = stat_journal(f"{path}/metrics.jsonl")
    except (OSError, ValueError):
        return None
    try:
        heartbeat = _identity(os.stat(f"{path}/.tacho/heartbeat.json"))
    except OSError:
        heartbeat = None
    return _Signature(_identity(journal), heartbeat) if stat.S_ISREG(journal.st_mode) else None


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_folder_name(name: str) -> bool:
    """Return whether a text is a valid folder name without path separators that JSON can represent."""
    if not name or name.startswith(".") or "/" in name or os.sep in name or "\0" in name or "\\" in name:
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= 255 and not any("\ud800" <= char <= "\udfff" for char in name)
