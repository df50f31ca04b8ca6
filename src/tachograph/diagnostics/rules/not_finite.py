"""NaN and infinite values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BlockBatch, SignalStats, no_change
from tachograph.diagnostics._text import figure

__all__ = ["NotFinite"]

_EARLY_VALUES = 64
_EARLY_FACTOR = 8

_LOSSES = frozenset({"loss", "value_loss"})


class NotFinite(Rule):
    """The loss, the gradient norm, the validation loss or the loss of a value function is NaN or infinite.

    One loss that is not finite opens the alert. A gradient norm must be non-finite several times in a row, because fp16
    training with a loss scaler overflows occasionally by design and skips that step. While the loss spikes or diverges,
    one such gradient norm is enough. The alert is resolved once the values have been finite for a while.
    """

    name = "not_finite"
    severity = "critical"
    meaning = (
        "Once the loss is NaN, the weights usually are too, and every later step is wasted. The gradient norm often "
        "rises first. Common causes: a learning rate that is too high, fp16 overflow, division by zero or the "
        "logarithm of zero in the loss, or a corrupt batch."
    )
    advice = (
        "Stop the run and restart from a checkpoint before the step in the alert.",
        "Inspect the batch of that step; skip it if it is corrupt.",
        "Lower the learning rate or lengthen the warm-up; clip gradients by norm.",
        "Use bf16 instead of fp16, or keep softmax, norms and the loss in fp32.",
        "Find the operation with torch.autograd.set_detect_anomaly(True).",
    )
    block_signals = ("loss", "grad_norm", "value_loss")
    value_signals = ("val_loss",)
    absorbs = ("loss_spike", "exploding_gradients", "plateau")

    class Thresholds(RuleSettings):
        """When the rule fires."""

        gradient_streak: Annotated[
            int, Meta(description="Consecutive non-finite gradient norms; fewer count as skipped steps.", ge=1)
        ] = 3
        values_to_resolve: Annotated[
            int, Meta(description="Consecutive finite values that resolve the alert.", ge=1)
        ] = 32

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all values."""
        self._last_at: dict[str, int] = {}
        self._streak: dict[str, int] = {}
        self._other_losses: set[str] = set()

    def on_change(self, change: str) -> None:
        """Resolve the alert on the loss after a restart with fresh weights."""
        if change == "restart":
            self.resolve("training restarted with fresh weights", key="loss")
            self._last_at.pop("loss", None)

    def on_not_finite(self, stats: SignalStats, value: float) -> None:
        """Count consecutive values."""
        signal, num_added = stats.signal, stats.num_added
        # Non-finite values are not added, so an unchanged count means that no finite value came in between.
        self._streak[signal] = self._streak.get(signal, 0) + 1 if self._last_at.get(signal) == num_added else 1
        self._last_at[signal] = num_added
        if self.is_open(signal):
            return
        is_in_trouble = self.tracker.is_open("loss_spike") or self.tracker.is_open("divergence")
        min_streak = self.thresholds.gradient_streak
        if num_added < _EARLY_VALUES:
            min_streak *= _EARLY_FACTOR  # a loss scaler starts far too high, by design
        if signal in _LOSSES or is_in_trouble or self._streak[signal] >= min_streak:
            self._report(signal, stats.metric, value, stats.level)

    def on_block(self, stats: SignalStats) -> None:
        """Resolve the alert after enough finite values."""
        last_at, num_values = self._last_at.get(stats.signal), self.thresholds.values_to_resolve
        if last_at is not None and stats.num_added - last_at >= num_values:
            self.resolve(f"{stats.metric} has been finite for {num_values} values", key=stats.signal)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Finite blocks only resolve an alert."""
        return None if self.is_open(stats.signal) else no_change

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Check a validation loss."""
        is_finite = abs(value) < math.inf  # math.isfinite raises for a huge int
        if not is_finite and not self.is_open(metric):
            self._report(metric, metric, value, None)
        elif is_finite:
            self.resolve(f"{metric} is finite again", key=metric)

    def on_other_loss(self, metric: str, value: float) -> None:
        """Check a loss besides the one that the rules judge; one alert for all of them is enough."""
        is_reported = self.is_open("loss") or any(map(self.is_open, self._other_losses))
        if abs(value) < math.inf or not is_reported:
            self._other_losses.add(metric)
            self.on_value("loss", metric, value)

    def _report(self, key: str, metric: str, value: float, level: float | None) -> None:
        streak, step = self._streak.get(key, 1), self.context.step
        times = f" {streak} times in a row" if streak > 1 else ""
        before = f"; its level before was {figure(level)}" if level is not None else ""
        self.report(
            f"{metric} is {figure(value)} at step {step}",
            f"{metric} was {figure(value)}{times}{before}.",
            key=key,
            evidence={"metric": metric, "value": value, "step": step, "level_before": level, "in_a_row": streak},
        )
