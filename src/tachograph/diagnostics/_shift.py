"""Detects a lasting increase of the time per step: a change point, then a check that the increase is real.

Blocks of sixteen steps are merged until they cover about a second, because a short slow moment is not a slowdown. The
median of the last four merged blocks is compared with the twelve before them, leaving one block between for the change
itself. All four must be higher, by half a share and by six times the usual distance of a block from the median, and
their median by the whole share. Slow drift never makes such a contrast; `_creep.py` detects it.

Merging more blocks finds smaller changes in noisier steps, but later. So a rule uses two detectors.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tachograph.diagnostics._context import RunContext
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median

__all__ = ["Shift", "ShiftDetector"]

_NUM_BEFORE = 12
_NUM_AFTER = 4
_MIN_BLOCKS = _NUM_AFTER + 5
_MIN_BLOCK_S = 1.0
_MAX_MERGED = 64
_WIDTH_TO_SPREAD = 0.67 * 1.25 / 1.35 / math.sqrt(BLOCK)
"""Usual distance of the median of a block from the level, as a share of the interquartile range of its values."""


class Shift(NamedTuple):
    """A level that changed to another one."""

    before: float
    after: float
    step: int | None
    """The last step of the block in which it changed."""
    is_sharp: bool
    """Whether nearly all of the change lies between neighbouring blocks."""
    is_clean: bool
    """Whether it changed within one block and the signal is as steady after it as before."""


_Merged = tuple[float, float, int | None]
"""Median and interquartile range of some blocks, and their last step."""


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
        self._merging: list[list[float]] = []  # sorted blocks
        self._merged_s = 0.0
        self._blocks: deque[_Merged] = deque(maxlen=_NUM_BEFORE + _NUM_AFTER + 1)

    def clear(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()
        self._merging, self._merged_s = [], 0.0

    def add_block(self, stats: SignalStats, context: RunContext) -> Shift | None:
        """Add the last block of a signal; return the shift it confirms, if any."""
        self._merging.append(stats.values)
        # How long the steps of the block took; a value may stand for many of them.
        last_s, now_s = self._last_time_s, context.time_s
        self._last_time_s = now_s
        took_s = BLOCK * (stats.level or 0.0)
        self._merged_s += took_s if last_s is None or now_s is None else max(took_s, now_s - last_s)
        num_merged = len(self._merging)
        if num_merged < self._min_merged or (self._merged_s < _MIN_BLOCK_S and num_merged < _MAX_MERGED):
            return None
        self._blocks.append(_merge(self._merging, context.step))
        self._merging, self._merged_s = [], 0.0
        shift = _find_shift(self._blocks, self._min_share, self._min_merged)
        if shift is not None:
            self._blocks.clear()
        return shift

    def preview_blocks(self, batch: BlockBatch) -> Callable[[], None] | None:
        """Return a function that adds several blocks; None if one of them confirms a shift."""
        # Detectors of several rules merge the same blocks, unless one of them started over.
        key = (self._min_merged, len(self._merging), self._merged_s, self._last_time_s)
        if key not in batch.shared:
            batch.shared[key] = self._merge_blocks(batch)
        merged, merging, merged_s, last_s = batch.shared[key]
        if not self._is_quiet(merged):
            return None

        def commit() -> None:
            self._blocks.extend(merged)
            self._last_time_s, self._merging, self._merged_s = last_s, [*merging], merged_s

        return commit

    def _merge_blocks(self, batch: BlockBatch) -> tuple[list[_Merged], list[list[float]], float, float | None]:
        """Return the merged blocks, those that are not merged yet, how long these took, and the time of the last."""
        last_s, merged_s, min_merged = self._last_time_s, self._merged_s, self._min_merged
        blocks = [*self._merging, *batch.sorted_blocks]
        begin, end, merged = 0, len(self._merging), []
        for level, now_s, step in zip(batch.levels, batch.times_s, batch.steps, strict=True):
            took_s = BLOCK * level
            if last_s is not None and now_s is not None and now_s - last_s > took_s:
                took_s = now_s - last_s
            merged_s += took_s
            last_s = now_s
            end += 1
            if end - begin >= min_merged and (merged_s >= _MIN_BLOCK_S or end - begin >= _MAX_MERGED):
                merged.append(_merge(blocks[begin:end], step))
                begin, merged_s = end, 0.0
        return merged, blocks[begin:], merged_s, last_s

    def _is_quiet(self, merged: list[_Merged]) -> bool:
        """Return whether none of some merged blocks would confirm a shift."""
        levels = [level for level, _, _ in merged]
        factor = 1 + 0.5 * self._min_share
        if not levels or max(levels) < factor * min([*levels, *[level for level, _, _ in self._blocks]]):
            return True
        blocks = self._blocks.copy()
        for block in merged:
            blocks.append(block)
            if block[0] >= factor * blocks[0][0] and _find_shift(blocks, self._min_share, self._min_merged) is not None:
                return False
        return True


def _merge(blocks: Sequence[list[float]], step: int | None) -> _Merged:
    if len(blocks) == 1:
        return blocks[0][BLOCK // 2], blocks[0][-BLOCK // 4] - blocks[0][BLOCK // 4], step
    middle = median(sorted([values[BLOCK // 2] for values in blocks]))
    return middle, median(sorted([values[-BLOCK // 4] - values[BLOCK // 4] for values in blocks])), step


def _find_shift(blocks: deque[_Merged], min_share: float, num_merged: int) -> Shift | None:
    """Compare the last merged blocks with those before them."""
    # Most blocks are not higher than the first.
    if len(blocks) < _MIN_BLOCKS or blocks[-1][0] < (1 + 0.5 * min_share) * blocks[0][0]:
        return None
    *before, turn, first, second, third, fourth = blocks
    old = median(sorted([level for level, _, _ in before]))
    if old <= 0:
        return None  # a share of zero is undefined
    after = sorted([first[0], second[0], third[0], fourth[0]])
    # Noise makes one of four lower than the rest, so the full share is required of their median only.
    if after[0] < (1 + 0.5 * min_share) * old:
        return None
    spread = median(sorted([abs(level - old) for level, _, _ in before]))
    old_width = median(sorted([width for _, width, _ in before]))
    if after[0] - old < 6 * max(spread, old_width * _WIDTH_TO_SPREAD / math.sqrt(num_merged)):
        return None
    # Nor are they only as high as the signal often is; one block before may be an exception.
    before_levels = sorted([level for level, _, _ in before])
    usual_peak = before_levels[-2] if len(before_levels) > 6 else before_levels[-1]
    if after[0] - usual_peak < 0.25 * (after[1] - old):
        return None
    # The change may lie anywhere in the blocks `turn` and `first`.
    settled_blocks = (second, third, fourth)
    new = median(sorted([level for level, _, _ in settled_blocks]))
    # Within a slow drift the last blocks before the change are on the way already.
    latest = 0.5 * (before[-1][0] + before[-2][0])
    if new < (1 + min_share) * old or new - latest < 0.6 * (new - old):
        return None
    new_width = median(sorted([width for _, width, _ in settled_blocks])) / new
    levels = [level for level, _, _ in settled_blocks]
    is_clean = new_width <= 2 * old_width / old + 0.05 and max(levels) - min(levels) <= 0.1 * new
    is_sharp = new - latest >= 0.85 * (new - old)
    return Shift(old, new, turn[2], is_sharp, is_clean)
