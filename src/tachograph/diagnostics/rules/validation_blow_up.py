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
_NUM_LEARNED = 64
_MIN_LEARNED = 4


class _EvaluationSpread:
    """The recent values of one validation loss, and how far they usually are from the values before them."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=_NUM_BEFORE + 1)
        self.distances: deque[float] = deque(maxlen=_NUM_LEARNED)
        """Logarithms of the ratio of a value to the median of the values before it."""
        self.num_values = 0
        self.normal = 0.0

    def add(self, value: float) -> None:
        """Add an evaluation, and learn from the one before it."""
        self.num_values += 1
        *before, last = self.recent if self.recent else (math.nan,)
        if len(before) >= _MIN_BEFORE:
            normal = median(sorted(before))
            if normal > 0 and last > 0:
                self.distances.append(abs(math.log(last) - math.log(normal)))
        self.recent.append(value)

    def usual_factor(self) -> float | None:
        """Return the ratio to the usual level that two values in a row will not reach by chance; None if unknown.

        That is a power of the largest ratio so far, so it holds for any distribution, also one with heavy tails. Of
        few values the largest says less, and the power is higher.
        """
        num = len(self.distances)
        return math.exp(min((1.5 + 8 / num) * max(self.distances), 700.0)) if num >= _MIN_LEARNED else None


class ValidationBlowUp(Rule):
    """The validation loss has risen to a multiple of its recent level, and the next evaluation confirms it.

    The level is the median of the eight evaluations before. Two evaluations in a row must exceed a multiple of it, and
    by far the largest ratio to that level that the last 64 evaluations had: a small validation set has a noisy loss
    whose values are often several times as high. The rule is inactive until there are enough evaluations to tell.

    The alert is resolved when the validation loss is back halfway; from then on such values are usual in this run. A
    slow rise is a different fault: see `overfitting`.
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
        self._by_metric: dict[str, _EvaluationSpread] = {}

    def on_change(self, change: str) -> None:
        """Start over with fresh weights."""
        if change == "restart":
            for metric in self._by_metric:
                self.resolve("training restarted with fresh weights", key=metric)
            self.reset()

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Compare the last two evaluations with earlier ones."""
        if not math.isfinite(value):
            return
        evaluations = self._by_metric.setdefault(metric, _EvaluationSpread())
        if self.is_open(metric):
            evaluations.add(value)
            normal = evaluations.normal
            if value < normal * (1 + 0.5 * (self.thresholds.factor - 1)):
                self.resolve(f"{metric} is back at {figure(value)}", key=metric)
            return
        usual_factor = evaluations.usual_factor()
        evaluations.add(value)
        *before, first, second = evaluations.recent if len(evaluations.recent) > 1 else (math.nan, math.nan)
        if len(before) < _MIN_BEFORE or usual_factor is None:
            return
        normal = median(sorted(before))
        if normal <= 0:
            return
        limit = normal * max(self.thresholds.factor, usual_factor)
        if min(first, second) < limit:
            return
        evaluations.normal = normal
        evidence = {
            "metric": metric,
            "value": value,
            "level_before": normal,
            "threshold": limit,
            "step": self.context.step,
            "expected": [None, limit],
        }
        self.report(
            f"{metric} is {factor(value / normal)} as high as before: {figure(value)}, from {figure(normal)}",
            f"The last two evaluations exceed {figure(limit)}, which no usual value of this run comes near.",
            key=metric,
            evidence=evidence,
        )
