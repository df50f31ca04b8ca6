"""The gradients explode."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._config import find_number
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median
from tachograph.diagnostics._text import factor, figure

__all__ = ["ExplodingGradients"]

_MIN_USUAL = 4  # values from which the usual norm can be told
_NUM_LEVELS = 4  # blocks whose largest level counts
_NUM_EARLY = 8  # values in which a norm that is absurd from the start must show
_CLIPPING_NAMES = (
    "max_grad_norm",
    "gradient_clip_val",
    "clip_grad",
    "grad_clip",
    "clip_grad_norm",
    "gradient_clipping",
)
_CLIPPING_FACTOR = 200.0


class ExplodingGradients(Rule):
    """The gradient norm is many times its usual value in this run, or absurd from the first step.

    No norm is too large for every model, so a value is compared with the run itself: with the median of the values
    before (of about 32, none of them too high) and with the largest level lately. Single large values are ignored,
    because clipping handles them: several values in a row must be too high, with at most one usual value between two of
    them. They never become part of the usual norm. A norm that grows slowly does; one that grows as much within about
    a hundred values is reported too.

    In the first values there is nothing to compare with. If each of them is above an absolute limit and they do not
    fall, the run has started with the fault. The limit is 200 times the norm to which gradients are clipped, if that is
    lower and the config of the run contains it.
    """

    name = "exploding_gradients"
    meaning = (
        "Updates are too large for the current region of the loss; unless gradients are clipped, the loss follows. "
        "Common causes: a learning rate that is too high, a layer without working normalisation, or different batches."
    )
    advice = (
        "Clip gradients by norm, at about the previous level.",
        "Lower the learning rate, or lengthen the warm-up.",
        "If the norm was too large from the start, check the initialisation and the scale of the loss.",
        "Log the norm per layer to find where it starts.",
    )
    block_signals = ("grad_norm",)
    record_kinds = ("start",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        factor: Annotated[float, Meta(description="Minimum multiple of the usual norm.", gt=1)] = 10.0
        factor_of_largest: Annotated[
            float, Meta(description="Minimum multiple of the largest level in the last 64 values.", ge=1)
        ] = 3.0
        values: Annotated[int, Meta(description="Number of values that must be too high.", ge=2, le=1000)] = 4
        absurd: Annotated[
            float,
            Meta(description="Norm that is too large in the first values of any run, times a loss above one.", gt=0),
        ] = 1000.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all values."""
        self._usual = 0.0
        self._levels: deque[float] = deque(maxlen=2 * _NUM_LEVELS)
        self._first: list[float] = []
        self._limit = math.inf  # a value above it is too high
        self._high: list[float] = []
        self._last_high_at = 0
        self._opened_at = 0  # number of values before it
        self._resolve_below = 0.0
        self._clipped_to: float | None = None

    def on_change(self, change: str) -> None:
        """Start over with fresh weights."""
        stats = self.signals.get("grad_norm")
        if change == "restart" and stats is not None:
            clipped_to = self._clipped_to
            self.resolve("the weights were initialised anew")
            self.reset()
            self._clipped_to = clipped_to
            self.on_signal(stats)

    def on_interval_change(self) -> None:
        """Learn the usual norm anew: the start of a run says nothing about steps hundreds later."""
        stats = self.signals.get("grad_norm")
        if stats is not None and not self.is_open():
            clipped_to = self._clipped_to
            self.reset()
            self._clipped_to = clipped_to
            self._first = [0.0] * BLOCK  # no longer the start of the run

    def on_record(self, record: dict[str, Any]) -> None:
        """Read the norm to which gradients are clipped."""
        self._clipped_to = find_number(record.get("config"), _CLIPPING_NAMES)

    def on_signal(self, stats: SignalStats) -> None:
        """Ask for each of the first values."""
        stats.watch(self, -math.inf)

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Handle one of the first values, or one that is too high."""
        if not self.is_open():
            if len(self._first) < BLOCK:
                self._add_first(stats, value)
            if value > self._limit:
                self._add_high(stats, value)
        return False  # the level of the signal is not ours to clip

    def on_block(self, stats: SignalStats) -> None:
        """Learn the usual norm from the values that were not too high, or find that the fault is over."""
        if stats.num_in_blocks == BLOCK:
            stats.watch(self, self._limit)  # no longer for every value
        level = stats.level or 0.0
        if self.is_open():
            if level < self._resolve_below and stats.num_in_blocks - BLOCK >= self._opened_at:
                self.resolve(f"{stats.metric} is back at {figure(level)}", evidence={"level": level})
                self._high.clear()
            return
        values, levels = stats.values, self._levels
        lowest = values[BLOCK // 4]  # single values do not count
        if len(levels) == 2 * _NUM_LEVELS and lowest > self.thresholds.factor * min(levels):
            before = sorted(levels)[:_NUM_LEVELS]
            usual, limits = median(before), self.thresholds
            if lowest > max(limits.factor * usual, limits.factor_of_largest * before[-1]):
                self._report(stats, usual, values, max(levels))
                return
        if values[-1] > self._limit or values[0] <= 0:
            values = [value for value in values if 0 < value <= self._limit]
        if len(values) < _MIN_USUAL or (self.tracker.alerts and self.tracker.is_open("vanishing_gradients")):
            return  # values of the fault must not become the reference
        levels.append(median(values))
        self._usual = levels[-1] if len(levels) == 1 else 0.5 * (levels[-1] + levels[-2])
        largest = max(itertools.islice(reversed(levels), _NUM_LEVELS))
        limit = max(self.thresholds.factor * self._usual, self.thresholds.factor_of_largest * largest)
        if not 0.95 * limit < self._limit < 1.05 * limit:
            self._limit = limit
            stats.watch(self, limit)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Follow the usual norm over blocks without a value above the limit."""
        if self.is_open() or len(self._levels) < 2 * _NUM_LEVELS or batch.lowest <= 0:
            return None
        if self.tracker.alerts and self.tracker.is_open("vanishing_gradients"):
            return None
        limits, limit, peaks = self.thresholds, self._limit, batch.peaks
        if peaks[0] > limit or batch.highest > limits.factor * min(*self._levels, *batch.levels):
            return None
        levels = [*self._levels, *batch.levels]
        for index in range(len(batch.levels)):
            end = len(self._levels) + index + 1
            first, second, third, fourth = levels[end - _NUM_LEVELS : end]
            usual = 0.5 * (fourth + third)
            new_limit = max(limits.factor * usual, limits.factor_of_largest * max(first, second, third, fourth))
            if not 0.95 * new_limit < limit < 1.05 * new_limit:
                limit = new_limit
            if peaks[index + 1] >= limit:
                batch.num_quiet = index + 1
                return None

        def commit() -> None:
            self._levels.extend(batch.levels)
            self._usual = 0.5 * (levels[-1] + levels[-2])
            if limit != self._limit:
                self._limit = limit
                stats.watch(self, limit)

        return commit

    def _add_first(self, stats: SignalStats, value: float) -> None:
        """Learn from one of the first sixteen values, before there is a block of them."""
        self._first.append(value)
        limit = self.thresholds.absurd * max(1.0, self._loss_size())
        if self._clipped_to is not None:
            limit = min(limit, _CLIPPING_FACTOR * self._clipped_to)
        last = self._first[-_NUM_EARLY:]
        half = _NUM_EARLY // 2
        if len(last) == _NUM_EARLY and min(last) >= limit and sum(last[half:]) >= 0.5 * sum(last[:half]):
            self._opened_at, self._resolve_below = stats.num_added, 0.1 * limit
            middle = median(sorted(last))
            title = f"Gradients are too large from the start: norm {figure(middle)} up to step {self.context.step}"
            evidence = {
                "metric": stats.metric,
                "level": middle,
                "limit": limit,
                "step": self.context.step,
                "expected": [None, limit],
            }
            self.report(title, f"Norms above {figure(limit)} are rarely healthy.", evidence=evidence)
        elif not self._levels:
            usual = sorted(value for value in self._first if 0 < value <= self._limit)
            if len(usual) >= _MIN_USUAL:
                self._usual = median(usual)
                self._limit = self.thresholds.factor * self._usual

    def _loss_size(self) -> float:
        """Return how large the loss is, because the gradients are in proportion to it."""
        loss = self.signals.get("loss")
        return max(map(abs, loss.last_values(_NUM_EARLY)), default=0.0) if loss is not None else 0.0

    def _add_high(self, stats: SignalStats, value: float) -> None:
        if stats.num_added - self._last_high_at > 2:  # more than one usual value in between
            self._high.clear()
        self._last_high_at = stats.num_added
        self._high.append(value)
        if len(self._high) < self.thresholds.values:
            return
        self._report(stats, self._usual, sorted(self._high), max(self._levels, default=self._usual))

    def _report(self, stats: SignalStats, usual: float, sorted_norms: list[float], largest: float) -> None:
        middle, step = median(sorted_norms), self.context.step
        self._opened_at, self._resolve_below = stats.num_added, 0.5 * self.thresholds.factor * usual
        evidence = {
            "metric": stats.metric,
            "level": middle,
            "usual": usual,
            "largest_lately": largest,
            "step": step,
            "window_values": len(sorted_norms),
            "expected": [None, self.thresholds.factor * usual],
        }
        title = f"Gradients explode: norm {figure(middle)} at step {step}, {factor(middle / usual)} the usual"
        self.report(title, f"The usual norm in this run is {figure(usual)}.", evidence=evidence)
