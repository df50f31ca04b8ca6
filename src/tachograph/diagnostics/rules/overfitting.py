"""The validation loss rises while the training loss falls."""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import median
from tachograph.diagnostics._text import figure, percent

__all__ = ["Overfitting"]


class Overfitting(Rule):
    """The validation loss has been above its best for several evaluations, while the training loss is not above its
    own.

    Among the first ten evaluations, rises in a row to more than a fifth above the best count one more. The alert names
    the step of the best validation loss: the checkpoint to keep. It is resolved when the validation loss comes back to
    its best.
    """

    name = "overfitting"
    meaning = (
        "From the step named here on, the model learns the training data by heart; what it can do on other data gets "
        "worse. If both losses rise, it is not this but a divergence."
    )
    advice = (
        "Keep the checkpoint nearest to the best step, and stop.",
        "Use more data or augmentation, a smaller model, more weight decay or dropout, or fewer epochs.",
        "With a small validation set, see whether the rise is larger than what its size explains.",
    )
    hears_each = ("val_loss",)

    class Thresholds(RuleSettings):
        """When it fires."""

        rise: Annotated[
            float, Meta(description="How far above its best the validation loss must be, as a share.", gt=0)
        ] = 0.03
        noise: Annotated[
            float,
            Meta(description="How many times its usual unrest between evaluations it must be above its best.", ge=0),
        ] = 4.0
        patience: Annotated[int, Meta(description="Evaluations in a row for which it must be.", ge=1)] = 3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._best: dict[str, tuple[float, int | None, float | None]] = {}
        self._num_above: dict[str, int] = {}
        self._num_values: dict[str, int] = {}
        self._recent: dict[str, deque[float]] = {}

    def on_change(self, what: str) -> None:
        """Begin anew with fresh weights."""
        if what == "restart":
            self.reset()

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Compare a validation loss with the best so far."""
        if not math.isfinite(value):
            return
        recent = self._recent.setdefault(metric, deque(maxlen=24))
        recent.append(value)
        loss = self.gauges.get("loss")
        level = loss.level if loss is not None else None
        self._num_values[metric] = self._num_values.get(metric, 0) + 1
        # Of many evaluations the best is low by chance: the more there are, the more of them make one.
        num_smoothed = max(1, min(self._num_values[metric] // 8, 5))
        smoothed = median(sorted(list(recent)[-num_smoothed:]))
        best, step, level_then = self._best.get(metric, (smoothed, self.now.step, level))
        if smoothed <= best:
            self._best[metric] = (smoothed, self.now.step, level)
            self._num_above[metric] = 0
            self.over(f"{metric} is back at its best: {figure(smoothed)}", key=metric)
            return
        self._best.setdefault(metric, (best, step, level_then))
        # It must be above by more than it goes up and down anyway, each time: the best of many is low by chance.
        rise = max(self.thresholds.rise * abs(best), self.thresholds.noise * _unrest(list(recent)))
        self._num_above[metric] = self._num_above.get(metric, 0) + 1 if value >= best + rise else 0
        num_asked = self.thresholds.patience
        if self.is_open(metric) or (self._num_above[metric] < num_asked and not _rises(list(recent), best, num_asked)):
            return
        sigma = loss.sigma if loss is not None else None
        if level is not None and level_then is not None and level > level_then + 2 * (sigma or 0.0):
            return  # both rise: that is not learning by heart
        evidence = {
            "metric": metric,
            "value": value,
            "best": best,
            "best_step": step,
            "step": self.now.step,
            "rise": (value - best) / abs(best) if best else None,
            "train_loss": level,
            "train_loss_at_best": level_then,
            "evaluations_above": self._num_above[metric],
        }
        more = percent((value - best) / abs(best)) if best else figure(value - best)
        title = f"Overfitting since step {step}: {metric} is {figure(value)}, {more} above its best of {figure(best)}"
        self.found(
            title, f"It has been above for {self._num_above[metric]} evaluations.", key=metric, evidence=evidence
        )


def _unrest(values: list[float]) -> float:
    """Return by how much values leave the straight line of their neighbours, on average; a steady rise has none."""
    bends = [
        abs(before + after - 2 * value) / 2
        for before, value, after in zip(values, values[1:], values[2:], strict=False)
    ]
    return sum(bends) / len(bends) if bends else 0.0


def _rises(values: list[float], best: float, num_asked: int) -> bool:
    """Tell whether few evaluations are known, and the last of them rose one after the other, far above the best."""
    last = values[-num_asked:]
    is_steady = len(last) == num_asked and all(before < after for before, after in itertools.pairwise(last))
    return len(values) <= 10 and is_steady and num_asked > 1 and last[-1] - best > 0.2 * abs(best)
