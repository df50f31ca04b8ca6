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

_YOUNG_BLOCKS = 4


class ExplodingGradients(Rule):
    """The gradient norm is many times what it was in this run, and stays there.

    There is no norm that is too large for every model: a block of sixteen values is compared with the slow mean of the
    run's own blocks (of their logarithms) and with the largest of them. The last four blocks are left out, so that a
    norm that doubles again and again does not become the rule. Single values, which clipping takes care of, do not
    count: three quarters of the block must be above.
    """

    name = "exploding_gradients"
    meaning = (
        "Steps get too large for the place where the weights are; unless gradients are clipped, the loss follows. "
        "Often the learning rate is too high, a layer has lost its normalisation, or the batches have changed."
    )
    advice = (
        "Clip gradients by norm, at about the level it had before.",
        "Lower the learning rate, or lengthen the warm-up.",
        "Log the norm per layer to see where it starts.",
    )
    hears = ("grad_norm",)

    class Thresholds(RuleSettings):
        """When it fires."""

        factor: Annotated[float, Meta(description="Times the run's slow mean that is too much.", gt=1)] = 10.0
        factor_of_largest: Annotated[float, Meta(description="And times the largest block so far.", ge=1)] = 3.0
        warm_up_blocks: Annotated[int, Meta(description="Blocks of 16 values before it looks.", ge=1)] = 6

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._mean_log: float | None = None
        self._largest = 0.0
        self._num_blocks = 0
        self._young: deque[float] = deque()

    def on_block(self, gauge: SignalStats) -> None:
        """Compare the block with the run so far."""
        level = gauge.level
        if level is None or level <= 0:
            return
        if self._mean_log is not None and self._num_blocks >= self.thresholds.warm_up_blocks:
            usual = math.exp(self._mean_log)
            if self.is_open():
                if level < 0.5 * self.thresholds.factor * usual:
                    self.over(f"{gauge.metric} is back at {figure(level)}", evidence={"level": level, "usual": usual})
                return  # what is a fault does not become the rule
            low = gauge.values[len(gauge.values) // 4]
            if low > self.thresholds.factor * usual and low > self.thresholds.factor_of_largest * self._largest:
                self._tell(gauge, usual)
                self._young.clear()
                return
            self._young.append(level)
            if len(self._young) <= _YOUNG_BLOCKS:
                return
            level = self._young.popleft()
        log = math.log(level)
        self._mean_log = log if self._mean_log is None else self._mean_log + 0.05 * (log - self._mean_log)
        self._largest = max(0.98 * self._largest, level)  # a warm-up is forgotten in time
        self._num_blocks += 1

    def _tell(self, gauge: SignalStats, usual: float) -> None:
        middle = gauge.values[len(gauge.values) // 2]
        evidence = {
            "metric": gauge.metric,
            "level": middle,
            "usual": usual,
            "largest_lately": self._largest,
            "step": self.now.step,
            "window_values": len(gauge.values),
        }
        title = (
            f"Gradients explode: norm {figure(middle)} at step {self.now.step}, {factor(middle / usual)} what is usual"
        )
        self.found(
            title,
            f"In this run it was {figure(usual)} on average.",
            evidence=evidence,
        )
