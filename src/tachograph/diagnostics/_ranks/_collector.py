"""Lines up the windows of all ranks: one table per window of iterations, complete or given up.

Windows of one rank end at multiples of their length, which doubles while windows are short. Ranks double at about the
same iteration, but not exactly. So the collector has a *grid*, the largest length it has met, and puts each window into
the cell of the grid in which it ends. When the grid doubles, the cells that still wait for ranks are merged in pairs.

A cell is complete when every active rank has passed its end. If more than half of them are two cells further and their
newest record is ten seconds later, the ranks that have not passed are missing: the cell goes without them, and the
next ones do not wait for them until they report again. Ranks write their records about once per second, each at its own
time, so the ten seconds make the result independent of the order in which records arrive.

A few windows of 64 and of 256 iterations are merged from the cells as well, while those are shorter. The median of a
merged window is the mean of the medians, which has about the same error as the median of all iterations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from tachograph.diagnostics._ranks._labels import Integers, Numbers
from tachograph.records import PhaseTime, RankWindow

__all__ = ["COLUMNS", "RankTimes", "WindowCollector"]

FIRST_LENGTH = 16
MERGED_LENGTHS = (64, 256)

_MAX_CELLS = 64
_LATE_CELLS = 2
_LATE_S = 10.0
_PHASES = ("own", "wait", "data", "forward", "backward", "optimizer")
COLUMNS = (*_PHASES, *(f"{phase}_mad" for phase in _PHASES))
_NUM_COLUMNS = len(COLUMNS)
_UNKNOWN = PhaseTime(float("nan"), float("nan"))

_Row = tuple[float, ...]


class RankTimes(NamedTuple):
    """One window of iterations of all ranks. Arrays have an element per rank, NaN or 0 for a rank that is missing."""

    end: int
    """The number of the iteration after the last one."""
    length: int
    level: int
    """0 for windows as they were recorded; 1 and 2 for windows merged to 64 and 256 iterations."""
    time_s: float | None
    """When the last rank finished it, in Unix seconds."""
    num_iterations: Numbers
    columns: dict[str, Numbers]
    """Median and median absolute deviation of each quantity in seconds, by the names in `COLUMNS`."""
    longest_own_s: Numbers
    longest_iteration: Integers
    is_measured: bool
    """Whether the waiting was measured, in collectives; otherwise `wait` contains work."""


class WindowCollector:
    """Collects the windows of all ranks; see the module docstring."""

    def __init__(self, world_size: int) -> None:
        self.num_late = 0
        """Windows that came too late to be compared."""
        self._world_size = world_size
        self._grid = FIRST_LENGTH
        self._cells: dict[int, list[_Row]] = {}  # by end
        self._cell_time_s: dict[int, float] = {}
        self._last_end = 0  # of the last table
        self._ends = [0] * world_size  # of the last window of each rank
        self._is_active = [True] * world_size
        self._newest_s = float("-inf")
        self._head: int | None = None  # the cell that is next
        self._num_passed = 0  # active ranks that have passed its end
        self._num_far = 0  # active ranks that are two cells further
        self._num_active = world_size
        self._recent: list[RankTimes] = []

    def restart(self, rank: int) -> None:
        """Forget the windows of a rank: another process has its number now."""
        self._ends[rank] = 0
        self._is_active[rank] = True
        for end, rows in self._cells.items():
            self._cells[end] = [row for row in rows if row[0] != rank]
        self._choose_head()

    def add(self, rank: int, window: RankWindow) -> list[RankTimes]:
        """Add the window of a rank; return the tables that are complete now."""
        end = window.last_iteration + 1
        if end <= self._ends[rank]:
            return []  # the same window again
        is_new_length = False
        while window.num_iterations > self._grid:
            self._grid *= 2
            is_new_length = True
        if is_new_length:
            self._merge_cells()
        cell = -(-end // self._grid) * self._grid
        if cell <= self._last_end:
            self.num_late += 1
        elif window.wait is not None:
            self._cells.setdefault(cell, []).append(_row_of(rank, window))
            if window.time is not None:
                self._newest_s = max(self._newest_s, window.time)
                self._cell_time_s[cell] = max(self._cell_time_s.get(cell, window.time), window.time)
        end_before, self._ends[rank] = self._ends[rank], end
        head = self._head
        is_new_head = cell in self._cells and (head is None or cell < head)
        if is_new_head or is_new_length or not self._is_active[rank]:
            self._is_active[rank] = True
            self._choose_head()
        elif head is not None:
            far = head + _LATE_CELLS * self._grid
            self._num_passed += end_before < head <= end
            self._num_far += end_before < far <= end
        return self._pop_complete()

    def _merge_cells(self) -> None:
        for end in sorted(self._cells):
            cell = -(-end // self._grid) * self._grid
            if cell != end:
                self._cells[cell] = self._cells.pop(end) + self._cells.get(cell, [])
                if end in self._cell_time_s:
                    time_s = self._cell_time_s.pop(end)
                    self._cell_time_s[cell] = max(self._cell_time_s.get(cell, time_s), time_s)

    def _choose_head(self) -> None:
        """Count anew which ranks have passed the first cell."""
        self._head = head = min(self._cells, default=None)
        self._num_active = sum(self._is_active)
        if head is not None:
            far = head + _LATE_CELLS * self._grid
            active_ends = [end for end, is_active in zip(self._ends, self._is_active, strict=True) if is_active]
            self._num_passed = sum(end >= head for end in active_ends)
            self._num_far = sum(end >= far for end in active_ends)

    def _pop_complete(self) -> list[RankTimes]:
        tables: list[RankTimes] = []
        while self._head is not None:
            head = self._head
            if self._num_passed < self._num_active:
                is_late = self._newest_s >= self._cell_time_s.get(head, float("-inf")) + _LATE_S
                is_given_up = is_late and 2 * self._num_far > self._num_active
                if not is_given_up and len(self._cells) <= _MAX_CELLS:
                    break
                for rank, end in enumerate(self._ends):
                    self._is_active[rank] = self._is_active[rank] and end >= head
            rows, is_measured = _comparable(self._cells.pop(head))
            time_s = self._cell_time_s.pop(head, None)
            self._last_end = head
            if len(rows) >= 2 and 2 * len(rows) >= self._world_size:
                table = self._tabulate(head, rows, time_s, is_measured)
                tables += [table, *self._merge(table)]
            self._choose_head()
        return tables

    def _tabulate(self, end: int, rows: list[_Row], time_s: float | None, is_measured: bool) -> RankTimes:
        table = numpy.array(rows)
        ranks, counts = table[:, 0].astype(numpy.int64), table[:, 1]
        size = self._world_size
        num_iterations: Numbers = numpy.bincount(ranks, weights=counts, minlength=size).astype(numpy.float64)
        weights = counts / num_iterations[ranks]
        columns = {}
        for index, name in enumerate(COLUMNS):
            column = numpy.bincount(ranks, weights=weights * table[:, index + 4], minlength=size)
            columns[name] = numpy.where(num_iterations > 0, column, numpy.nan)
        longest_s, longest_iteration = numpy.full(size, numpy.nan), numpy.full(size, -1, numpy.int64)
        order = numpy.argsort(table[:, 2], kind="stable")  # the longest one of a rank is assigned last
        longest_s[ranks[order]] = table[order, 2]
        longest_iteration[ranks[order]] = table[order, 3].astype(numpy.int64)
        return RankTimes(end, self._grid, 0, time_s, num_iterations, columns, longest_s, longest_iteration, is_measured)

    def _merge(self, table: RankTimes) -> list[RankTimes]:
        """Return the longer windows that end with this one."""
        if self._grid >= MERGED_LENGTHS[-1]:
            self._recent.clear()
            return []
        self._recent = [times for times in self._recent if times.end > table.end - MERGED_LENGTHS[-1]] + [table]
        merged_windows = []
        for level, length in enumerate(MERGED_LENGTHS, start=1):
            if length > self._grid and table.end % length == 0:
                parts = [times for times in self._recent if times.end > table.end - length]
                if 2 * sum(part.length for part in parts) > length:
                    merged_windows.append(_mean_of(parts, length, level))
        return merged_windows


def _row_of(rank: int, window: RankWindow) -> _Row:
    phases = (
        window.own,
        window.wait or _UNKNOWN,
        window.data or _UNKNOWN,
        window.forward or _UNKNOWN,
        window.backward or _UNKNOWN,
        window.optimizer or _UNKNOWN,
    )
    longest_s, longest_iteration = window.longest_own_s, window.longest_iteration
    return (
        rank,
        window.num_iterations,
        float("nan") if longest_s is None else longest_s,
        -1 if longest_iteration is None else longest_iteration,
        *(phase.median_s for phase in phases),
        *(phase.mad_s for phase in phases),
        window.collective is not None,
    )


def _comparable(rows: list[_Row]) -> tuple[list[_Row], bool]:
    """Return the rows whose own times mean the same, without the minority, and whether waiting was measured in them."""
    num_measured = sum(bool(row[-1]) for row in rows)
    is_measured = 2 * num_measured > len(rows)
    if num_measured not in {0, len(rows)}:
        rows = [row for row in rows if bool(row[-1]) is is_measured]
    return rows, is_measured


def _mean_of(parts: list[RankTimes], length: int, level: int) -> RankTimes:
    last = parts[-1]
    num_iterations: Numbers = numpy.sum([part.num_iterations for part in parts], axis=0, dtype=numpy.float64)
    columns = {}
    for name in COLUMNS:
        total = numpy.zeros(len(num_iterations))
        for part in parts:
            total += numpy.where(part.num_iterations > 0, part.columns[name] * part.num_iterations, 0.0)
        columns[name] = numpy.where(num_iterations > 0, total / numpy.maximum(num_iterations, 1.0), numpy.nan)
    return RankTimes(
        last.end,
        length,
        level,
        last.time_s,
        num_iterations,
        columns,
        last.longest_own_s,
        last.longest_iteration,
        last.is_measured,
    )
