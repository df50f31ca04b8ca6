"""Merge old windows of ranks in the files of an ended run: to one minute, and to ten minutes if they are a day old.

Thousands of ranks write gigabytes of windows per day, which are rarely looked at later. The age of a window is the time
from it to the end of the run. The windows of the last hour stay as they are, and so do those within ten minutes of an
alert. The windows of rank 0 also stay, because they are in the journal of the run.

The windows of rank 0 say which ones are merged: a *slot* is a range of iterations that took rank 0 a minute. So the
merged windows of all ranks cover the same iterations. A merged window has the means of the medians and of the
deviations, weighted by iterations, and the longest own time with its iteration.

The map of all ranks shows more than merged windows do, so a run without a map is left alone. Before the first file is
replaced, the map is marked, and from then on it is always read instead of the journals. Each file is replaced by one
rename. Killed at any moment, some files have merged windows and others do not; the next call merges the rest.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.files import create_file, move_file, temporary_path, write_all
from tachograph.journal import (
    FIRST_NODE_NUMBER,
    RankJournal,
    RunFolder,
    compress_journal,
    compressed_path,
    journal_size,
    list_rank_journals,
    open_journal,
    read_rank_map,
    stat_journal,
    write_rank_map,
)
from tachograph.records import RankWindow, decode, encode, finite_or_none, merge_windows

__all__ = ["MergePlan", "WindowMerger", "list_mergeable_journals", "merge_rank_windows", "plan_merge"]

_UNMERGED_S = 3_600.0
_SHORT_SLOT_S, _LONG_SLOT_S = 60.0, 600.0
_LONG_SLOTS_FROM_S = _UNMERGED_S + 86_400.0
_ALERT_MARGIN_S = 600.0
_BLOCK_BYTES = 1 << 20
_WINDOW = b'{"event":"rank",'
_ALERT = b'{"event":"alert",'
_BORDERS = (b'{"event":"start"', b'{"event":"end"')
_FIELDS = frozenset({"event", "from_rank", "time", "last", "n", "ms", "max", "seq", "windows"})
_INVALID = (msgspec.MsgspecError, ValueError, RecursionError)

Publishing = Callable[[], contextlib.AbstractContextManager[bool]]


class MergePlan:
    """Which windows of a rank are merged into one.

    Args:
        windows: last iteration and time of the windows of rank 0.
        alert_times_s: when alerts were opened, changed and resolved.
    """

    def __init__(self, windows: Iterable[tuple[int, float]], alert_times_s: Iterable[float]) -> None:
        ordered = sorted(windows)
        self._ends = [last for last, _ in ordered]
        self._slots: list[int | None] = []
        self._last_by_slot: dict[int, int] = {}
        alerts_s = sorted(alert_times_s)
        newest_s = max((time_s for _, time_s in ordered), default=0.0)
        slot, slot_start_s = -1, float("-inf")
        for last, time_s in ordered:
            age_s = newest_s - time_s
            if age_s <= _UNMERGED_S or _is_near(time_s, alerts_s):
                self._slots.append(None)
                slot_start_s = float("-inf")
                continue
            slot_s = _LONG_SLOT_S if age_s > _LONG_SLOTS_FROM_S else _SHORT_SLOT_S
            if not 0.0 <= time_s - slot_start_s < slot_s:  # also if a resumed run went back
                slot, slot_start_s = slot + 1, time_s
            self._slots.append(slot)
            self._last_by_slot[slot] = last

    def slot_of(self, last_iteration: int) -> int | None:
        """Return the slot of the window that ends with an iteration; None if it stays as it is."""
        index = bisect.bisect_left(self._ends, last_iteration)
        return self._slots[index] if index < len(self._slots) else None

    def is_end(self, slot: int, last_iteration: int) -> bool:
        """Return whether nothing follows in a slot."""
        return last_iteration >= self._last_by_slot[slot]

    @property
    def remaining_share(self) -> float:
        """How many windows of a rank are left, as a share."""
        num_unmerged = sum(slot is None for slot in self._slots)
        return (num_unmerged + len(self._last_by_slot)) / len(self._slots) if self._slots else 1.0


def _is_near(time_s: float, alerts_s: Sequence[float]) -> bool:
    index = bisect.bisect_left(alerts_s, time_s - _ALERT_MARGIN_S)
    return index < len(alerts_s) and alerts_s[index] <= time_s + _ALERT_MARGIN_S


class _WindowGroup:
    """Windows of one rank that become one."""

    def __init__(self, slot: int, shape: tuple[bool, ...], line: bytes) -> None:
        self.slot = slot
        self.shape = shape
        self.line = line
        """The line of its only window."""
        self.windows: list[RankWindow] = []
        self.time: Any = None


class WindowMerger:
    """Turns the lines of the file of a rank or host into the lines with merged windows, in order."""

    def __init__(self, plan: MergePlan) -> None:
        self._plan = plan
        self._groups: dict[int | None, _WindowGroup] = {}

    def add(self, line: bytes) -> Iterator[bytes]:
        """Add a line with its newline; yield the lines that are complete now."""
        if not line.startswith(_WINDOW):
            if line.startswith(_BORDERS):  # another process has the number of the rank now
                yield from self._finish(_decode(line).get("from_rank"))
            yield line
            return
        record = _decode(line)
        rank = record.get("from_rank")
        window = RankWindow.from_record(record) if record.keys() <= _FIELDS and line.endswith(b"\n") else None
        slot = self._plan.slot_of(window.last_iteration) if window is not None else None
        if window is None or slot is None:
            yield from self._finish(rank)
            yield line
            return
        shape = (*(value is None for value in record["ms"]), "max" in record, "seq" in record)
        group = self._groups.get(rank)
        if group is not None:
            is_next = window.last_iteration > group.windows[-1].last_iteration
            if group.slot != slot or group.shape != shape or not is_next:
                yield from self._finish(rank)
                group = None
        if group is None:
            group = self._groups[rank] = _WindowGroup(slot, shape, line)
        group.windows.append(window)
        group.time = record.get("time")
        if self._plan.is_end(slot, window.last_iteration):
            yield from self._finish(rank)

    def finish(self) -> Iterator[bytes]:
        """Yield the lines that are left."""
        for rank in list(self._groups):
            yield from self._finish(rank)

    def _finish(self, rank: int | None) -> Iterator[bytes]:
        group = self._groups.pop(rank, None)
        if group is None:
            return
        if len(group.windows) == 1:
            yield group.line
            return
        record = {"event": "rank", **({} if rank is None else {"from_rank": rank}), "time": group.time}
        yield encode(record | merge_windows(group.windows).to_fields()) + b"\n"


def _decode(line: bytes) -> dict[str, Any]:
    try:
        return decode(line)
    except _INVALID:
        return {}


def plan_merge(folder: RunFolder) -> MergePlan | None:
    """Return what would be merged; None if the run has no map of its ranks, or a damaged one.

    Raises:
        OSError: if the journal cannot be read.
    """
    rank_map = read_rank_map(folder)
    if rank_map is None or not rank_map.is_valid:
        return None
    windows: list[tuple[int, float]] = []
    alert_times_s: list[float] = []
    with open_journal(folder.journal) as file:
        for line in file:
            if not line.startswith((_WINDOW, _ALERT)):
                continue
            record = _decode(line)
            time_s, last = finite_or_none(record.get("time")), record.get("last")
            if time_s is None:
                continue
            if record["event"] == "alert":
                alert_times_s.append(time_s)
            elif isinstance(last, int):
                windows.append((last, time_s))
    return MergePlan(windows, alert_times_s)


def list_mergeable_journals(folder: RunFolder) -> list[RankJournal]:
    """Return the files of ranks, without those of machines that share no folder with rank 0.

    A server has copies of these, and a run that is resumed continues to receive them where its own files end.
    """
    return [journal for journal in list_rank_journals(folder) if journal.number < FIRST_NODE_NUMBER]


def merge_rank_windows(folder: RunFolder, publishing: Publishing) -> tuple[int, int]:
    """Merge the old windows of all ranks but rank 0; return the bytes that this freed, and the number of files.

    Args:
        folder: the run, which has ended.
        publishing: called when a file is complete. It yields whether it may take its place, and keeps others from
            writing meanwhile.

    Raises:
        OSError: if a file cannot be read or written. That one and the next ones are as they were.
    """
    plan = plan_merge(folder)
    if plan is None or plan.remaining_share == 1:
        return 0, 0
    num_freed_bytes = num_files = 0
    for journal in list_mergeable_journals(folder):
        size_before = stat_journal(journal.path).st_size
        if _merge_file(folder, journal, plan, publishing):
            num_freed_bytes += size_before - stat_journal(journal.path).st_size
            num_files += 1
    return num_freed_bytes, num_files


def _merge_file(folder: RunFolder, journal: RankJournal, plan: MergePlan, publishing: Publishing) -> bool:
    """Merge the windows of one file; return whether it was replaced."""
    path = journal.path
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of a process that was killed
        if leftover.stat().st_mtime < time.time() - 86_400:
            leftover.unlink(missing_ok=True)
    is_compressed = not path.exists()
    before = stat_journal(path)
    temporary = temporary_path(path)
    descriptor = create_file(temporary, below=folder.path, mode=before.st_mode & 0o777)
    try:
        try:
            num_bytes = _write_merged(path, descriptor, plan)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if num_bytes >= journal_size(path):
            return False  # nothing to merge, or all of it is merged
        os.utime(temporary, ns=(before.st_mtime_ns, before.st_mtime_ns))
        with publishing() as is_allowed:
            now = stat_journal(path)
            is_same = (now.st_ino, now.st_size, now.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
            if not is_allowed or not is_same:
                return False
            _mark_map(folder)
            move_file(temporary, path, below=folder.path)
            compressed_path(path).unlink(missing_ok=True)  # the plain file counts
    finally:
        temporary.unlink(missing_ok=True)
    if is_compressed:
        compress_journal(path, below=folder.path, publishing=publishing)
    return True


def _write_merged(path: Path, descriptor: int, plan: MergePlan) -> int:
    merger = WindowMerger(plan)
    buffer = bytearray()
    num_bytes = 0
    with open_journal(path) as file:
        for line in file:
            for merged_line in merger.add(line):
                buffer += merged_line
            if len(buffer) >= _BLOCK_BYTES:
                num_bytes += write_all(descriptor, bytes(buffer))
                buffer.clear()
    for merged_line in merger.finish():
        buffer += merged_line
    return num_bytes + write_all(descriptor, bytes(buffer))


def _mark_map(folder: RunFolder) -> None:
    """State in the map that it has more detail than the journals."""
    rank_map = read_rank_map(folder)
    if rank_map is None or not rank_map.is_valid:
        raise FileNotFoundError(f"{folder.rank_map} is missing or damaged")
    if not rank_map.has_merged_windows:
        write_rank_map(folder, msgspec.structs.replace(rank_map, has_merged_windows=True))
