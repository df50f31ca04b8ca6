"""NaN and infinity."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import figure

__all__ = ["NotFinite"]


class NotFinite(Rule):
    """The loss, the gradient norm or the validation loss is NaN or infinite.

    A loss that is not finite opens the alert at once. A gradient norm does so only after several in a row: a run in
    fp16 with a loss scaler overflows now and then by design, skips that step and goes on. While the loss spikes or
    diverges, one is enough. The alert is resolved when the values have been finite for a while.
    """

    name = "not_finite"
    severity = "critical"
    meaning = (
        "Once a loss is NaN, the weights usually are too, and nothing that follows can be used. Before it there is "
        "often a rise of the gradient norm; causes are a learning rate that is too high, overflow in fp16, a division "
        "or logarithm of zero in the loss, or a broken batch."
    )
    advice = (
        "Stop, and go back to a checkpoint from before the step named here.",
        "Look at the batch of that step, and skip it if it is broken.",
        "Lower the learning rate or lengthen the warm-up; clip gradients by norm.",
        "Use bf16 instead of fp16, or keep softmax, norms and the loss in fp32.",
        "Find the operation with torch.autograd.set_detect_anomaly(True).",
    )
    hears = ("loss", "grad_norm")
    hears_each = ("val_loss",)
    absorbs = ("loss_spike", "exploding_gradients", "plateau")

    class Thresholds(RuleSettings):
        """When it fires."""

        gradient_streak: Annotated[
            int, Meta(description="Gradient norms in a row that must not be finite; fewer are a skipped step.", ge=1)
        ] = 3
        values_to_resolve: Annotated[int, Meta(description="Finite values after which it is over.", ge=1)] = 32

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._seen_at: dict[str, int] = {}
        self._streak: dict[str, int] = {}

    def on_change(self, what: str) -> None:
        """Begin anew with fresh weights."""
        if what == "restart":
            self.over("training started again with fresh weights", key="loss")
            self._seen_at.pop("loss", None)

    def on_not_finite(self, gauge: SignalStats, value: float) -> None:
        """Count those in a row."""
        signal, taken = gauge.signal, gauge.num_taken
        self._streak[signal] = self._streak.get(signal, 0) + 1 if self._seen_at.get(signal) == taken else 1
        self._seen_at[signal] = taken
        if self.is_open(signal):
            return
        is_in_trouble = self.desk.is_open("loss_spike") or self.desk.is_open("divergence")
        wanted = self.thresholds.gradient_streak
        if taken < 64:
            wanted *= 8  # a loss scaler begins far too high, by design
        if signal == "loss" or is_in_trouble or self._streak[signal] >= wanted:
            self._tell(signal, gauge.metric, value, gauge.level)

    def on_block(self, gauge: SignalStats) -> None:
        """See whether it is over."""
        seen_at, wanted = self._seen_at.get(gauge.signal), self.thresholds.values_to_resolve
        if seen_at is not None and gauge.num_taken - seen_at >= wanted:
            self.over(f"{gauge.metric} has been finite again for {wanted} values", key=gauge.signal)

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """See a validation loss."""
        is_finite = abs(value) < float("inf")
        if not is_finite and not self.is_open(signal):
            self._tell(signal, metric, value, None)
        elif is_finite:
            self.over(f"{metric} is finite again", key=signal)

    def _tell(self, signal: str, metric: str, value: float, level: float | None) -> None:
        streak = self._streak.get(signal, 1)
        times = f", {streak} times in a row" if streak > 1 else ""
        before = f"; before it was at {figure(level)}" if level is not None else ""
        evidence = {"metric": metric, "value": value, "step": self.now.step, "level_before": level, "in_a_row": streak}
        self.found(
            f"{metric} is {figure(value)} at step {self.now.step}",
            f"{metric} is {figure(value)}{times}{before}.",
            key=signal,
            evidence=evidence,
        )
