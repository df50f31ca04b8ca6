"""The runs of log folders: listed by their overviews, opened on demand.

A dashboard lists the runs every few seconds, and a log folder collects thousands of them, so listing must not read what
did not change. A run is read again only if its *signature* changed: device, inode, size and time of its journal and of
its heartbeat, and the time of the folder with its annotations. Only the state of a run can change without a file, when
its process dies or stops sending heartbeats. So the state of a run that is running or stale is inferred again each
time, from the process and the heartbeat read before. A run that finished, failed or crashed stays so until a resume
writes to its journal.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from tachograph.exceptions import RunNotFoundError, did_you_mean
from tachograph.journal import (
    FoundRun,
    Heartbeat,
    LogFolders,
    RunFolder,
    RunState,
    infer_writer_state,
    is_linked_out,
    read_heartbeat,
    this_process,
)
from tachograph.reader import RunOverview, overview_with_heartbeat
from tachograph.store._run import StoredRun

__all__ = ["Store", "annotated_at"]

_MIN_OPEN_RUNS = 16
"""As many runs stay open, whatever they hold …"""
_MAX_OPEN_RUNS = 512
"""… and up to this many after a comparison of so many, while they hold no more than this."""
_MAX_HELD_BYTES = 256 << 20
_MAX_HELD_FILES = 512
_MAY_CHANGE = {RunState.RUNNING, RunState.STALE}
"""The states that can change although no file changes."""


class _Signature(NamedTuple):
    journal: tuple[int, int, int, int]
    heartbeat: tuple[int, int, int, int] | None
    annotated: float | None = None


class _ListedRun(NamedTuple):
    signature: _Signature
    overview: RunOverview
    heartbeat: Heartbeat | None


class Store:
    """The runs of log folders, by their ids. Never opens anything outside of them, whatever id is requested."""

    def __init__(
        self,
        *log_dirs: str | os.PathLike[str],
        known_overview: Callable[[FoundRun], RunOverview | None] = lambda run: None,
    ) -> None:
        """Open log folders.

        Args:
            log_dirs: the folders.
            known_overview: returns the overview of an ended run if it was read before; called with a lock held.
        """
        self.folders = LogFolders(*log_dirs)
        self._known_overview = known_overview
        self._here = this_process()
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._listed: dict[str, _ListedRun] = {}
        self._open: OrderedDict[str, StoredRun] = OrderedDict()
        self._compared: set[str] = set()
        self._max_open = _MIN_OPEN_RUNS
        self._num_opened = 0

    def runs(self) -> list[RunOverview]:
        """Return an overview of each run, newest first: the same object as before if nothing about it changed.

        The name of an overview is the id of the run.
        """
        with self._listing:
            found = {run.path: self._list_run(run) for run in self.folders.find()}
            self._listed = {path: item for path, item in found.items() if item is not None}
            lines = [item.overview for item in self._listed.values()]
        return sorted(lines, key=lambda line: (-(line.started or 0.0), line.name))

    def open(self, run_id: str) -> StoredRun:
        """Return a run by its id.

        Raises:
            RunNotFoundError: if there is no such run, or it is outside the log folder.
        """
        found = self.folders.resolve(run_id)
        if found is None:
            ids = {item.overview.name for item in list(self._listed.values())} - {run_id}
            hint = did_you_mean(run_id, ids) if len(run_id) <= 200 else ""
            raise RunNotFoundError(f"no run {run_id[:200]!r} in the log folder{hint}")
        log_dir, name, folder = found
        path = os.fspath(folder.path)
        # Two threads may build the same run at once; `setdefault` below keeps one of them.
        run = self._open.get(path) or StoredRun(folder)  # slow, so not inside the lock
        run_id = self.folders.id_of(log_dir, name)
        with self._lock:
            run = self._open.setdefault(path, run)
            run.id = run_id
            self._open.move_to_end(path)
            while len(self._open) > self._max_open:
                self._open.popitem(last=False)
            self._num_opened += 1
            if self._num_opened % _MIN_OPEN_RUNS == 0:
                self._close_large()
        return run

    def keep_open(self, run_ids: Collection[str]) -> None:
        """Keep these runs open from now on, because they will be read again and again.

        A comparison requests its runs in several parts: those of earlier calls stay open as well.
        """
        with self._lock:
            if len(self._compared.union(run_ids)) > _MAX_OPEN_RUNS:
                self._compared.clear()
            self._compared.update(run_ids)
            self._max_open = max(self._max_open, min(len(self._compared), _MAX_OPEN_RUNS))

    def _close_large(self) -> None:
        """Close the runs that were not used for the longest time while the open ones hold too much."""
        held = [run.held for run in self._open.values()] if len(self._open) > _MIN_OPEN_RUNS else []
        num_bytes, num_files = sum(each[0] for each in held), sum(each[1] for each in held)
        for run_bytes, run_files in held[:-_MIN_OPEN_RUNS]:
            if num_bytes <= _MAX_HELD_BYTES and num_files <= _MAX_HELD_FILES:
                return
            self._open.popitem(last=False)
            num_bytes, num_files = num_bytes - run_bytes, num_files - run_files

    def _list_run(self, run: FoundRun) -> _ListedRun | None:
        """Return the overview of a run, or None if it is a link out; see the module for what is read again."""
        signature = _read_signature(run)
        known = self._listed.get(run.path)
        if known is None or known.signature != signature:
            return self._read_run(run, signature)
        if known.overview.name != run.id:
            known = known._replace(overview=msgspec.structs.replace(known.overview, name=run.id))
        if known.overview.state not in _MAY_CHANGE:
            return known
        state = infer_writer_state(known.overview.process, known.heartbeat, self._here)
        if state is known.overview.state:
            return known
        return known._replace(overview=msgspec.structs.replace(known.overview, state=state))

    def _read_run(self, run: FoundRun, signature: _Signature) -> _ListedRun | None:
        folder = RunFolder(run.path)
        if is_linked_out(run.log_dir, folder):
            return None
        heartbeat = read_heartbeat(folder.heartbeat) if signature.heartbeat else None
        known = self._known_overview(run)
        if known is None or not _agrees(known, heartbeat):
            known = overview_with_heartbeat(folder, heartbeat)
        found = msgspec.structs.replace(known, name=run.id, annotated=signature.annotated)
        if found.size_bytes < signature.journal[2]:
            # The journal could not be read, perhaps only for now: read it again the next time.
            signature = _Signature((0, 0, 0, 0), None)
        return _ListedRun(signature, found, heartbeat)


def _agrees(overview: RunOverview, heartbeat: Heartbeat | None) -> bool:
    """Return whether an overview has what the last heartbeat says, which may have come after the end of the run."""
    return heartbeat is None or (
        overview.num_dropped == heartbeat.num_dropped
        and overview.num_open_alerts == heartbeat.num_open_alerts
        and overview.num_critical_alerts == heartbeat.num_critical_alerts
        and overview.clock_jumps_s == heartbeat.clock_jumps_s
    )


def _read_signature(run: FoundRun) -> _Signature:
    """Return the signature of a run."""
    try:
        heartbeat = _identity(os.stat(f"{run.path}/.tacho/heartbeat.json"))
    except OSError:
        heartbeat = None
    return _Signature(_identity(run.journal), heartbeat, annotated_at(run.path))


def annotated_at(path: str | os.PathLike[str]) -> float | None:
    """Return when annotations of a run changed last, given its folder; None if it has none."""
    try:
        return os.stat(f"{os.fspath(path)}/annotations").st_mtime
    except OSError:
        return None


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
