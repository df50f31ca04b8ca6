"""The validation loss is suddenly several times as high."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import median
from tachograph.diagnostics._text import factor, figure

__all__ = ["ValidationBlowUp"]

_NUM_BEFORE = 8
_MIN_BEFORE = 4


class ValidationBlowUp(Rule):
    """The validation loss has risen to a multiple of its recent level, and the next evaluation confirms it.

    The level is the median of the eight evaluations before. The alert is resolved when the validation loss is back
    halfway. A slow rise is a different fault: see `overfitting`.
    """

    name = "validation_blow_up"
    meaning = (
        "A model does not forget this fast by memorising. Either its weights were damaged, as by a divergence that the "
        "training loss shows too, or the evaluation is broken: wrong weights such as an uninitialised average, "
        "statistics of normalisation layers, precision, or other data."
    )
    advice = (
        "Compare with the training loss: if it rose as well, restart from a checkpoint before the step in the alert.",
        "Otherwise evaluate an earlier checkpoint again: if that result is bad too, the evaluation has changed.",
        "Check averaged weights, running statistics of batch normalisation, and the data the evaluation reads.",
    )
    value_signals = ("val_loss",)
    absorbs = ("overfitting",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        factor: Annotated[
            float, Meta(description="Multiple of the recent level that two evaluations must exceed.", gt=1)
        ] = 3.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all evaluations."""
        self._recent: dict[str, deque[float]] = {}
        self._normal: dict[str, float] = {}

    def on_change(self, change: str) -> None:
        """Start over with fresh weights."""
        if change == "restart":
            for metric in self._recent:
                self.resolve("training restarted with fresh weights", key=metric)
            self.reset()

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Compare the last two evaluations with earlier ones."""
        if not math.isfinite(value):
            return
        recent = self._recent.setdefault(metric, deque(maxlen=_NUM_BEFORE + 2))
        recent.append(value)
        if self.is_open(metric):
            normal = self._normal[metric]
            if value < normal * (1 + 0.5 * (self.thresholds.factor - 1)):
                recent.clear()
                self.resolve(f"{metric} is back at {figure(value)}", key=metric)
            return
        *before, first, second = recent if len(recent) > 1 else (math.nan, math.nan)
        if len(before) < _MIN_BEFORE:
            return
        normal = median(sorted(before))
        if normal <= 0 or min(first, second) < self.thresholds.factor * normal:
            return
        self._normal[metric] = normal
        evidence = {"metric": metric, "value": value, "level_before": normal, "step": self.context.step}
        self.report(
            f"{metric} is {factor(value / normal)} as high as before: {figure(value)}, from {figure(normal)}",
            f"The last two evaluations exceed {figure(self.thresholds.factor)} times the usual value.",
            key=metric,
            evidence=evidence,
        )
