"""The map of all ranks over a whole run: how much longer each one took than the others, in one byte per cell."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

__all__ = ["RANK_MAP_COLUMNS", "RANK_MAP_QUANTITIES", "RANK_MAP_ROWS", "RankMap", "rank_map_codes"]

RANK_MAP_ROWS = 500
RANK_MAP_COLUMNS = 480
RANK_MAP_QUANTITIES = ("own", "wait", "data")

_LOW, _HIGH = -0.1, 0.5
_MAX_CODE = 255
_MAX_ITERATION = 1 << 62


class RankMap(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix of ranks and iterations for each quantity, as it is stored.

    A cell that covers several ranks or windows has the highest of them, so one slow rank among many stays visible.
    """

    world_size: int
    ranks_per_row: int
    first_iteration: int
    iterations_per_column: int
    num_columns: int
    last_iteration: int
    cells: dict[str, bytes]
    """The compressed codes of `own`, `wait` and `data`, row by row; see `rank_map_codes`."""
    has_merged_windows: bool = False
    """Whether old windows in the files of the ranks were merged, so that this map has more detail."""

    @property
    def num_rows(self) -> int:
        """The number of rows that its ranks take."""
        return -(-self.world_size // max(self.ranks_per_row, 1))

    @property
    def is_valid(self) -> bool:
        """Whether its numbers fit together, and the cells of all quantities are there."""
        width = self.iterations_per_column
        if width < 1 or not 0 <= self.first_iteration <= self.last_iteration < _MAX_ITERATION:
            return False
        if (self.last_iteration - self.first_iteration) // width + 1 != self.num_columns:
            return False
        return all(self.codes_of(quantity) is not None for quantity in RANK_MAP_QUANTITIES)

    def codes_of(self, quantity: str) -> bytes | None:
        """Return the codes of a quantity, row by row; None if they are missing or damaged."""
        size = self.num_rows * self.num_columns
        is_valid = 0 < self.num_rows <= RANK_MAP_ROWS and 0 < self.num_columns <= RANK_MAP_COLUMNS
        if not is_valid or self.ranks_per_row < 1 or quantity not in self.cells:
            return None
        try:
            codes = zlib.decompressobj().decompress(self.cells[quantity], size + 1)
        except zlib.error:
            return None
        return codes if len(codes) == size else None


def rank_map_codes(excess: Any) -> Any:
    """Return 1 to 255 for an array of shares between -10 % and +50 %; 0 stands for a cell without data."""
    import numpy as np

    share = (np.clip(excess, _LOW, _HIGH) - _LOW) / (_HIGH - _LOW)
    return (1 + np.round((_MAX_CODE - 1) * share)).astype(np.uint8)
