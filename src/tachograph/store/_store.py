"""The runs of log folders: listed by their overviews, opened on demand.

A dashboard lists the runs every few seconds, and a log folder collects thousands of them, so listing must not read
runs that did not change. A run is read again only if its *signature* changed: device, inode, size and time of its
journal and of its heartbeat, and the time of the folder with its annotations. Only the state of a run can change
without a file, when its process dies or stops sending heartbeats. So the state of a run that is running or stale is
inferred again each time, from the process and the heartbeat read before. A run that finished, failed or crashed stays
so until a resume writes to its journal. In a large folder such a run rests: see `RunScan`.
"""

from __future__ import annotations

import operator
import os
import threading
import weakref
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
    RunScan,
    RunState,
    infer_writer_state,
    is_linked_out,
    read_heartbeat,
    this_process,
)
from tachograph.reader import RunOverview, overview_with_heartbeat
from tachograph.store._run import StoredRun

__all__ = ["Store", "annotations_changed_at"]

_MIN_OPEN_RUNS = 16
"""As many runs stay open, whatever they hold …"""
_MAX_OPEN_RUNS = 512
"""… and up to this many after a comparison of so many, while they hold no more than this."""
_MAX_HELD_BYTES = 256 << 20
_MAX_HELD_FILES = 512
_CHANGEABLE_STATES = {RunState.RUNNING, RunState.STALE}
"""The states that can change although no file changes."""


class _Signature(NamedTuple):
    journal: tuple[int, int, int, int]
    heartbeat: tuple[int, int, int, int] | None
    annotations_changed_at: float | None = None


class _ListedRun(NamedTuple):
    signature: _Signature
    overview: RunOverview
    heartbeat: Heartbeat | None
    is_final: bool
    """Whether the state can change only with a file."""


class Store:
    """The runs of log folders, by their ids. Never opens anything outside of them, whatever id is requested."""

    def __init__(
        self,
        *log_dirs: str | os.PathLike[str],
        known_overview: Callable[[FoundRun], RunOverview | None] = lambda run: None,
        scan: RunScan | None = None,
    ) -> None:
        """Open log folders.

        Args:
            log_dirs: the folders.
            known_overview: returns the overview of an ended run if it was read before; called with a lock held.
            scan: finds the runs of these folders; by default one that nothing else uses.
        """
        self.folders = LogFolders(*log_dirs)
        self._scan = RunScan(self.folders) if scan is None else scan
        self._known_overview = known_overview
        self._this_process = this_process()
        self._lock = threading.Lock()
        self._listing_lock = threading.Lock()
        self._listed_runs: dict[str, _ListedRun] = {}
        self._final_runs: dict[str, FoundRun] = {}
        self._unsorted: list[RunOverview] = []
        self._sorted: list[RunOverview] = []
        self._open_runs: OrderedDict[str, StoredRun] = OrderedDict()
        self._shared_runs: weakref.WeakValueDictionary[str, StoredRun] = weakref.WeakValueDictionary()
        self._compared_ids: set[str] = set()
        self._max_open = _MIN_OPEN_RUNS
        self._num_opened = 0

    def runs(self) -> list[RunOverview]:
        """Return an overview of each run, newest first: the same object as before if nothing about it changed.

        The name of an overview is the id of the run.
        """
        with self._listing_lock:
            listed_runs: dict[str, _ListedRun] = {}
            final_runs: dict[str, FoundRun] = {}
            for run in self._scan.find():
                path = run.path
                listed_run = self._listed_runs.get(path)
                if listed_run is None or self._final_runs.get(path) is not run:  # else it rests
                    listed_run = self._list_run(run)
                    if listed_run is None:
                        continue
                listed_runs[path] = listed_run
                if listed_run.is_final:
                    final_runs[path] = run
            self._listed_runs, self._final_runs = listed_runs, final_runs
            overviews = [listed_run.overview for listed_run in listed_runs.values()]
            if len(overviews) != len(self._unsorted) or not all(map(operator.is_, overviews, self._unsorted)):
                self._unsorted = overviews
                self._sorted = sorted(overviews, key=lambda overview: (-(overview.started or 0.0), overview.name))
            return list(self._sorted)

    def open(self, run_id: str) -> StoredRun:
        """Return a run by its id.

        Raises:
            RunNotFoundError: if there is no such run, or it is outside the log folder.
        """
        location = self.folders.resolve(run_id)
        if location is None:
            ids = {item.overview.name for item in list(self._listed_runs.values())} - {run_id}
            hint = did_you_mean(run_id, ids) if len(run_id) <= 200 else ""
            raise RunNotFoundError(f"no run {run_id[:200]!r} in the log folder{hint}")
        log_dir, name, folder = location
        path = os.fspath(folder.path)
        run = self._open_runs.get(path) or self.share(folder)
        run_id = self.folders.id_of(log_dir, name)
        with self._lock:
            run = self._open_runs.setdefault(path, run)
            run.id = run_id
            self._open_runs.move_to_end(path)
            while len(self._open_runs) > self._max_open:
                self._open_runs.popitem(last=False)
            self._num_opened += 1
            if self._num_opened % _MIN_OPEN_RUNS == 0:
                self._close_excess()
        return run

    def share(self, folder: RunFolder) -> StoredRun:
        """Return the run of a folder as long as someone uses it, so that several readers read its journal once.

        Unlike `open`, this keeps nothing open and closes no other run.
        """
        path = os.fspath(folder.path)
        with self._lock:
            run = self._shared_runs.get(path)
        if run is None:
            # Two threads may build the same run at once; one of them is kept.
            run = StoredRun(folder)  # slow, so not inside the lock
            with self._lock:
                run = self._shared_runs.setdefault(path, run)
        return run

    def keep_open(self, run_ids: Collection[str]) -> None:
        """Keep these runs open from now on, because they will be read again and again.

        A comparison requests its runs in several parts: the runs of earlier calls stay open as well.
        """
        with self._lock:
            if len(self._compared_ids.union(run_ids)) > _MAX_OPEN_RUNS:
                self._compared_ids.clear()
            self._compared_ids.update(run_ids)
            self._max_open = max(self._max_open, min(len(self._compared_ids), _MAX_OPEN_RUNS))

    def _close_excess(self) -> None:
        """Close the least recently used runs while the open ones hold too much."""
        usages = (
            [run.resource_usage for run in self._open_runs.values()] if len(self._open_runs) > _MIN_OPEN_RUNS else []
        )
        num_bytes, num_files = sum(usage[0] for usage in usages), sum(usage[1] for usage in usages)
        for run_bytes, run_files in usages[:-_MIN_OPEN_RUNS]:
            if num_bytes <= _MAX_HELD_BYTES and num_files <= _MAX_HELD_FILES:
                return
            self._open_runs.popitem(last=False)
            num_bytes, num_files = num_bytes - run_bytes, num_files - run_files

    def _list_run(self, run: FoundRun) -> _ListedRun | None:
        """Return the overview of a run, or None if it is a link out. Reads the run only if its signature changed."""
        signature = _read_signature(run)
        listed_run = self._listed_runs.get(run.path)
        if listed_run is None or listed_run.signature != signature:
            return self._read_run(run, signature)
        if listed_run.overview.name != run.id:
            listed_run = listed_run._replace(overview=msgspec.structs.replace(listed_run.overview, name=run.id))
        if listed_run.is_final:
            return listed_run
        state = infer_writer_state(listed_run.overview.process, listed_run.heartbeat, self._this_process)
        if state is listed_run.overview.state:
            return listed_run
        overview = msgspec.structs.replace(listed_run.overview, state=state)
        return listed_run._replace(overview=overview, is_final=state not in _CHANGEABLE_STATES)

    def _read_run(self, run: FoundRun, signature: _Signature) -> _ListedRun | None:
        folder = RunFolder(run.path)
        if is_linked_out(run.log_dir, folder):
            return None
        heartbeat = read_heartbeat(folder.heartbeat) if signature.heartbeat else None
        overview = self._known_overview(run)
        if overview is None or not _matches_heartbeat(overview, heartbeat):
            overview = overview_with_heartbeat(folder, heartbeat)
        overview = msgspec.structs.replace(
            overview, name=run.id, annotations_changed_at=signature.annotations_changed_at
        )
        if overview.size_bytes < signature.journal[2]:
            # The journal could not be read, perhaps only for now: read it again the next time.
            signature = _Signature((0, 0, 0, 0), None)
        return _ListedRun(signature, overview, heartbeat, overview.state not in _CHANGEABLE_STATES)


def _matches_heartbeat(overview: RunOverview, heartbeat: Heartbeat | None) -> bool:
    """Return whether an overview agrees with the last heartbeat, which may have come after the end of the run."""
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
    return _Signature(_identity(run.journal), heartbeat, annotations_changed_at(run.path))


def annotations_changed_at(path: str | os.PathLike[str]) -> float | None:
    """Return when annotations of a run changed last, given its folder; None if it has none."""
    try:
        return os.stat(f"{os.fspath(path)}/annotations").st_mtime
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
