"""The level and the spread of one signal, updated in about half a microsecond per value.

How it works. Values are collected in blocks of sixteen. A value strictly between `low` and `high` costs one comparison
and one append. Everything else happens once per block, or when a value leaves that band: listeners are called, and the
band is computed anew.

The *level* is the median of the last block, so it follows a trend with a delay of at most one block. The *trend* is the
change of the level from block to block, if it had the same direction twice; the smaller of both changes, because a loss
falls more and more slowly. All distances are measured from the trend, so that a falling loss has no larger spread than
a flat one.

The *spread* (`sigma`) is the largest of three estimates, all scaled to the standard deviation of Gaussian noise:

- half the interquartile range of a block, as the median over the last eight blocks;
- the same, as the mean over the last two blocks;
- the root mean square of the distances from the level before, or of the differences of neighbours if that is smaller,
  as the median over the last four blocks, with every distance capped at four spreads and without abnormal values.

Why three. A robust estimate alone (the first) underestimates a signal that regularly jumps between two levels, such as
a loss under mixup, and would report every jump. A root mean square alone is inflated by one outlier, which then hides
the next one. The maximum of both ignores rare outliers and still gives a bimodal signal a large spread. The two-block
mean reacts fast when the noise grows. Differences of neighbours contain the jumps of a bimodal signal, but not the slow
movement of a level that returns from a spike. Before eight blocks are complete, the spread is enlarged, because an
estimate from few values may be too small.

An *outlier* is a value above `outlier_above`. A listener decides whether an outlier is abnormal. An abnormal value
enters the block clipped to `outlier_above`, so that it does not shift level or spread; `values` still shows it as it
was recorded. Values that are NaN or infinite never enter a block.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from operator import mul, sub
from typing import NamedTuple

__all__ = ["BLOCK", "SignalColumn", "SignalListener", "SignalStats", "median", "skip_quiet_rows"]

BLOCK = 16
_MIDDLE = BLOCK // 2
_QUARTER = BLOCK // 4
_NUM_RMS_BLOCKS = 4
_NUM_WIDTH_BLOCKS = 8
_TO_SIGMA = 1.4826  # half the interquartile range of Gaussian noise, times this, is its standard deviation
_CAP_SIGMAS = 4.0
# Times of a block's values, in blocks since the middle of the block before.
_BLOCK_OFFSETS = tuple((index + 0.5) / BLOCK + 0.5 for index in range(BLOCK))


class SignalListener:
    """Receives the blocks and outliers of a signal."""

    def on_block(self, stats: SignalStats) -> None:
        """Handle sixteen more values; level and spread of `stats` are up to date."""

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Handle a value outside the band, or above the limit passed to `SignalStats.watch`.

        Returns:
            True if the value is abnormal and must not shift level and spread.
        """
        return False

    def on_not_finite(self, stats: SignalStats, value: float) -> None:
        """Handle a value that is NaN or infinite."""


class SignalStats:
    """Level and spread of one signal; see the module docstring.

    Attributes:
        signal: name of the signal, such as `loss`.
        metric: name under which the signal is recorded.
        level: median of the last block, abnormal values clipped; None before the first block.
        sigma: the spread; None until two blocks are complete.
        low: values up to this one are reported to the listeners like outliers.
        high: values from this one on leave the fast path.
        outlier_above: smallest value that is an outlier; infinite while that is unknown.
        values: the last block as recorded, sorted.
        first_level: level of the first block.
        first_value: the first value.
        num_in_blocks: number of values in complete blocks.
    """

    __slots__ = (
        "_band",
        "_block",
        "_block_listeners",
        "_blocks",
        "_cap",
        "_change",
        "_clipped_values",
        "_distances",
        "_last",
        "_not_finite_listeners",
        "_num_paused",
        "_outlier_listeners",
        "_squares",
        "_watch_limits",
        "_widths",
        "first_level",
        "first_value",
        "high",
        "level",
        "low",
        "metric",
        "num_in_blocks",
        "outlier_above",
        "sigma",
        "signal",
        "values",
    )

    def __init__(self, signal: str, band: tuple[float, float] | None = None) -> None:
        """Start with no values.

        Args:
            signal: name of the signal.
            band: how far above the level a value must be to be an outlier: in spreads, and as a share of the level.
                The larger distance counts. With zero spreads the spread is not measured; without a band no value is an
                outlier.
        """
        self.signal = signal
        self.metric = signal
        self._block_listeners: list[SignalListener] = []
        self._outlier_listeners: list[SignalListener] = []
        self._not_finite_listeners: list[SignalListener] = []
        self._band = band
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self.level: float | None = None
        self.sigma: float | None = None
        self.first_level: float | None = None
        self.first_value: float | None = None
        self.values: list[float] = []
        self.num_in_blocks = 0
        self.low = -math.inf
        self.high = self.outlier_above = math.inf
        self._block: list[float] = []
        self._clipped_values: dict[int, float] = {}  # original values of the current block, by index
        self._blocks: deque[list[float]] = deque(maxlen=_NUM_RMS_BLOCKS)
        self._widths: deque[float] = deque(maxlen=_NUM_WIDTH_BLOCKS)
        self._squares: deque[float] = deque(maxlen=_NUM_RMS_BLOCKS)
        self._distances: deque[tuple[float, list[float]]] = deque(maxlen=_NUM_RMS_BLOCKS)
        self._change: float | None = None
        self._cap = math.inf
        self._last: float | None = None
        self._num_paused = 0
        self._watch_limits: dict[SignalListener, float] = {}

    def add_listener(self, listener: SignalListener) -> None:
        """Call the methods of a listener, after those of the listeners before it."""
        kind = type(listener)
        # Most listeners leave some of the methods out, and a call that does nothing costs as much as any other.
        if kind.on_block is not SignalListener.on_block:
            self._block_listeners.append(listener)
        if kind.on_outlier is not SignalListener.on_outlier:
            self._outlier_listeners.append(listener)
        if kind.on_not_finite is not SignalListener.on_not_finite:
            self._not_finite_listeners.append(listener)

    def add(self, value: float) -> None:
        """Add a value. This is the hot path: one comparison and one append for most values."""
        if self.low < value < self.high:
            block = self._block
            block.append(value)
            if len(block) == BLOCK:
                self._finish_block(block)
        else:
            self._add_outside_band(value)

    @property
    def num_added(self) -> int:
        """Number of finite values so far, including the incomplete block."""
        return self.num_in_blocks + len(self._block)

    @property
    def last(self) -> float | None:
        """The last value; an abnormal one is clipped."""
        return self._block[-1] if self._block else self._last

    @property
    def last_block(self) -> list[float]:
        """The last complete block in the order of recording; abnormal values are clipped."""
        return self._blocks[-1]

    def last_values(self, num_values: int) -> list[float]:
        """Return the last values, at most about 64 of them, in the order of recording; abnormal ones are clipped."""
        values = list(self._block)
        for block in reversed(self._blocks):
            if len(values) >= num_values:
                break
            values = [*block, *values]
        return values[-num_values:]

    @property
    def half_width(self) -> float:
        """Half the interquartile range of the last block; around its trend, if the signal has a band."""
        return self._widths[-1] if self._widths else _half_width(self.values)

    def pause(self, num_values: int) -> None:
        """Report no outliers for the next values because a new level is expected, then continue from that level."""
        self._num_paused = max(self._num_paused, num_values)
        self.outlier_above = math.inf
        self.high = min(self._watch_limits.values(), default=math.inf)

    def watch(self, listener: SignalListener, above: float | None) -> None:
        """Report every value from `above` on to one listener; None returns to outliers only."""
        if above == self._watch_limits.get(listener):
            return
        if above is None:
            self._watch_limits.pop(listener, None)
        else:
            self._watch_limits[listener] = above
        self._update_high()

    def num_above(self, value: float, num_blocks: int = _NUM_RMS_BLOCKS) -> int:
        """Return how many values of the last blocks and of the incomplete one are at least `value`."""
        blocks = list(self._blocks)[-num_blocks:]
        return sum(other >= value for block in (*blocks, self._block) for other in block)

    def num_rises(self, height: float) -> int:
        """Return how often the last values rose to at least `height` above the trend of their time.

        Consecutive values that are this high count once: a slow spike is one event, a bimodal signal many.
        """
        count, was_above = 0, False
        for offset, distances in (*self._distances, (-(self.level or 0.0), self._block)):
            for distance in distances:
                is_above = distance + offset >= height
                count += is_above and not was_above
                was_above = is_above
        return count

    def log_sigma(self) -> float:
        """Return the spread of the last 64 values around their trend, as logarithms; 0 if one is not positive."""
        ratios = []
        # Without a band there are no distances.
        for block, (offset, distances) in zip(self._blocks, self._distances, strict=False):
            for value, distance in zip(block, distances, strict=True):
                trend = value - distance - offset
                if value <= 0 or trend <= 0:
                    return 0.0
                ratios.append(value / trend)
        if not ratios:
            return 0.0
        ratios.sort()
        # From the lowest tenth to the upper quartile: spikes are in the upper quarter.
        sigma = math.log(ratios[-len(ratios) // 4] / ratios[len(ratios) // 10]) / 1.956
        # The widths cover twice as many values, which makes a lucky estimate rarer.
        return max(sigma, _TO_SIGMA * median(sorted(self._widths)) / (self.level or math.inf))

    def _add_outside_band(self, value: float) -> None:
        if not math.isfinite(value):
            for listener in self._not_finite_listeners:
                listener.on_not_finite(self, value)
            return
        is_abnormal, is_low = False, value <= self.low
        for listener in self._outlier_listeners:
            if is_low or value >= self._watch_limits.get(listener, self.outlier_above):
                is_abnormal = listener.on_outlier(self, value) or is_abnormal
        if is_abnormal:
            self._clipped_values[len(self._block)] = value
            # Before there is a band, the value before stands for an abnormal one.
            value = self.outlier_above if self.outlier_above < math.inf or self.last is None else self.last
        self._block.append(value)
        if len(self._block) == BLOCK:
            self._finish_block(self._block)

    def _finish_block(self, block: list[float]) -> None:
        self._block = []
        self._last = block[-1]
        sorted_block = self.values = sorted(block)
        abnormal = self._clipped_values
        if abnormal:
            self.values = sorted(abnormal.get(index, value) for index, value in enumerate(block))
            self._clipped_values = {}
        before = self.level
        self.level = 0.5 * (sorted_block[_MIDDLE - 1] + sorted_block[_MIDDLE])
        if before is None:
            self.first_level = self.level
            self.first_value = block[0]
        self.num_in_blocks += BLOCK
        self._blocks.append(block)
        if self._band is not None:
            if self._band[0]:
                self._measure(block, sorted_block, before, abnormal)
                self._update_sigma(self._band)
            else:
                self.outlier_above = (1 + self._band[1]) * self.level
                self._update_high()
        for listener in self._block_listeners:
            listener.on_block(self)

    def _measure(
        self, block: list[float], sorted_block: list[float], before: float | None, abnormal: dict[int, float]
    ) -> None:
        """Measure the distances of a block from the trend."""
        level = self.level or 0.0
        trend = 0.0
        if before is None:
            before = level
        else:
            change, last = level - before, self._change
            self._change = change
            # A trend moves twice in the same direction. A fall slows down, so the smaller change is the trend.
            if last is None or change * last > 0:
                trend = change if last is None or abs(change) < abs(last) else last
        width = _half_width(sorted_block)
        if abs(trend) > 0.5 * width:
            distances = [value - before - trend * offset for offset, value in zip(_BLOCK_OFFSETS, block, strict=True)]
            sorted_distances = sorted(distances)
            width = _half_width(sorted_distances)
            lowest, highest = sorted_distances[0], sorted_distances[-1]
        else:
            trend = 0.0
            distances = [value - before for value in block]
            lowest, highest = sorted_block[0] - before, sorted_block[-1] - before
        self._widths.append(width)
        self._distances.append((before + trend - level, distances))
        if self.num_in_blocks == BLOCK:
            return  # there is no level before the first block
        if 0 < len(abnormal) <= _QUARTER:
            distances = [distance for index, distance in enumerate(distances) if index not in abnormal]
        cap = self._cap
        if highest > cap or -lowest > cap:
            distances = [max(-cap, min(distance, cap)) for distance in distances]
        steps = list(map(sub, distances[1:], distances))
        squares = sum(map(mul, distances, distances)) / len(distances), 0.5 * sum(map(mul, steps, steps)) / len(steps)
        self._squares.append(min(squares))

    def _update_sigma(self, band: tuple[float, float]) -> None:
        """Update the spread and the band."""
        widths = self._widths
        if self._num_paused > 0:
            self._num_paused -= BLOCK
            return
        if len(widths) < 2 or self.level is None:
            return
        recent = 0.5 * (widths[-1] + widths[-2])
        width = max(median(sorted(widths)), recent)
        self._cap = _CAP_SIGMAS * _TO_SIGMA * width
        rms = math.sqrt(median(sorted(self._squares)))
        few_blocks_factor = 1 + (_NUM_WIDTH_BLOCKS - len(widths)) / (
            2 * _NUM_WIDTH_BLOCKS
        )  # few blocks may underestimate it
        self.sigma = sigma = few_blocks_factor * max(_TO_SIGMA * width, rms)
        # A constant signal has no spread: zero times an infinite number of spreads would be NaN.
        distance = band[0] * sigma if sigma > 0 or math.isfinite(band[0]) else math.inf
        self.outlier_above = self.level + max(distance, band[1] * abs(self.level))
        self._update_high()

    def _update_high(self) -> None:
        self.high = min(self.outlier_above, *self._watch_limits.values()) if self._watch_limits else self.outlier_above


class SignalColumn(NamedTuple):
    """Values that will be added to a signal; none of them may be NaN."""

    stats: SignalStats
    values: Sequence[float]
    lowest: float
    highest: float

    @classmethod
    def of(cls, stats: SignalStats, values: Sequence[float]) -> SignalColumn | None:
        """Return the column of some values; None if one of them is not finite."""
        total = sum(values)
        if total - total != 0:  # also if the sum of large numbers is infinite
            return None
        return cls(stats, values, min(values), max(values))


def skip_quiet_rows(columns: Iterable[SignalColumn], row: int, end: int) -> int:
    """Add the values of rows in which no value leaves its band and no block is completed; return the next row.

    Args:
        columns: the values of all signals, one for each row.
        row: the row to begin with.
        end: the row to stop at.
    """
    for stats, values, lowest, highest in columns:
        num_quiet = BLOCK - 1 - len(stats._block)
        end = min(end, row + num_quiet)
        if end <= row:
            return row
        low, high = stats.low, stats.high
        if not (low < lowest and highest < high):
            for index in range(row, end):
                if not low < values[index] < high:
                    end = index
                    break
    for stats, values, _, _ in columns:
        stats._block += values[row:end]
    return end


def _half_width(sorted_values: list[float]) -> float:
    """Return half the interquartile range of a sorted block."""
    return 0.25 * (
        sorted_values[-_QUARTER - 1] + sorted_values[-_QUARTER] - sorted_values[_QUARTER - 1] - sorted_values[_QUARTER]
    )


def median(sorted_values: list[float]) -> float:
    """Return the median of sorted values."""
    half = len(sorted_values) // 2
    return sorted_values[half] if len(sorted_values) % 2 else 0.5 * (sorted_values[half - 1] + sorted_values[half])
