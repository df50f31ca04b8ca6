"""Detects a lasting increase of the time per step: a change point, then a check that the increase is real.

Blocks of sixteen steps are merged until they cover about a second, because a short slow moment is not a slowdown. The
median of the last four merged blocks is compared with the twelve before them, leaving one block between for the change
itself. All four must be higher, by half a share and by six times the usual distance of a block from the median, and
their median by the whole share. Slow drift never makes such a contrast; `_creep.py` detects it.

Merging more blocks finds smaller changes in noisier steps, but later. So a rule uses two detectors.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tachograph.diagnostics._context import RunContext
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median

__all__ = ["Shift", "ShiftDetector"]

_NUM_BEFORE = 12
_NUM_AFTER = 4
_MIN_BLOCK_S = 1.0
_MAX_MERGED = 64


class Shift(NamedTuple):
    """A level that changed to another one."""

    before: float
    after: float
    step: int | None
    """The last step of the block in which it changed."""
    is_clean: bool
    """Whether it changed within one block and the signal is as steady after it as before."""


class ShiftDetector:
    """Detects upward shifts; see the module docstring."""

    def __init__(self, min_share: float, min_merged: int = 1) -> None:
        """Start with no blocks.

        Args:
            min_share: minimum increase, as a share.
            min_merged: minimum number of blocks that are merged.
        """
        self._min_share = min_share
        self._min_merged = min_merged
        self._last_time_s: float | None = None
        self._merging: list[list[float]] = []
        self._merged_s = 0.0
        self._blocks: deque[tuple[float, float, int | None]] = deque(maxlen=_NUM_BEFORE + _NUM_AFTER + 1)

    def clear(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()
        self._merging, self._merged_s = [], 0.0

    def copy(self) -> ShiftDetector:
        """Return an independent copy."""
        other = ShiftDetector(self._min_share, self._min_merged)
        other._last_time_s, other._merged_s = self._last_time_s, self._merged_s
        other._merging, other._blocks = self._merging.copy(), self._blocks.copy()
        return other

    def add_block(self, stats: SignalStats, context: RunContext) -> Shift | None:
        """Add the last block of a signal; return the shift it confirms, if any."""
        self._merging.append(stats.values)
        # How long the steps of the block took; a value may stand for many of them.
        last_s, now_s = self._last_time_s, context.time_s
        self._last_time_s = now_s
        took_s = BLOCK * (stats.level or 0.0)
        self._merged_s += took_s if last_s is None or now_s is None else max(took_s, now_s - last_s)
        return self._check(context.step) if self._is_merged() else None

    def add_blocks(self, batch: BlockBatch) -> bool:
        """Add several blocks; return whether none of them confirms a shift. The rest of them is left out then."""
        last_s, merging, merged_s = self._last_time_s, self._merging, self._merged_s
        for values, level, now_s, step in zip(
            batch.sorted_blocks, batch.levels, batch.times_s, batch.steps, strict=True
        ):
            merging.append(values)
            took_s = BLOCK * level
            if last_s is not None and now_s is not None and now_s - last_s > took_s:
                took_s = now_s - last_s
            merged_s += took_s
            last_s = now_s
            if len(merging) >= self._min_merged and (merged_s >= _MIN_BLOCK_S or len(merging) >= _MAX_MERGED):
                if self._check(step) is not None:
                    return False
                merging, merged_s = self._merging, 0.0
        self._last_time_s, self._merged_s = last_s, merged_s
        return True

    def _is_merged(self) -> bool:
        num_merged = len(self._merging)
        return num_merged >= self._min_merged and (self._merged_s >= _MIN_BLOCK_S or num_merged >= _MAX_MERGED)

    def _check(self, step: int | None) -> Shift | None:
        """Compare the merged blocks with those before them, and start the next ones."""
        middle = median(sorted([values[BLOCK // 2] for values in self._merging]))
        width = median(sorted([values[-BLOCK // 4] - values[BLOCK // 4] for values in self._merging]))
        self._blocks.append((middle, width, step))
        self._merging, self._merged_s = [], 0.0
        # Fast path: most blocks are not higher than the first.
        lowest = (1 + 0.5 * self._min_share) * self._blocks[0][0]
        if len(self._blocks) < _NUM_AFTER + 5 or middle < lowest:
            return None
        *before, turn, first, second, third, fourth = self._blocks
        old = median(sorted(level for level, _, _ in before))
        if old <= 0:
            return None  # a share of zero is undefined
        spread = median(sorted(abs(level - old) for level, _, _ in before))
        after = sorted(level for level, _, _ in (first, second, third, fourth))
        # Noise makes one of four lower than the rest, so the full share is required of their median only.
        if after[0] < (1 + 0.5 * self._min_share) * old or after[0] - old < 6 * spread:
            return None
        # The change may lie anywhere in the blocks `turn` and `first`.
        settled_blocks = (second, third, fourth)
        new = median(sorted(level for level, _, _ in settled_blocks))
        # Within a slow drift the last blocks before the change are on the way already.
        latest = 0.5 * (before[-1][0] + before[-2][0])
        if new < (1 + self._min_share) * old or new - latest < 0.6 * (new - old):
            return None
        old_width = median(sorted(width for _, width, _ in before)) / old
        new_width = median(sorted(width for _, width, _ in settled_blocks)) / new
        levels = [level for level, _, _ in settled_blocks]
        is_clean = new_width <= 2 * old_width + 0.05 and max(levels) - min(levels) <= 0.1 * new
        self._blocks.clear()
        return Shift(old, new, turn[2], is_clean)
