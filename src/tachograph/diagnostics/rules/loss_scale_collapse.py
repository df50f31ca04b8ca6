"""The loss scale keeps falling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure

__all__ = ["LossScaleCollapse"]


class LossScaleCollapse(Rule):
    """The loss scale of an fp16 run was reduced several times without growing in between, or is near its minimum.

    A loss scaler starts too high and searches for its scale, so reductions count only after the scale has been stable
    once. After that, several reductions in a row mean that every step overflows.
    """

    name = "loss_scale_collapse"
    severity = "critical"
    meaning = (
        "Gradients overflow in fp16 at every loss scale. They contain infinities or NaN for another reason, or have "
        "grown beyond the range of fp16. The optimizer is skipping steps; most trainers abort at the minimum scale."
    )
    advice = (
        "Stop before the scale reaches its minimum; restart from a checkpoint before the first reduction.",
        "Use bf16. In fp16, keep attention softmax, norms and the loss in fp32.",
        "Lower the learning rate; clip gradients.",
    )
    value_signals = ("loss_scale",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        cuts: Annotated[int, Meta(description="Reductions without growth in between.", ge=2)] = 3
        window_values: Annotated[
            int, Meta(description="Maximum number of values between two reductions that are counted together.", ge=1)
        ] = 64
        minimum: Annotated[float, Meta(description="The scaler's minimum scale.", gt=0)] = 1.0
        settled_values: Annotated[
            int, Meta(description="Values without a reduction after which the scale is stable.", ge=1)
        ] = 32

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all values."""
        self._last: float | None = None
        self._num_cuts = 0
        self._num_same = 0
        self._num_since_cut = 0
        self._has_settled = False
        self._scale_before = 0.0

    def preview_values(self, signal: str, metric: str, values: Sequence[float]) -> Callable[[], None] | None:
        """Skip a scale that stays the same."""
        last = self._last
        if last is None or [*values].count(last) != len(values):
            return None

        def commit() -> None:
            self._num_since_cut += len(values)
            self._num_same += len(values)
            if not self._has_settled and self._num_same >= self.thresholds.settled_values:
                self._has_settled, self._num_cuts = True, 0

        return commit

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Count reductions."""
        if not math.isfinite(value):
            return
        last, self._last = self._last, value
        self._num_since_cut += 1
        if last is None or value == last:
            self._num_same += 1
            if not self._has_settled and self._num_same >= self.thresholds.settled_values:
                self._has_settled, self._num_cuts = True, 0
            return
        self._num_same = 0
        if value > last:
            self._num_cuts = 0
            if value > 4 * self.thresholds.minimum:  # next to the minimum, growth is no recovery
                self.resolve(f"the scale is growing again: {figure(value)}")
            return
        self._num_cuts = self._num_cuts + 1 if self._num_since_cut < self.thresholds.window_values else 1
        self._num_since_cut = 0
        if self._num_cuts == 1:
            self._scale_before = last
        is_low = value <= 2 * self.thresholds.minimum
        if self.is_open() or not (is_low or (self._has_settled and self._num_cuts >= self.thresholds.cuts)):
            return
        evidence = {
            "metric": metric,
            "value": value,
            "scale_before": self._scale_before,
            "cuts": self._num_cuts,
            "step": self.context.step,
        }
        title = (
            f"Loss scale collapsed to {figure(value)} at step {self.context.step}, from {figure(self._scale_before)}"
        )
        times = "once" if self._num_cuts == 1 else f"{self._num_cuts} times without growing in between"
        self.report(title, f"It was reduced {times}.", evidence=evidence)
