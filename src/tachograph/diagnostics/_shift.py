"""Finds where the time per step shifts for good: a change point, then a look whether the shift is real."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tachograph.diagnostics._signal_stats import BLOCK, SignalStats, median

__all__ = ["Shift", "ShiftFinder"]

_BEFORE = 12
_AFTER = 4
_BLOCK_S = 1.0
"""Blocks of steps that take less time are put together: what is slow for a moment is not slower."""
_MOST_MERGED = 64


class Shift(NamedTuple):
    """A level that became another one."""

    before: float
    after: float
    step: int | None
    """The last step of the block in which it happened."""
    is_clean: bool
    """Whether it happened within one block and the signal is as steady after it as before."""


class ShiftFinder:
    """Compares the last four blocks of step times with the twelve before; a slow drift is none of its business."""

    def __init__(self, least_share: float) -> None:
        self._least_share = least_share
        self._merging: list[list[float]] = []
        self._merged_s = 0.0
        self._blocks: deque[tuple[float, float, int | None]] = deque(maxlen=_BEFORE + _AFTER + 1)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._merging, self._merged_s = [], 0.0

    def take(self, gauge: SignalStats, step: int | None) -> Shift | None:
        """Take a block, and return the shift upwards that it confirms."""
        self._merging.append(gauge.values)
        self._merged_s += BLOCK * (gauge.level or 0.0)
        if self._merged_s < _BLOCK_S and len(self._merging) < _MOST_MERGED:
            return None
        middle = median(sorted(values[BLOCK // 2] for values in self._merging))
        width = median(sorted(values[-BLOCK // 4] - values[BLOCK // 4] for values in self._merging))
        self._blocks.append((middle, width, step))
        self._merging, self._merged_s = [], 0.0
        # Most blocks are much like the one before the last: nothing to think about.
        if len(self._blocks) < _AFTER + 5 or middle < (1 + self._least_share) * self._blocks[-_AFTER - 2][0]:
            return None
        *before, turn, first, second, third, fourth = self._blocks
        old = median(sorted(level for level, _, _ in before))
        if old <= 0:
            return None  # there is no share of nothing
        spread = median(sorted(abs(level - old) for level, _, _ in before))
        after = sorted(level for level, _, _ in (first, second, third, fourth))
        if after[0] < (1 + self._least_share) * old or after[0] - old < 6 * spread:
            return None
        # It may have happened anywhere in the blocks called `turn` and `first`.
        settled = (second, third, fourth)
        new = median(sorted(level for level, _, _ in settled))
        old_width = median(sorted(width for _, width, _ in before)) / old
        new_width = median(sorted(width for _, width, _ in settled)) / new
        levels = [level for level, _, _ in settled]
        is_clean = new_width <= 2 * old_width + 0.05 and max(levels) - min(levels) <= 0.1 * new
        self._blocks.clear()
        return Shift(old, new, turn[2], is_clean)
