"""Records how fast earlier runs with the same `perf_tag` were, for the rule `slower_than_baseline`.

A thread looks once, at the start, at the summaries that the list of runs stored beside the journals of ended runs. It
never reads a journal, and looks at a bounded number of runs.
"""

from __future__ import annotations

import heapq
import threading
from pathlib import Path

import msgspec

from tachograph._base.files import read_small
from tachograph._base.guard import guard
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder, find_run_folders
from tachograph.recorder._run import Run
from tachograph.records import BASELINE_SPEED

__all__ = ["BaselineReader"]

_MAX_RUNS = 20
_MAX_READ = 200
_MAX_BYTES = 1 << 22


class _StoredOverview(msgspec.Struct):
    state: str = ""


class _StoredSummary(msgspec.Struct):
    """What is needed of a summary; see `CatalogSummary`."""

    overview: _StoredOverview
    run_id: str | None = None
    perf_tag: str | None = None
    step_time_s: float | None = None


class BaselineReader:
    """Looks up the speed of earlier runs, once."""

    def __init__(self, run: Run, log_dir: str, perf_tag: str) -> None:
        self._run = run
        self._log_dir = log_dir
        self._tag = perf_tag
        self._is_stopped = threading.Event()
        threading.Thread(target=self._read, name="tachograph-baseline", daemon=True).start()

    def collect(self) -> None:
        """Do nothing: the thread records the result."""

    def close(self) -> None:
        """Stop looking: a run that ends now needs no baseline."""
        self._is_stopped.set()

    def forget(self) -> None:
        """In a forked child: the parent records the result."""
        self._is_stopped.set()

    def _read(self) -> None:
        with guard("looking up the speed of earlier runs"):
            found = self._step_times()
            if found and not self._is_stopped.is_set():
                names, times = map(list, zip(*found, strict=True))
                fields = {"name": BASELINE_SPEED, "perf_tag": self._tag, "runs": names, "step_times_s": times}
                self._run.add_record("event", fields)

    def _step_times(self) -> list[tuple[str, float]]:
        """Return the names and step times of the last finished runs with the same tag, the newest first."""
        newest = heapq.nlargest(_MAX_READ, find_run_folders(self._log_dir), key=lambda run: run[2].st_mtime_ns)
        found: list[tuple[str, float]] = []
        for name, path, _ in newest:
            if self._is_stopped.is_set() or len(found) == _MAX_RUNS:
                break
            folder = RunFolder(Path(path))
            try:
                data = read_small(folder.private / "summary.json", _MAX_BYTES, below=folder.path)
                summary = decode_json(data, _StoredSummary)
            except (OSError, msgspec.MsgspecError, RecursionError):
                continue
            is_same = self._tag in (summary.perf_tag or "").split(", ") and summary.run_id != self._run.id
            time_s = summary.step_time_s
            if is_same and summary.overview.state == "finished" and time_s is not None and time_s > 0:
                found.append((name, time_s))
        return found
