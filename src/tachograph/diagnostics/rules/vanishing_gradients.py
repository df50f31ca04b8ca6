"""The gradients vanish."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BlockBatch, SignalStats
from tachograph.diagnostics._text import figure

__all__ = ["VanishingGradients"]


class VanishingGradients(Rule):
    """The gradient norm is zero, or a tiny fraction of its usual value in this run.

    A block of sixteen zeros opens the alert at once. Otherwise the whole block must be below a small share of a moving
    average of the run's blocks. That average follows a slow decline, such as the end of a long run.
    """

    name = "vanishing_gradients"
    severity = "critical"
    meaning = (
        "The model has stopped learning. Zeros mean that the loss does not depend on the trained parameters (frozen, "
        "detached, all tokens masked), that an activation is saturated or dead, or that gradients were cleared before "
        "they were measured."
    )
    advice = (
        "Check which parameters have requires_grad and whether the optimizer holds them.",
        "Look for detach(), no_grad(), or labels that are all ignored.",
        "In fp16, check the loss scale; try bf16.",
    )
    block_signals = ("grad_norm",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        share: Annotated[
            float, Meta(description="Share of the run's moving average that the norm must fall below.", gt=0, lt=1)
        ] = 1e-3
        warm_up_blocks: Annotated[
            int, Meta(description="Blocks of 16 values required before that share is checked.", ge=1)
        ] = 6

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all blocks."""
        self._mean_log: float | None = None
        self._num_blocks = 0

    def on_block(self, stats: SignalStats) -> None:
        """Compare the block with zero and with the run so far."""
        largest, level = stats.values[-1], stats.level or 0.0
        is_known = self._mean_log is not None and self._num_blocks >= self.thresholds.warm_up_blocks
        limit = self.thresholds.share * math.exp(self._mean_log or 0.0) if is_known else 0.0
        if largest <= limit:
            if not self.is_open():
                self._report(stats, largest)
            return
        if self.is_open() and level > 3 * limit:
            self.resolve(f"{stats.metric} is back at {figure(level)}")
        if level > 0 and not self.is_open():  # values of the fault must not become the reference
            log = math.log(level)
            self._mean_log = log if self._mean_log is None else self._mean_log + 0.05 * (log - self._mean_log)
            self._num_blocks += 1

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Follow the usual norm over blocks that are not far below it."""
        mean_log, share = self._mean_log, self.thresholds.share
        if mean_log is None or self._num_blocks < self.thresholds.warm_up_blocks or self.is_open():
            return None
        if batch.levels and min(batch.levels) <= 0:
            return None
        logs = list(map(math.log, batch.levels))
        # The mean is never above the highest of them.
        may_be_low = min(batch.peaks[:-1], default=math.inf) <= share * math.exp(max(mean_log, *logs)) * (1 + 1e-9)
        for log, peak in zip(logs, batch.peaks, strict=False):
            if may_be_low and peak <= share * math.exp(mean_log):
                return None
            mean_log += 0.05 * (log - mean_log)

        def commit() -> None:
            self._mean_log = mean_log
            self._num_blocks += len(batch.blocks)

        return commit

    def _report(self, stats: SignalStats, largest: float) -> None:
        usual = math.exp(self._mean_log) if self._mean_log is not None else None
        num_values, step = len(stats.values), self.context.step
        evidence = {
            "metric": stats.metric,
            "largest": largest,
            "usual": usual,
            "step": step,
            "window_values": num_values,
            "expected": [self.thresholds.share * usual, None] if usual is not None else None,
        }
        title = f"Gradients have been zero for {num_values} values, up to step {step}"
        if largest != 0:
            title = f"Gradients vanish: norm at most {figure(largest)} for {num_values} values, up to step {step}"
        message = f"The usual norm in this run is {figure(usual)}." if usual is not None else ""
        self.report(title, message, evidence=evidence)
