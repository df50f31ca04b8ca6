"""The gradients vanish."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import figure

__all__ = ["VanishingGradients"]


class VanishingGradients(Rule):
    """The gradient norm is zero, or a tiny part of what it was in this run.

    A block of sixteen values in which all are zero opens the alert at once. Else the whole block must lie below a small
    share of the slow mean of the run's own blocks; that mean follows a slow decline, as at the end of a long run.
    """

    name = "vanishing_gradients"
    severity = "critical"
    meaning = (
        "Nothing is learnt any more. Zeros mean that the loss does not depend on the trained parameters (frozen, "
        "detached, all tokens masked), that an activation is saturated or dead, or that gradients were cleared before "
        "they were measured."
    )
    advice = (
        "See which parameters have requires_grad, and whether the optimizer holds them.",
        "Look for detach(), no_grad(), or labels that are all ignored.",
        "In fp16 look at the loss scale; try bf16.",
    )
    hears = ("grad_norm",)

    class Thresholds(RuleSettings):
        """When it fires."""

        share: Annotated[float, Meta(description="Share of the run's slow mean that is too little.", gt=0, lt=1)] = 1e-3
        warm_up_blocks: Annotated[int, Meta(description="Blocks of 16 values before that is looked for.", ge=1)] = 6

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._mean_log: float | None = None
        self._num_blocks = 0

    def on_block(self, gauge: SignalStats) -> None:
        """Compare the block with zero, and with the run so far."""
        largest, level = gauge.values[-1], gauge.level or 0.0
        is_known = self._mean_log is not None and self._num_blocks >= self.thresholds.warm_up_blocks
        limit = self.thresholds.share * math.exp(self._mean_log or 0.0) if is_known else 0.0
        if largest <= limit:
            if not self.is_open():
                self._tell(gauge, largest)
            return
        if self.is_open() and level > 3 * limit:
            self.over(f"{gauge.metric} is back at {figure(level)}")
        if level > 0 and not self.is_open():
            log = math.log(level)
            self._mean_log = log if self._mean_log is None else self._mean_log + 0.05 * (log - self._mean_log)
            self._num_blocks += 1

    def _tell(self, gauge: SignalStats, largest: float) -> None:
        usual = math.exp(self._mean_log) if self._mean_log is not None else None
        evidence = {
            "metric": gauge.metric,
            "largest": largest,
            "usual": usual,
            "step": self.now.step,
            "window_values": len(gauge.values),
        }
        what = "are zero" if largest == 0 else f"vanish: norm {figure(largest)} at most"
        title = f"Gradients {what}, in the last {len(gauge.values)} values up to step {self.now.step}"
        before = f"Before it was {figure(usual)} on average." if usual is not None else ""
        self.found(title, before, evidence=evidence)
