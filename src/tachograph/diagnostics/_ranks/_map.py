"""Builds the map of all ranks over a run from scored windows, in a size that does not grow.

The journals of thousands of ranks grow by gigabytes per day, too much to read for one picture. A column of the map
covers a number of iterations. When the columns are used up, or windows get longer than a column, columns are merged in
pairs.
"""

from __future__ import annotations

import zlib

import numpy

from tachograph.diagnostics._ranks._labels import group_medians
from tachograph.diagnostics._ranks._scores import ScoredWindow
from tachograph.records import RANK_MAP_COLUMNS, RANK_MAP_QUANTITIES, RANK_MAP_ROWS, RankMap, rank_map_codes

__all__ = ["RankMapBuilder"]


class RankMapBuilder:
    """Adds windows to the map of a run."""

    def __init__(self, earlier: RankMap | None = None) -> None:
        """Continue a map, or start an empty one if there is none or it is damaged."""
        self._world_size = 0
        self._ranks_per_row = 1
        self._cells = _empty_cells(0)
        self._first = self._last = -1
        self._width = 0
        self._has_merged_windows = False
        if earlier is not None:
            self._continue(earlier)

    def _continue(self, earlier: RankMap) -> None:
        if not earlier.is_valid:
            return
        codes = [earlier.codes_of(quantity) for quantity in RANK_MAP_QUANTITIES]
        self._world_size, self._ranks_per_row = earlier.world_size, earlier.ranks_per_row
        self._cells = _empty_cells(earlier.num_rows)
        for cells, code in zip(self._cells, codes, strict=True):
            cells[:, : earlier.num_columns] = numpy.frombuffer(code or b"", numpy.uint8).reshape(earlier.num_rows, -1)
        self._first, self._last = earlier.first_iteration, earlier.last_iteration
        self._width = earlier.iterations_per_column
        self._has_merged_windows = earlier.has_merged_windows

    def add(self, window: ScoredWindow) -> None:
        """Add a window; merged ones repeat others and are ignored."""
        if window.level or not window.num_ranks:
            return
        if window.world_size > self._world_size:
            self._grow(window.world_size)
        if not self._width:
            self._first, self._width = window.first_iteration, window.length
        last = window.end - 1
        if last < self._first:
            return  # an attempt that began before the first one
        while window.length > self._width or (last - self._first) // self._width >= RANK_MAP_COLUMNS:
            self._merge_columns()
        self._last = max(self._last, last)
        rows, column = window.ranks // self._ranks_per_row, (last - self._first) // self._width
        stages = window.labels.stage[window.ranks] + 1
        for cells, quantity in zip(self._cells, RANK_MAP_QUANTITIES, strict=True):
            values = window.own_s if quantity == "own" else window.column(quantity)
            is_measured = numpy.isfinite(values)
            values, stage = values[is_measured], stages[is_measured]
            if len(values):
                usual = group_medians(values, stage, int(stage.max()) + 1)[stage]
                codes = rank_map_codes(values / numpy.maximum(usual, 1e-9) - 1)
                numpy.maximum.at(cells[:, column], rows[is_measured], codes)

    def build(self) -> RankMap | None:
        """Return the map; None if there were no windows."""
        if not self._width:
            return None
        num_columns = (self._last - self._first) // self._width + 1
        return RankMap(
            world_size=self._world_size,
            ranks_per_row=self._ranks_per_row,
            first_iteration=self._first,
            iterations_per_column=self._width,
            num_columns=num_columns,
            last_iteration=self._last,
            cells={
                quantity: zlib.compress(cells[:, :num_columns].tobytes(), 1)
                for quantity, cells in zip(RANK_MAP_QUANTITIES, self._cells, strict=True)
            },
            has_merged_windows=self._has_merged_windows,
        )

    def _grow(self, world_size: int) -> None:
        old_cells, old_height = self._cells, self._ranks_per_row
        self._world_size, self._ranks_per_row = world_size, -(-world_size // RANK_MAP_ROWS)
        self._cells = _empty_cells(-(-world_size // self._ranks_per_row))
        old_rows = numpy.arange(old_cells.shape[1])
        rows = old_rows * old_height // self._ranks_per_row
        for cells, earlier in zip(self._cells, old_cells, strict=True):
            numpy.maximum.at(cells, rows, earlier)

    def _merge_columns(self) -> None:
        merged = numpy.maximum(self._cells[:, :, ::2], self._cells[:, :, 1::2])
        self._cells = _empty_cells(self._cells.shape[1])
        self._cells[:, :, : RANK_MAP_COLUMNS // 2] = merged
        self._width *= 2


def _empty_cells(num_rows: int) -> numpy.typing.NDArray[numpy.uint8]:
    return numpy.zeros((len(RANK_MAP_QUANTITIES), num_rows, RANK_MAP_COLUMNS), numpy.uint8)
