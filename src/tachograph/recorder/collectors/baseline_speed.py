"""Records how fast earlier runs with the same `perf_tag` were, for the rule `slower_than_baseline`.

It also records at which steps their step time changed, for the rule `step_time_change`: a schedule changes it again at
the same steps. The alerts of that rule in the journals of the newest runs say so.

A thread looks once at earlier runs: at the start, and again if the training code sets another `perf_tag` later. The
median step time of a run is in the summary that the list of runs stored beside its journal. For a finished run that
nobody has listed yet, it is estimated from pieces of the journal at even distances. The number of runs and of bytes
read of each is bounded, whatever the size of the log folder.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, NamedTuple

import msgspec

from tachograph._base.files import read_small
from tachograph._base.guard import faults, guard, suppress
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.threads import TelemetryThread
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder, find_run_folders, is_linked_out
from tachograph.recorder._run import Run
from tachograph.records import BASELINE_SPEED, decode, finite_or_none

__all__ = ["BaselineReader"]

_MAX_RUNS = 20
_MAX_READ = 200
_MAX_SUMMARY_BYTES = 1 << 22
_HEAD_BYTES = 256 << 10
_END_BYTES = 16 << 10
_NUM_PIECES = 8
_PIECE_BYTES = 32 << 10
_PAUSE_S = 0.01
_MAX_SCANNED = 5
"""Runs whose journals are searched for changes of the step time."""
_MAX_SCAN_BYTES = 32 << 20
_SCAN_BYTES = 1 << 20
_MAX_CHANGES = 64
_CHANGE_RULE = "step_time_change"
_STEP_TIMES = ("sec_per_step", "window/iteration_sec_mean")
"""The metrics with the time of a step; the first one counts that a run has."""


class _StoredOverview(msgspec.Struct):
    state: str = ""


class _StoredSummary(msgspec.Struct):
    """The fields of a summary that are read here; see `CatalogSummary`."""

    overview: _StoredOverview
    is_full: bool = False
    run_id: str | None = None
    perf_tag: str | None = None
    step_time_s: float | None = None


class _EarlierRun(NamedTuple):
    run_id: str | None
    perf_tags: frozenset[str]
    step_time_s: float | None


class BaselineReader:
    """Looks up the speed of earlier runs, once for each `perf_tag` that the run gets."""

    def __init__(self, run: Run, log_dir: str) -> None:
        self._run = run
        self._log_dir = os.path.abspath(log_dir)  # the training code may change its working directory
        self._tags: frozenset[str] = frozenset()
        self._has_recorded = False
        self._is_stopped = ReentrantEvent()
        self._thread: TelemetryThread | None = None
        self.collect()

    def collect(self) -> None:
        """Start looking if the run has a new `perf_tag`."""
        tags = self._current_tags()
        if tags == self._tags or (self._thread is not None and self._thread.is_alive()):
            return
        self._tags = tags
        self._thread = TelemetryThread(self._record_baseline, name="tachograph-baseline")
        self._thread.start()

    def close(self) -> None:
        """Stop looking: a run that ends now needs no baseline."""
        self._is_stopped.set()

    def forget(self) -> None:
        """In a forked child: the parent records the result."""
        self._is_stopped.set()

    def _current_tags(self) -> frozenset[str]:
        """Return the latest tags: from the training config, or else from the start of the run."""
        parameters = getattr(self._run.span_recorder, "parameters", None)
        return _tags_of(getattr(parameters, "perf_tag", None) or self._run.facts.get("perf_tag"))

    def _record_baseline(self) -> None:
        with guard("looking up the speed of earlier runs"):
            tags = self._tags
            step_times, changes = self._read_earlier_runs(tags) if tags else ([], [])
            # With another tag, the speed of runs with the one before does not count any more.
            if (step_times or self._has_recorded) and not self._is_stopped.is_set():
                self._has_recorded = True
                fields = {
                    "name": BASELINE_SPEED,
                    "perf_tag": ", ".join(sorted(tags)),
                    "runs": [name for name, _ in step_times],
                    "step_times_s": [time_s for _, time_s in step_times],
                }
                if changes:
                    fields["step_time_changes"] = changes[:_MAX_CHANGES]
                self._run.add_record("event", fields)

    def _read_earlier_runs(self, tags: frozenset[str]) -> tuple[list[tuple[str, float]], list[dict[str, float]]]:
        """Return names and step times of the last finished runs with a common tag, newest first, and their changes."""
        newest = heapq.nlargest(_MAX_READ, find_run_folders(self._log_dir), key=lambda run: run[2].st_mtime_ns)
        step_times: list[tuple[str, float]] = []
        changes: list[dict[str, float]] = []
        for name, path, _ in newest:
            if self._is_stopped.is_set() or len(step_times) == _MAX_RUNS:
                break
            folder = RunFolder(Path(path))
            run = self._read_run(folder, tags)
            if run is None or run.run_id == self._run.id or not run.step_time_s or tags.isdisjoint(run.perf_tags):
                continue
            step_times.append((name, run.step_time_s))
            if len(step_times) <= _MAX_SCANNED and not is_linked_out(self._log_dir, folder):
                changes += self._read_changes(folder)
        return step_times, changes

    def _read_run(self, folder: RunFolder, tags: frozenset[str]) -> _EarlierRun | None:
        """Return id, tags and step time of a run; None if it has not finished or cannot be read."""
        try:
            data = read_small(folder.private / "summary.json", _MAX_SUMMARY_BYTES, below=folder.path)
            summary = decode_json(data, _StoredSummary)
        except faults(OSError, msgspec.MsgspecError, RecursionError):
            summary = None
        if summary is not None and summary.is_full:
            run_tags = _tags_of((summary.perf_tag or "").split(", "))
            is_finished = summary.overview.state == "finished"
            return _EarlierRun(summary.run_id, run_tags, summary.step_time_s) if is_finished else None
        self._is_stopped.wait(_PAUSE_S)  # the training loop comes first
        try:
            if is_linked_out(self._log_dir, folder):
                return None
            with open(folder.journal, "rb") as file:  # a compressed one would have to be read from its beginning
                return _read_journal(file, tags)
        except faults(OSError):
            return None

    def _read_changes(self, folder: RunFolder) -> Iterator[dict[str, float]]:
        """Yield the first step after each change of the step time of a run, and by which factor it changed."""
        with suppress(OSError), open(folder.journal, "rb") as file:
            for offset in range(0, _MAX_SCAN_BYTES, _SCAN_BYTES):
                # One line more than a piece, so that none is cut; an alert in two pieces is the same change twice.
                for record in _records_at(file, offset, _SCAN_BYTES + _PIECE_BYTES, (_CHANGE_RULE.encode(),)):
                    change = _change_of(record)
                    if change is not None:
                        yield change
                if file.tell() < offset + _SCAN_BYTES or self._is_stopped.wait(_PAUSE_S):
                    break


def _change_of(record: dict[str, Any]) -> dict[str, float] | None:
    evidence = record.get("evidence")
    is_alert = record["event"] == "alert" and record.get("rule") == _CHANGE_RULE and record.get("status") != "resolved"
    if not is_alert or not isinstance(evidence, dict):
        return None
    step, before_s, after_s = (finite_or_none(evidence.get(name)) for name in ("from_step", "before_s", "after_s"))
    if step is None or not before_s or not after_s:
        return None
    return {"step": step, "factor": after_s / before_s}


def _read_journal(file: BinaryIO, tags: frozenset[str]) -> _EarlierRun | None:
    """Return id, tags and step time from the journal of a finished run, reading only a bounded part of it."""
    size = file.seek(0, os.SEEK_END)
    last = list(_records_at(file, max(0, size - _END_BYTES), _END_BYTES, (b'"start"', b'"end"')))
    if not last or last[-1]["event"] != "end" or last[-1].get("status") != "finished":
        return None
    run_id, run_tags = None, frozenset[str]()
    for record in _records_at(file, 0, _HEAD_BYTES, (b'"start"', b'"perf_tag"')):
        if record["event"] == "start" or record.get("name") == "update_training_telemetry_config":
            run_id = run_id or record.get("run_id")
            run_tags = _tags_of(record.get("perf_tag")) or run_tags
    if tags.isdisjoint(run_tags):
        return None
    times: dict[str, list[float]] = {name: [] for name in _STEP_TIMES}
    pieces = [number * max(0, size - _PIECE_BYTES) // (_NUM_PIECES - 1) for number in range(_NUM_PIECES)]
    is_small = size <= _NUM_PIECES * _PIECE_BYTES
    for offset in [0] if is_small else pieces:
        field_names = [f'"{name}"'.encode() for name in _STEP_TIMES]
        for record in _records_at(file, offset, size if is_small else _PIECE_BYTES, field_names):
            for name, values in times.items():
                if (time_s := finite_or_none(record.get(name))) is not None and time_s > 0:
                    values.append(time_s)
    step_times_s = next((values for values in times.values() if values), [])
    return _EarlierRun(run_id, run_tags, median(step_times_s)) if step_times_s else None


def _records_at(file: BinaryIO, offset: int, num_bytes: int, texts: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records in a part of a journal whose lines contain one of some texts."""
    file.seek(offset)
    lines = file.read(num_bytes).split(b"\n")
    for line in lines[1 if offset else 0 : -1]:  # a part that starts inside a line; an incomplete last one
        if any(text in line for text in texts):
            try:
                yield decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue


def _tags_of(value: Any) -> frozenset[str]:
    each = value if isinstance(value, (list, tuple)) else [value]
    return frozenset(str(tag) for tag in each if tag)
