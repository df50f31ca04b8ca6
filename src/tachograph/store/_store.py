"""The runs of a log folder: listed by their overviews, opened on demand."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from tachograph.exceptions import RunNotFoundError, did_you_mean
from tachograph.journal import RunFolder, RunState
from tachograph.reader import RunOverview, overview
from tachograph.store._run import StoredRun

__all__ = ["Store"]

_MAX_OPEN_RUNS = 16
_ENDED = {RunState.FINISHED, RunState.FAILED}


class _ListedRun(NamedTuple):
    signature: tuple[int, ...]
    overview: RunOverview


class Store:
    """The runs of a log folder. Never opens anything outside of it, whatever name is requested."""

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = Path(log_dir)
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._listed: dict[str, _ListedRun] = {}
        self._open: OrderedDict[str, StoredRun] = OrderedDict()

    def runs(self) -> list[RunOverview]:
        """Return an overview of each run, newest first. Ended runs are read again only if their files changed."""
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
        """Return the overview of a run; reuse the previous one if it has ended and its files are unchanged."""
        folder = RunFolder(self.log_dir / name)
        if not self._is_inside(folder, (folder.path, folder.journal, folder.private)):
            return None
        signature: tuple[int, ...] = ()
        for path in (folder.journal, folder.heartbeat):
            with contextlib.suppress(OSError):
                found = os.stat(path)
                signature += (found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._listed.get(name)
        # A run without an end may have crashed, which changes no file.
        if known is not None and known.signature == signature and known.overview.state in _ENDED:
            return known
        return _ListedRun(signature, overview(folder))

    def _folder(self, name: str) -> RunFolder | None:
        """Return the folder of a run, or None if it or a file in it is a link out of the log folder."""
        if not _is_folder_name(name):
            return None
        folder = RunFolder(self.log_dir / name)
        paths = (folder.path, folder.journal, folder.private, folder.cache, folder.control)
        return folder if self._is_inside(folder, paths) else None

    def _is_inside(self, folder: RunFolder, paths: tuple[Path, ...]) -> bool:
        try:
            for path in paths:
                if os.path.islink(path) and not path.resolve(strict=True).is_relative_to(self.log_dir.resolve()):
                    return False
            return stat.S_ISREG(os.stat(folder.journal).st_mode)
        except (OSError, ValueError, RuntimeError):
            return False


def _is_folder_name(name: str) -> bool:
    """Return whether a text is a valid folder name without path separators that JSON can represent."""
    if not name or name.startswith(".") or "/" in name or os.sep in name or "\0" in name or "\\" in name:
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= 255 and not any("\ud800" <= char <= "\udfff" for char in name)
