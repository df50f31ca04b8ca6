"""The runs below log folders for readers that look again and again, such as a dashboard that polls 100,000 runs.

`LogFolders.find` calls `stat` for each run, and its readers do so twice more. In a large folder nearly all runs ended
long ago, and polling them takes more processor time than everything else that a server does. So a `RunScan` remembers:

- The names in a folder, as long as the time of the folder stays the same. That time changes when an entry is added or
  removed. A folder that changed just now may change again without a new time, so it is read again.
- Runs that *rest*, because nothing was written to their journal for ten minutes. A resting run is looked at again
  after 10 to 20 seconds, a different time for each, so that every call looks at a few of them. In between, `find`
  returns the same object as before, and readers need not look at the other files of this run either.

With fewer than 2,000 runs nothing rests, unless a reader asks for it. A run that is replaced by another folder of its
name does not rest either.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator

from tachograph._base.clock import Clock, SystemClock
from tachograph.journal._log_folders import FoundRun, LogFolders, SubFolder, find_run_folders, list_sub_folders

__all__ = ["RunScan"]

_MIN_RUNS = 2_000
_QUIET_S = 600.0
"""How long nothing was written to the journal of a run that rests."""
_MIN_REST_S = 10.0
_MAX_REST_S = 20.0
_NUM_TURNS = 97
"""Runs are spread over as many times between the shortest and the longest rest."""
_MAX_NAMES_AGE_S = 30.0
"""Names are read again after this time: there may be file systems on which the time of a folder tells nothing."""
_MIN_SETTLED_S = 2.0
"""A folder that changed less than this before it was read may have changed again in the same tick of its clock."""


class _Folder:
    """The folders in a folder, and the resting runs among them."""

    __slots__ = ("changed_ns", "is_settled", "read_at", "resting_runs", "sub_folders")

    def __init__(self, sub_folders: list[SubFolder], changed_ns: int, clock: Clock) -> None:
        self.sub_folders = sub_folders
        self.changed_ns = changed_ns
        self.read_at = clock.steady_s()
        self.is_settled = clock.wall_s() - changed_ns / 1e9 >= _MIN_SETTLED_S
        self.resting_runs: dict[str, tuple[FoundRun, float]] = {}
        """By name: the run as it was found, and until when it rests."""


class RunScan:
    """Finds the runs of log folders again and again. Thread-safe; readers may share one."""

    def __init__(self, folders: LogFolders, clock: Clock | None = None, *, min_runs: int = _MIN_RUNS) -> None:
        """Prepare the scan.

        Args:
            folders: the log folders.
            clock: tells when a run was looked at last; by default the clock of the machine.
            min_runs: with fewer runs, none rests.
        """
        self._min_runs = min_runs
        self._log_folders = folders
        self._clock = SystemClock() if clock is None else clock
        self._folders: dict[str, _Folder] = {}
        self._num_runs = 0
        self._lock = threading.Lock()

    def find(self) -> list[FoundRun]:
        """Return all runs, each once: the same object as before if the run was not looked at, because it rests."""
        with self._lock:
            runs: list[FoundRun] = []
            folders: dict[str, _Folder] = {}
            for log_dir in self._log_folders.log_dirs:
                self._find_below(log_dir, runs, folders)
            self._folders, self._num_runs = folders, len(runs)
            if not self._log_folders.labels:
                return runs
            counts = Counter(run.name for run in runs)
            return [self._with_id(run, is_unique=counts[run.name] == 1) for run in runs]

    def wake(self, log_dir: str, name: str) -> None:
        """Look at a run in the next call of `find`, whether it rests or not."""
        path, _, folder_name = f"{log_dir}/{name}".rpartition("/")
        with self._lock:
            folder = self._folders.get(path)
            if folder is not None:
                folder.resting_runs.pop(folder_name, None)

    def _find_below(self, log_dir: str, runs: list[FoundRun], folders: dict[str, _Folder]) -> None:
        """Add the runs below a folder, also in nested folders."""
        now_s = self._clock.steady_s()
        # A run whose journal is older than this rests; with few runs, none is.
        quiet_before_s = self._clock.wall_s() - _QUIET_S if self._num_runs >= self._min_runs else 0.0

        def sub_folders_of(path: str) -> Iterator[SubFolder]:
            folder = folders[path] = self._open_folder(path, now_s)
            return self._add_resting(folder, now_s, runs)

        for name, path, journal in find_run_folders(log_dir, sub_folders_of):
            run = FoundRun(name, log_dir, name, path, journal)
            runs.append(run)
            parent, _, folder_name = path.rpartition("/")
            resting_runs = folders[parent].resting_runs
            if journal.st_mtime < quiet_before_s:
                turn = journal.st_ino % _NUM_TURNS
                rest_s = _MIN_REST_S + (_MAX_REST_S - _MIN_REST_S) * turn / _NUM_TURNS
                resting_runs[folder_name] = run, now_s + rest_s
            else:
                resting_runs.pop(folder_name, None)

    @staticmethod
    def _add_resting(folder: _Folder, now_s: float, runs: list[FoundRun]) -> Iterator[SubFolder]:
        """Add the resting runs of a folder, and yield the other folders in it: all in order, one by one."""
        for sub_folder in folder.sub_folders:
            rest = folder.resting_runs.get(sub_folder.name)
            if rest is not None and rest[1] > now_s:
                runs.append(rest[0])
            else:
                yield sub_folder

    def _open_folder(self, path: str, now_s: float) -> _Folder:
        """Return a folder with the folders in it as they are now.

        Raises:
            OSError: if it cannot be read.
        """
        folder = self._folders.get(path)
        changed_ns = os.stat(path).st_mtime_ns
        is_recent = folder is not None and now_s - folder.read_at < _MAX_NAMES_AGE_S
        if folder is not None and is_recent and folder.is_settled and folder.changed_ns == changed_ns:
            return folder
        new = _Folder(list_sub_folders(path), changed_ns, self._clock)
        if folder is not None:
            inodes = {entry.name: entry.inode for entry in folder.sub_folders}
            new.resting_runs = {
                entry.name: folder.resting_runs[entry.name]
                for entry in new.sub_folders
                if entry.name in folder.resting_runs and inodes[entry.name] == entry.inode
            }
        return new

    def _with_id(self, run: FoundRun, *, is_unique: bool) -> FoundRun:
        """Return a run with its id; the same object if that has not changed."""
        run_id = self._log_folders.id_among(run.log_dir, run.name, is_unique=is_unique)
        if run.id == run_id:
            return run
        path, _, folder_name = run.path.rpartition("/")
        run = run._replace(id=run_id)
        resting_runs = self._folders[path].resting_runs
        if folder_name in resting_runs:
            resting_runs[folder_name] = run, resting_runs[folder_name][1]
        return run
