"""The level and the spread of one signal, kept up to date for about half a microsecond per value.

Values are gathered in blocks of sixteen. As long as a value lies in the band in which nothing is remarkable, taking it
costs a comparison and an append; whatever needs thought happens once per block, or when a value leaves the band.

The level is the median of the last block, so that a trend is followed. The spread is the largest of three: half the
range of the middle half of a block, as the median over the last eight blocks and as the mean over the last two, and the
root mean square distance from the level over the last four, in which far-off values count as less far off. So a rare
outlier does not hide the next one, while a signal that jumps up and down by habit, such as a loss with two modes, has a
large spread and no outliers.
"""

from __future__ import annotations

import math
from collections import deque
from operator import mul

__all__ = ["BLOCK", "SignalStats", "Listener", "Now", "median"]

BLOCK = 16
_MIDDLE = BLOCK // 2
_QUARTER = BLOCK // 4
_SQUARE_BLOCKS = 4
_LONG_BLOCKS = 8
_TO_SIGMA = 1.4826
_CAP_SIGMAS = 6.0


class Now:
    """Where in the run we are: shared by everyone who needs to know."""

    __slots__ = ("num_seen", "step", "time_s")

    def __init__(self) -> None:
        self.step: int | None = None
        self.time_s: float | None = None
        self.num_seen = 0
        """Grows with everything that the training code records."""


class Listener:
    """Hears of a signal."""

    def on_block(self, gauge: SignalStats) -> None:
        """Sixteen more values are known, and what they say of level and spread."""

    def on_loud(self, gauge: SignalStats, value: float) -> bool:
        """Hear of a value far above the level, or that it asked for; tell whether it is too odd to count as normal."""
        return False

    def on_not_finite(self, gauge: SignalStats, value: float) -> None:
        """Hear of a value that is NaN or infinite."""


class SignalStats:
    """Follows one signal; see the module.

    Attributes:
        signal: what is followed, such as `loss`.
        metric: the name under which it is recorded.
        level: the median of the last block, without what was odd; None before the first.
        sigma: the spread; None while there are too few values.
        low: values up to this are told as loud ones are.
        loud_above: how large a value must be to be loud; infinite while that cannot be told.
        values: the last block as it came, sorted.
        first: the level of the first block.
        very_first: the first value.
        num_values: how many values there were in blocks.
    """

    __slots__ = (
        "_asked",
        "_band",
        "_block",
        "_blocks",
        "_cap",
        "_last",
        "_num_paused",
        "_odd",
        "_squares",
        "_widths",
        "first",
        "high",
        "level",
        "listeners",
        "loud_above",
        "low",
        "metric",
        "now",
        "num_values",
        "sigma",
        "signal",
        "values",
        "very_first",
    )

    def __init__(self, signal: str, now: Now, band: tuple[float, float] | None = None) -> None:
        """Follow a signal.

        Args:
            signal: what it is.
            now: where the run is.
            band: how many spreads, and what share of the level, a value must be above it to be loud; with no spreads
                these are not measured, and without a band nothing is loud.
        """
        self.signal = signal
        self.metric = signal
        self.now = now
        self.listeners: list[Listener] = []
        self._band = band
        self.reset()

    def reset(self) -> None:
        """Forget everything: what comes is another story."""
        self.level: float | None = None
        self.sigma: float | None = None
        self.first: float | None = None
        self.very_first: float | None = None
        self.values: list[float] = []
        self.num_values = 0
        self.low = -math.inf
        self.high = self.loud_above = math.inf
        self._block: list[float] = []
        self._odd: dict[int, float] = {}
        self._blocks: deque[list[float]] = deque(maxlen=_SQUARE_BLOCKS)
        self._widths: deque[float] = deque(maxlen=_LONG_BLOCKS)
        self._squares: deque[float] = deque(maxlen=_SQUARE_BLOCKS)
        self._cap = math.inf
        self._last: float | None = None
        self._num_paused = 0
        self._asked: dict[Listener, float] = {}

    def take(self, value: float) -> None:
        """Take a value."""
        if self.low < value < self.high:
            block = self._block
            block.append(value)
            if len(block) == BLOCK:
                self._close(block)
        else:
            self._loud(value)

    @property
    def num_taken(self) -> int:
        """How many values there were, with those that make no block yet."""
        return self.num_values + len(self._block)

    @property
    def last(self) -> float | None:
        """The last value; an odd one is only as large as is not yet loud."""
        return self._block[-1] if self._block else self._last

    def pause(self, num_values: int) -> None:
        """Find none of the next values loud, for a change of level is expected; then go on from the new level."""
        self._num_paused = max(self._num_paused, num_values)
        self.loud_above = math.inf
        self.high = min(self._asked.values(), default=math.inf)

    def ask(self, listener: Listener, above: float | None) -> None:
        """Tell a listener of every value that is so large, from now on; None: only of loud ones again."""
        if above is None:
            self._asked.pop(listener, None)
        else:
            self._asked[listener] = above
        self.high = min(self.loud_above, *self._asked.values()) if self._asked else self.loud_above

    def num_above(self, value: float, num_blocks: int = _SQUARE_BLOCKS) -> int:
        """Return how many values in the last blocks, and in the one that is being filled, were at least so large."""
        blocks = list(self._blocks)[-num_blocks:]
        return sum(other >= value for block in (*blocks, self._block) for other in block)

    def log_sigma(self) -> float:
        """Return the spread of the logarithms of the last 64 values; 0 if not all of them are positive."""
        values = sorted(value for block in self._blocks for value in block)
        if not values or values[0] <= 0:
            return 0.0
        quarter = len(values) // 4
        return 0.5 * _TO_SIGMA * math.log(values[-quarter] / values[quarter])

    def _loud(self, value: float) -> None:
        if not math.isfinite(value):
            for listener in self.listeners:
                listener.on_not_finite(self, value)
            return
        is_odd, is_low = False, value <= self.low
        for listener in self.listeners:
            if is_low or value >= self._asked.get(listener, self.loud_above):
                is_odd = listener.on_loud(self, value) or is_odd
        if is_odd:
            self._odd[len(self._block)] = value
            value = self.loud_above
        self._block.append(value)
        if len(self._block) == BLOCK:
            self._close(self._block)

    def _close(self, block: list[float]) -> None:
        """Take a block into account; odd values are not in it as they came, but as large as is not yet loud."""
        self._block = []
        self._last = block[-1]
        ordered = self.values = sorted(block)
        if self._odd:
            self.values = sorted(self._odd.get(place, value) for place, value in enumerate(block))
            self._odd = {}
        level = self.level
        self.level = 0.5 * (ordered[_MIDDLE - 1] + ordered[_MIDDLE])
        if level is None:
            level = self.first = self.level
            self.very_first = block[0]
        self.num_values += BLOCK
        if self._band is not None:
            if self._band[0]:
                self._measure(block, ordered, level, self._band)
            else:
                self.loud_above = (1 + self._band[1]) * self.level
                self.high = min(self.loud_above, *self._asked.values()) if self._asked else self.loud_above
        for listener in self.listeners:
            listener.on_block(self)

    def _measure(self, block: list[float], ordered: list[float], level: float, band: tuple[float, float]) -> None:
        """Bring the spread up to date, with a block and the level before it."""
        cap = self._cap
        distances = [value - level for value in block]
        if ordered[-1] - level > cap or level - ordered[0] > cap:
            distances = [max(-cap, min(distance, cap)) for distance in distances]
        self._squares.append(sum(map(mul, distances, distances)))
        upper, lower = ordered[-_QUARTER - 1] + ordered[-_QUARTER], ordered[_QUARTER - 1] + ordered[_QUARTER]
        self._widths.append(0.25 * (upper - lower))
        self._blocks.append(block)
        widths = self._widths
        if self._num_paused > 0:
            self._num_paused -= BLOCK
            return
        if len(widths) < 2 or self.level is None:
            return
        recent = 0.5 * (widths[-1] + widths[-2])
        width = max(median(sorted(widths)), recent)
        self._cap = _CAP_SIGMAS * _TO_SIGMA * width
        spread = math.sqrt(median(sorted(self._squares)) / BLOCK)
        self.sigma = sigma = max(_TO_SIGMA * width, spread)
        away = band[0] * sigma if sigma > 0 or math.isfinite(band[0]) else math.inf
        self.loud_above = self.level + max(away, band[1] * abs(self.level))
        self.high = min(self.loud_above, *self._asked.values()) if self._asked else self.loud_above


def median(ordered: list[float]) -> float:
    """Return the median of sorted values."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])
