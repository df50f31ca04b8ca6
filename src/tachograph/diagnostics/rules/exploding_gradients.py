"""The gradients explode."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import factor, figure

__all__ = ["ExplodingGradients"]

_NUM_HELD_BACK = 4


class ExplodingGradients(Rule):
    """The gradient norm is many times its usual value in this run and stays there.

    No norm is too large for every model, so a block of sixteen values is compared with the run itself: with a moving
    average of its blocks (of their logarithms) and with the largest of them. The last four blocks are excluded from
    both, so that a norm that keeps doubling does not become the reference. Single large values are ignored, because
    clipping handles them: three quarters of the block must be too high.
    """

    name = "exploding_gradients"
    meaning = (
        "Updates are too large for the current region of the loss; unless gradients are clipped, the loss follows. "
        "Common causes: a learning rate that is too high, a layer without working normalisation, or different batches."
    )
    advice = (
        "Clip gradients by norm, at about the previous level.",
        "Lower the learning rate, or lengthen the warm-up.",
        "Log the norm per layer to find where it starts.",
    )
    block_signals = ("grad_norm",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        factor: Annotated[float, Meta(description="Minimum multiple of the run's moving average.", gt=1)] = 10.0
        factor_of_largest: Annotated[float, Meta(description="Minimum multiple of the largest block so far.", ge=1)] = (
            3.0
        )
        warm_up_blocks: Annotated[
            int, Meta(description="Blocks of 16 values required before the rule is active.", ge=1)
        ] = 6

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all blocks."""
        self._mean_log: float | None = None
        self._largest = 0.0
        self._num_blocks = 0
        self._held_back: deque[float] = deque()

    def on_block(self, stats: SignalStats) -> None:
        """Compare the block with the run so far."""
        level = stats.level
        if level is None or level <= 0:
            return
        if self._mean_log is not None and self._num_blocks >= self.thresholds.warm_up_blocks:
            usual = math.exp(self._mean_log)
            if self.is_open():
                if level < 0.5 * self.thresholds.factor * usual:
                    evidence = {"level": level, "usual": usual}
                    self.resolve(f"{stats.metric} is back at {figure(level)}", evidence=evidence)
                return  # values of the fault must not become the reference
            low = stats.values[len(stats.values) // 4]
            if low > self.thresholds.factor * usual and low > self.thresholds.factor_of_largest * self._largest:
                self._report(stats, usual)
                self._held_back.clear()
                return
            self._held_back.append(level)
            if len(self._held_back) <= _NUM_HELD_BACK:
                return
            level = self._held_back.popleft()
        # The mean of logarithms, because norms range over orders of magnitude.
        log = math.log(level)
        self._mean_log = log if self._mean_log is None else self._mean_log + 0.05 * (log - self._mean_log)
        self._largest = max(0.98 * self._largest, level)  # decays, so that large norms of the warm-up are forgotten
        self._num_blocks += 1

    def _report(self, stats: SignalStats, usual: float) -> None:
        middle, step = stats.values[len(stats.values) // 2], self.context.step
        evidence = {
            "metric": stats.metric,
            "level": middle,
            "usual": usual,
            "largest_lately": self._largest,
            "step": step,
            "window_values": len(stats.values),
        }
        title = f"Gradients explode: norm {figure(middle)} at step {step}, {factor(middle / usual)} the usual"
        self.report(title, f"The usual norm in this run is {figure(usual)}.", evidence=evidence)
