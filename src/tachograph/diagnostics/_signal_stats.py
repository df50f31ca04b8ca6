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

*Batches.* Most blocks mean nothing to any listener, and calling each listener for each block costs more than everything
else. If many values arrive together, `preview_blocks` splits them into blocks and asks each listener whether all of
them are quiet: none of their values leaves the band, and none makes the listener report anything. If every listener of
every signal agrees, functions that they returned bring signals and listeners into the state that they would have after
the same blocks one by one. Otherwise nothing has changed; the blocks before the first that is not quiet are added in
this way, and the values of that one singly.

*Rough limits.* The first two estimates of the spread are cheap and never more than the third makes it. So the limit for
outliers is computed from them after a block, and exactly only when a value exceeds that or a listener asks for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from operator import mul, sub
from typing import Any

__all__ = [
    "BLOCK",
    "BlockBatch",
    "SignalColumn",
    "SignalListener",
    "SignalStats",
    "add_quiet_blocks",
    "median",
    "no_change",
    "skip_quiet_rows",
]

BLOCK = 16
_MIDDLE = BLOCK // 2
_QUARTER = BLOCK // 4
_NUM_RMS_BLOCKS = 4
_NUM_WIDTH_BLOCKS = 8
_MIN_BLOCKS_TO_PREVIEW = 8  # before that, many rules handle the start of a run
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

    def ignores_outliers(self, level: float) -> bool:
        """Return whether `on_outlier` does nothing while the signal has this level."""
        return False

    def on_not_finite(self, stats: SignalStats, value: float) -> None:
        """Handle a value that is NaN or infinite."""

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Find out whether several blocks are quiet, without changing anything.

        A listener that implements `on_block` and not this method receives all blocks singly.

        Returns:
            A function that does what `on_block` would have done for each block; None if one of them would be reported,
            would end an alert, or has a value that this listener watches for.
        """
        return None

    def preview_outliers(self, stats: SignalStats, values: Sequence[float]) -> tuple[int, Callable[[], None]] | None:
        """Find out how many of the next values change nothing but this listener and its band, outliers included.

        Returns:
            The number of values, and a function that brings this listener into the state after them; None if each
            outlier has to be handled singly.
        """
        return None


def no_change() -> None:
    """Do nothing: the result of `preview_blocks` for a listener whose state does not depend on the blocks."""


class BlockBatch:
    """Several consecutive blocks of one signal, and the values of the incomplete block after them.

    Attributes:
        blocks: the values of each block in the order of recording.
        sorted_blocks: the same, sorted.
        levels: the median of each block.
        peaks: the largest value of each block and of the incomplete block.
        rest: the values of the incomplete block.
        lowest: the lowest of all values.
        highest: the highest of all values.
        half_widths: half the interquartile range of each block, as `SignalStats.half_width`; empty if the spread of
            the signal is not measured.
        widths_before: the same, of the last eight blocks before.
        first_row: the row with which the first block ends; each other one ends sixteen rows later.
        steps: the step of each block's last value.
        times_s: the time of each block's last value.
        num_before: number of values in complete blocks before these.
        num_quiet: number of blocks before the one that is not quiet, if a listener found one: those can be added.
        shared: what several listeners compute from the blocks, by a key of their own.
        by_signal: the batches of all signals in the same rows, while they are previewed.
        commit_outliers: what `SignalListener.preview_outliers` returned, if the only listener for outliers supports it.
    """

    __slots__ = (
        "blocks",
        "by_signal",
        "commit_outliers",
        "first_row",
        "half_widths",
        "highest",
        "levels",
        "lowest",
        "num_before",
        "num_quiet",
        "peaks",
        "rest",
        "shared",
        "sorted_blocks",
        "steps",
        "times_s",
        "widths_before",
    )

    def __init__(
        self,
        values: list[float],
        first_row: int,
        steps: Sequence[int | None],
        times_s: Sequence[float | None],
        num_before: int,
        by_signal: dict[str, BlockBatch],
    ) -> None:
        """Split the values into blocks."""
        num_blocks = len(values) // BLOCK
        end = num_blocks * BLOCK
        self.blocks = [values[begin : begin + BLOCK] for begin in range(0, end, BLOCK)]
        self.sorted_blocks = list(map(sorted, self.blocks))
        self.levels = [0.5 * (block[_MIDDLE - 1] + block[_MIDDLE]) for block in self.sorted_blocks]
        self.rest = rest = values[end:]
        self.peaks = [block[-1] for block in self.sorted_blocks]
        self.peaks.append(max(rest, default=-math.inf))
        self.highest = max(self.peaks)
        self.lowest = min([block[0] for block in self.sorted_blocks] + rest)
        self.first_row = first_row
        last_row = first_row + end
        self.steps = steps[first_row:last_row:BLOCK]
        self.times_s = times_s[first_row:last_row:BLOCK]
        self.num_before = num_before
        self.by_signal = by_signal
        self.commit_outliers: Callable[[], None] | None = None
        self.half_widths: list[float] = []
        self.widths_before: list[float] = []
        self.num_quiet: int | None = None
        self.shared: dict[Any, Any] = {}

    def lowest_sigma(self, index: int) -> float:
        """Return a lower limit of the spread after a block, if the spread is measured."""
        end = len(self.widths_before) + index + 1
        widths = [*self.widths_before, *self.half_widths][max(0, end - _NUM_WIDTH_BLOCKS) : end]
        return _TO_SIGMA * _robust_width(widths)

    def lr_levels(self, before: float | None) -> list[float | None]:
        """Return the level of the learning rate at the end of each block, `before` where no new one is complete yet."""
        num_blocks = len(self.blocks)
        lr_batch = self.by_signal.get("lr")
        if lr_batch is None:
            return [before] * num_blocks
        lr_levels = [before, *lr_batch.levels]
        # The learning rate of a row is added before its loss.
        num_after = (self.first_row - lr_batch.first_row) // BLOCK + 1
        return lr_levels[num_after : num_after + num_blocks]

    @property
    def quiet_end(self) -> int:
        """The row after the last block that is known to be quiet."""
        return self.first_row + BLOCK * (self.num_quiet - 1) + 1 if self.num_quiet else 0


class _MeasuredBlock:
    """The distances of a block from the trend. They are computed when they are needed, which is rare in a batch."""

    __slots__ = ("_abnormal", "_before", "_block", "_cap", "_distances", "_mean_square", "offset")

    def __init__(
        self,
        block: list[float],
        before: float,
        offset: float,
        cap: float,
        abnormal: Container[int],
        distances: list[float] | None,
    ) -> None:
        self._block = block
        self._before = before
        self.offset = offset
        """Add it to the distances to measure them from the trend at the end of the block."""
        self._cap = cap
        self._abnormal = abnormal
        self._distances = distances
        self._mean_square: float | None = None

    @property
    def distances(self) -> list[float]:
        """The distance of each value from the trend."""
        if self._distances is None:
            before = self._before
            self._distances = [value - before for value in self._block]
        return self._distances

    @property
    def mean_square(self) -> float:
        """The mean square of the distances or, if that is smaller, half that of the differences of neighbours."""
        if self._mean_square is None:
            distances, cap = self.distances, self._cap
            if self._abnormal:
                distances = [distance for index, distance in enumerate(distances) if index not in self._abnormal]
            if max(distances) > cap or -min(distances) > cap:
                distances = [max(-cap, min(distance, cap)) for distance in distances]
            steps = list(map(sub, distances[1:], distances))
            self._mean_square = min(
                sum(map(mul, distances, distances)) / len(distances), 0.5 * sum(map(mul, steps, steps)) / len(steps)
            )
        return self._mean_square


class _Spread:
    """The last blocks as distances from the trend, and the estimates of the spread; see the module docstring."""

    __slots__ = ("_cap", "_change", "blocks", "widths")

    def __init__(self) -> None:
        self.widths: deque[float] = deque(maxlen=_NUM_WIDTH_BLOCKS)
        self.blocks: deque[_MeasuredBlock] = deque(maxlen=_NUM_RMS_BLOCKS)
        self._change: float | None = None
        self._cap = math.inf

    def copy(self) -> _Spread:
        """Return an independent copy."""
        other = _Spread.__new__(_Spread)
        other.widths, other.blocks = self.widths.copy(), self.blocks.copy()
        other._change, other._cap = self._change, self._cap
        return other

    def add_block(
        self,
        block: list[float],
        sorted_block: list[float],
        before: float | None,
        level: float,
        abnormal: Collection[int] = (),
    ) -> float:
        """Measure the distances of a block from the trend; return half their interquartile range.

        Args:
            block: the values in the order of recording; abnormal ones are clipped.
            sorted_block: the same, sorted.
            before: the level of the block before; None for the first one.
            level: the level of this block.
            abnormal: the indices of abnormal values.
        """
        trend, distances = 0.0, None
        if before is None:
            before = level
        else:
            change, last = level - before, self._change
            self._change = change
            # A trend moves twice in the same direction. A fall slows down, so the smaller change is the trend.
            if last is None or change * last > 0:
                trend = change if last is None or abs(change) < abs(last) else last
        width = _half_width(sorted_block)
        if trend and abs(trend) > 0.5 * width:
            distances = _distances(block, before, trend)
            width = _half_width(sorted(distances))
        else:
            trend = 0.0
        self.widths.append(width)
        left_out = abnormal if len(abnormal) <= _QUARTER else ()
        self.blocks.append(_MeasuredBlock(block, before, before + trend - level, self._cap, left_out, distances))
        return width

    def robust_sigma(self) -> float:
        """Return the spread by interquartile ranges, and cap the distances of the next block accordingly."""
        widths = self.widths
        width = _robust_width([*widths])
        self._cap = _CAP_SIGMAS * _TO_SIGMA * width
        return _TO_SIGMA * width

    def lowest_sigma(self) -> float | None:
        """Return a lower limit of the spread, which is cheaper; None if the spread is not known yet."""
        return self._few_blocks_factor() * self.robust_sigma() if len(self.widths) >= 2 else None

    def _few_blocks_factor(self) -> float:
        """Few blocks may underestimate the spread."""
        return 1 + (_NUM_WIDTH_BLOCKS - len(self.widths)) / (2 * _NUM_WIDTH_BLOCKS)

    def sigma(self) -> float | None:
        """Return the spread, and cap the distances of the next block accordingly; None if it is not known yet."""
        num_blocks = len(self.widths)
        if num_blocks < 2:
            return None
        robust_sigma = self.robust_sigma()
        # There is no level before the first block, from which its distances could be measured.
        blocks = list(self.blocks)[-(num_blocks - 1) :]
        rms = math.sqrt(median(sorted([block.mean_square for block in blocks])))
        return self._few_blocks_factor() * max(robust_sigma, rms)

    def after_quiet_blocks(self, batch: BlockBatch, before: float, band: tuple[float, float]) -> _Spread | None:
        """Return the spread after several blocks; None if their values may exceed the limit for outliers.

        Only the last blocks determine the result. Of the others it must only be shown that the values after each block
        are below its limit, and for most blocks the widths of two blocks are enough: the spread is never less than
        their mean.

        Args:
            batch: the blocks; their half widths are added to it.
            before: the level of the block before them.
            band: the band of the signal, with a finite number of spreads.
        """
        num_sigmas, share = band
        widths, half_widths, last = [*self.widths], batch.half_widths, self._change
        first_measured, num_before = len(batch.levels) - _NUM_RMS_BLOCKS, len(widths)
        measured: list[tuple[int, float, float, list[float] | None]] = []
        for index, (level, values, peak) in enumerate(
            zip(batch.levels, batch.sorted_blocks, batch.peaks[1:], strict=True)
        ):
            change, trend, distances = level - before, 0.0, None
            width = 0.25 * (values[-5] + values[-4] - values[3] - values[4])
            if last is None or change * last > 0:
                trend = change if last is None or abs(change) < abs(last) else last
                if abs(trend) > 0.5 * width:
                    distances = _distances(batch.blocks[index], before, trend)
                    width = _half_width(sorted(distances))
                else:
                    trend = 0.0
            widths.append(width)
            half_widths.append(width)
            if index >= first_measured:
                measured.append((index, before, before + trend - level, distances))
            if peak >= level + max(num_sigmas * (_TO_SIGMA * (0.5 * (width + widths[-2]))), share * abs(level)):
                robust_sigma = _TO_SIGMA * _robust_width(widths[-_NUM_WIDTH_BLOCKS:])
                if peak >= level + max(num_sigmas * robust_sigma, share * abs(level)):
                    return None
            last, before = change, level
        other = _Spread.__new__(_Spread)
        other.widths, other.blocks = deque(widths, maxlen=_NUM_WIDTH_BLOCKS), self.blocks.copy()
        other._change, cap = last, self._cap
        for index, level_before, offset, distances in measured:
            end = num_before + index
            if index:
                cap = _CAP_SIGMAS * _TO_SIGMA * _robust_width(widths[max(0, end - _NUM_WIDTH_BLOCKS) : end])
            other.blocks.append(_MeasuredBlock(batch.blocks[index], level_before, offset, cap, (), distances))
        return other


class SignalStats:
    """Level and spread of one signal; see the module docstring.

    Attributes:
        signal: name of the signal, such as `loss`.
        metric: name under which the signal is recorded.
        level: median of the last block, abnormal values clipped; None before the first block.
        low: values up to this one are reported to the listeners like outliers.
        high: values from this one on leave the fast path.
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
        "_clipped_values",
        "_is_limit_rough",
        "_last",
        "_not_finite_listeners",
        "_num_paused",
        "_outlier_above",
        "_outlier_listeners",
        "_sigma",
        "_spread",
        "_watch_limits",
        "first_level",
        "first_value",
        "high",
        "level",
        "low",
        "metric",
        "num_in_blocks",
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
        self._sigma: float | None = None
        self.first_level: float | None = None
        self.first_value: float | None = None
        self.values: list[float] = []
        self.num_in_blocks = 0
        self.low = -math.inf
        self.high = self._outlier_above = math.inf
        self._is_limit_rough = False  # whether it is only a lower limit, and the spread is not computed yet
        self._block: list[float] = []
        self._clipped_values: dict[int, float] = {}  # original values of the current block, by index
        self._blocks: deque[list[float]] = deque(maxlen=_NUM_RMS_BLOCKS)
        self._spread = _Spread()
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
    def sigma(self) -> float | None:
        """The spread; None until two blocks are complete."""
        if self._is_limit_rough:
            self._refine_limit()
        return self._sigma

    @property
    def outlier_above(self) -> float:
        """The smallest value that is an outlier; infinite while that is unknown."""
        if self._is_limit_rough:
            self._refine_limit()
        return self._outlier_above

    @property
    def is_spread_known(self) -> bool:
        """Whether `sigma` is not None."""
        return self._is_limit_rough or self._sigma is not None

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
        return self._spread.widths[-1] if self._spread.widths else _half_width(self.values)

    def pause(self, num_values: int) -> None:
        """Report no outliers for the next values because a new level is expected, then continue from that level."""
        if self._is_limit_rough:
            self._refine_limit()
        if self._band is not None and self._band[0]:  # only a spread has to become valid again
            self._num_paused = max(self._num_paused, num_values)
        self._outlier_above = math.inf
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
        blocks = [(block.offset, block.distances) for block in self._spread.blocks]
        for offset, distances in (*blocks, (-(self.level or 0.0), self._block)):
            for distance in distances:
                is_above = distance + offset >= height
                count += is_above and not was_above
                was_above = is_above
        return count

    def log_sigma(self) -> float:
        """Return the spread of the last 64 values around their trend, as logarithms; 0 if one is not positive."""
        ratios = []
        # Without a band there are no distances.
        for block, measured in zip(self._blocks, self._spread.blocks, strict=False):
            for value, distance in zip(block, measured.distances, strict=True):
                trend = value - distance - measured.offset
                if value <= 0 or trend <= 0:
                    return 0.0
                ratios.append(value / trend)
        if not ratios:
            return 0.0
        ratios.sort()
        # From the lowest tenth to the upper quartile: spikes are in the upper quarter.
        sigma = math.log(ratios[-len(ratios) // 4] / ratios[len(ratios) // 10]) / 1.956
        # The widths cover twice as many values, which makes a lucky estimate rarer.
        return max(sigma, _TO_SIGMA * median(sorted(self._spread.widths)) / (self.level or math.inf))

    def _add_outside_band(self, value: float) -> None:
        if self._is_limit_rough:
            self._refine_limit()
            if self.low < value < self.high:
                self.add(value)
                return
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
                self._spread.add_block(block, sorted_block, before, self.level, abnormal)
                self._update_sigma(self._band)
            else:
                self._outlier_above = (1 + self._band[1]) * self.level
                self._update_high()
        for listener in self._block_listeners:
            listener.on_block(self)

    def _update_sigma(self, band: tuple[float, float]) -> None:
        """Update the band, roughly: most values are also below a limit that is too low."""
        if self._num_paused > 0:
            self._num_paused -= BLOCK
            return
        lowest_sigma = self._spread.lowest_sigma()
        if lowest_sigma is None or self.level is None:
            return
        self._is_limit_rough = True
        self._outlier_above = _outlier_limit(band, self.level, lowest_sigma)
        self._update_high()

    def _refine_limit(self) -> None:
        """Compute the spread and the band."""
        self._is_limit_rough = False
        sigma = self._spread.sigma()
        if sigma is not None and self.level is not None and self._band is not None:
            self._sigma = sigma
            self._outlier_above = _outlier_limit(self._band, self.level, sigma)
            self._update_high()

    def _update_high(self) -> None:
        above = self._outlier_above
        self.high = min(above, *self._watch_limits.values()) if self._watch_limits else above

    # Batches -------------------------------------------------------------------------------------------------------

    @property
    def can_preview(self) -> bool:
        """Whether every listener that receives blocks can tell whether several of them are quiet."""
        return all(
            type(listener).preview_blocks is not SignalListener.preview_blocks for listener in self._block_listeners
        )

    def split(
        self,
        values: Sequence[float],
        rows: range,
        steps: Sequence[int],
        times_s: Sequence[float],
        by_signal: dict[str, BlockBatch],
    ) -> bool:
        """Add the batch of some rows to `by_signal`; return False if one of their values leaves the current band."""
        if self._clipped_values or self._num_paused > 0 or self.num_in_blocks < _MIN_BLOCKS_TO_PREVIEW * BLOCK:
            return False
        first_row = rows.start + BLOCK - 1 - len(self._block)
        joined = [*self._block, *values[rows.start : rows.stop]]
        batch = BlockBatch(joined, first_row, steps, times_s, self.num_in_blocks, by_signal)
        by_signal[self.signal] = batch
        if self._band is None and len(self._outlier_listeners) == 1:
            preview = self._outlier_listeners[0].preview_outliers(self, joined[len(self._block) :])
            if preview is not None:
                num_values, batch.commit_outliers = preview
                if num_values < len(rows):
                    batch.num_quiet = (len(self._block) + num_values) // BLOCK
                return num_values == len(rows)
        if not self.low < batch.lowest:
            blocks = enumerate(batch.sorted_blocks)
            batch.num_quiet = next((at for at, block in blocks if block[0] <= self.low), len(batch.blocks))
            return False
        if batch.peaks[0] >= self.high:
            if self._is_limit_rough:
                self._refine_limit()
            if batch.peaks[0] >= self.high and not self._ignores_outliers(self.level):
                batch.num_quiet = 0
                return False
        return True

    def _ignores_outliers(self, level: float | None) -> bool:
        return level is not None and all(listener.ignores_outliers(level) for listener in self._outlier_listeners)

    def preview_blocks(self, batch: BlockBatch, commits: list[Callable[[], None]]) -> bool:
        """Return whether the blocks are quiet for the signal and all its listeners.

        Appends to `commits` what brings the signal and its listeners into the state after these blocks.
        """
        commit = self._preview_band(batch)
        if commit is None:
            return False
        commits.append(commit)
        if batch.commit_outliers is not None:
            commits.append(batch.commit_outliers)
        for listener, limit in self._watch_limits.items():
            if batch.highest >= limit and listener not in self._block_listeners:
                return False
        if batch.blocks:
            for listener in self._block_listeners:
                commit = listener.preview_blocks(self, batch)
                if commit is None:
                    return False
                if commit is not no_change:
                    commits.append(commit)
        commits.append(self._update_high)
        return True

    def _preview_band(self, batch: BlockBatch) -> Callable[[], None] | None:
        """Follow level, spread and band over the blocks; return None if a value leaves the band."""
        band, above, sigma, spread, is_rough = self._band, self._outlier_above, self._sigma, self._spread, False
        levels, peaks, half_widths = batch.levels, batch.peaks, batch.half_widths
        if band is not None and not band[0]:
            for index, level in enumerate(levels):
                above = (1 + band[1]) * level
                if peaks[index + 1] >= above and not self._ignores_outliers(level):
                    batch.num_quiet = index + 1
                    return None
        elif band is not None and levels and self.level is not None:
            batch.widths_before = [*spread.widths]
            quiet_spread = spread.after_quiet_blocks(batch, self.level, band) if band[0] < math.inf else None
            is_rough = quiet_spread is not None
            if quiet_spread is not None:
                spread, above = quiet_spread, _outlier_limit(band, levels[-1], quiet_spread.lowest_sigma() or 0.0)
            else:
                half_widths.clear()
                spread, before = spread.copy(), self.level
                for index, level in enumerate(levels):
                    half_widths.append(spread.add_block(batch.blocks[index], batch.sorted_blocks[index], before, level))
                    sigma, before = spread.sigma() or 0.0, level
                    above = _outlier_limit(band, level, sigma)
                    if peaks[index + 1] >= above:
                        batch.num_quiet = index + 1
                        return None

        def commit() -> None:
            self._block = batch.rest
            if levels:
                self._spread, self._sigma, self._outlier_above, self._is_limit_rough = spread, sigma, above, is_rough
                self.level, self.values, self._last = levels[-1], batch.sorted_blocks[-1], batch.blocks[-1][-1]
                self._blocks.extend(batch.blocks)
                self.num_in_blocks += BLOCK * len(levels)

        return commit


def _outlier_limit(band: tuple[float, float], level: float, sigma: float) -> float:
    # A constant signal has no spread: zero times an infinite number of spreads would be NaN.
    distance = band[0] * sigma if sigma > 0 or math.isfinite(band[0]) else math.inf
    return level + max(distance, band[1] * abs(level))


class SignalColumn:
    """Values that will be added to a signal; none of them may be NaN."""

    __slots__ = ("_bounds", "stats", "values")

    def __init__(self, stats: SignalStats, values: Sequence[float]) -> None:
        self.stats = stats
        self.values = values
        self._bounds: tuple[float, float] | None = None

    @classmethod
    def of(cls, stats: SignalStats, values: Sequence[float]) -> SignalColumn | None:
        """Return the column of some values; None if one of them is not finite."""
        total = sum(values)
        if total - total != 0:  # also if the sum of large numbers is infinite
            return None
        return cls(stats, values)

    def is_within(self, low: float, high: float) -> bool:
        """Return whether all values are between two limits."""
        if self._bounds is None:
            self._bounds = min(self.values), max(self.values)
        return low < self._bounds[0] and self._bounds[1] < high


def add_quiet_blocks(
    columns: Iterable[SignalColumn], rows: range, steps: Sequence[int], times_s: Sequence[float]
) -> tuple[bool, int]:
    """Add the values of some rows, if all their blocks are quiet.

    Args:
        columns: the values of all signals, one for each row.
        rows: the rows to add.
        steps: the step of each row.
        times_s: the time of each row.

    Returns:
        Whether they were added; if not, up to which row they may be quiet.
    """
    by_signal: dict[str, BlockBatch] = {}
    commits: list[Callable[[], None]] = []
    quiet_end = 0
    try:
        is_quiet = all(
            column.stats.split(column.values, rows, steps, times_s, by_signal) for column in columns
        ) and all(column.stats.preview_blocks(by_signal[column.stats.signal], commits) for column in columns)
        if not is_quiet:
            quiet_end = max((batch.quiet_end for batch in by_signal.values()), default=0)
    finally:
        # Each batch refers to this dict. A cycle of so many objects would be left to the garbage collector, which may
        # run in the training thread.
        by_signal.clear()
    if is_quiet:
        for commit in commits:
            commit()
    return is_quiet, quiet_end


def skip_quiet_rows(columns: Iterable[SignalColumn], row: int, end: int) -> int:
    """Add the values of rows in which no value leaves its band and no block is completed; return the next row.

    Args:
        columns: the values of all signals, one for each row.
        row: the row to begin with.
        end: the row to stop at.
    """
    for column in columns:
        stats, values = column.stats, column.values
        num_quiet = BLOCK - 1 - len(stats._block)
        end = min(end, row + num_quiet)
        if end <= row:
            return row
        low, high = stats.low, stats.high
        if not column.is_within(low, high):
            for index in range(row, end):
                if not low < values[index] < high:
                    end = index
                    break
    for column in columns:
        column.stats._block += column.values[row:end]
    return end


def _distances(block: list[float], before: float, trend: float) -> list[float]:
    """Return the distances of the values of a block from the trend since the level of the block before."""
    return [value - before - trend * offset for offset, value in zip(_BLOCK_OFFSETS, block, strict=True)]


def _robust_width(widths: list[float]) -> float:
    """Return the usual half width of some blocks, or that of the last two if it is larger."""
    return max(median(sorted(widths)), 0.5 * (widths[-1] + widths[-2]))


def _half_width(sorted_values: list[float]) -> float:
    """Return half the interquartile range of a sorted block."""
    return 0.25 * (
        sorted_values[-_QUARTER - 1] + sorted_values[-_QUARTER] - sorted_values[_QUARTER - 1] - sorted_values[_QUARTER]
    )


def median(sorted_values: list[float]) -> float:
    """Return the median of sorted values."""
    half = len(sorted_values) // 2
    return sorted_values[half] if len(sorted_values) % 2 else 0.5 * (sorted_values[half - 1] + sorted_values[half])
