"""The loss scale falls and falls."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure

__all__ = ["LossScaleCollapse"]


class LossScaleCollapse(Rule):
    """The loss scale of an fp16 run has been cut several times without growing in between, or is near its minimum.

    In the first steps a scaler looks for its scale from above, so cuts are not counted until it has once held for a
    while. After that, several cuts in a row mean that every step overflows.
    """

    name = "loss_scale_collapse"
    severity = "critical"
    meaning = (
        "Gradients overflow in fp16 whatever the scale: they contain infinities or NaN for another reason, or have "
        "grown beyond what fp16 can hold. Steps are being skipped; at the minimum most trainers give up."
    )
    advice = (
        "Stop before it reaches the minimum; go back to a checkpoint from before the first cut.",
        "Use bf16. In fp16 keep attention softmax, norms and the loss in fp32.",
        "Lower the learning rate, clip gradients.",
    )
    hears_each = ("loss_scale",)

    class Thresholds(RuleSettings):
        """When it fires."""

        cuts: Annotated[int, Meta(description="Cuts without growth in between that are too many.", ge=2)] = 3
        window_values: Annotated[
            int, Meta(description="Values within which the next cut must come to be counted with the last.", ge=1)
        ] = 64
        minimum: Annotated[float, Meta(description="The scaler's least scale.", gt=0)] = 1.0
        settled_values: Annotated[
            int, Meta(description="Values without a cut after which the scaler has found its scale.", ge=1)
        ] = 32

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._last: float | None = None
        self._num_cuts = 0
        self._num_same = 0
        self._num_since = 0
        self._has_settled = False
        self._scale_before = 0.0

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Count cuts."""
        if not math.isfinite(value):
            return
        last, self._last = self._last, value
        self._num_since += 1
        if last is None or value == last:
            self._num_same += 1
            if not self._has_settled and self._num_same >= self.thresholds.settled_values:
                self._has_settled, self._num_cuts = True, 0
            return
        self._num_same = 0
        if value > last:
            self._num_cuts = 0
            if value > 4 * self.thresholds.minimum:
                self.over(f"the scale grows again: {figure(value)}")
            return
        self._num_cuts = self._num_cuts + 1 if self._num_since < self.thresholds.window_values else 1
        self._num_since = 0
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
            "step": self.now.step,
        }
        title = f"Loss scale collapses: {figure(value)} at step {self.now.step}, from {figure(self._scale_before)}"
        self.found(title, f"It was cut {self._num_cuts} times without growing in between.", evidence=evidence)
