"""The validation loss rises while the training loss does not."""

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

_NUM_RECENT = 24
_NUM_EARLY = 10


class Overfitting(Rule):
    """The validation loss has been above its best for several evaluations, while the training loss has not risen.

    Among the first ten evaluations, a steady rise to more than 20 % above the best also counts. The alert names the
    step of the best validation loss, which is the checkpoint to keep. The alert is resolved when the validation loss
    returns to its best.
    """

    name = "overfitting"
    meaning = (
        "Since the step in the alert, the model memorises the training data and generalises worse. If both losses "
        "rise, it is a divergence instead."
    )
    advice = (
        "Keep the checkpoint closest to the best step, and stop.",
        "Use more data or augmentation, a smaller model, more weight decay or dropout, or fewer epochs.",
        "If the validation set is small, check that the rise is larger than its sampling noise.",
    )
    value_signals = ("val_loss",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        rise: Annotated[
            float, Meta(description="Minimum rise of the validation loss above its best, as a share.", gt=0)
        ] = 0.03
        noise: Annotated[
            float,
            Meta(description="Minimum rise as a multiple of the usual noise between evaluations.", ge=0),
        ] = 4.0
        patience: Annotated[int, Meta(description="Consecutive evaluations that must be that high.", ge=1)] = 3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all evaluations."""
        self._best: dict[str, tuple[float, int | None, float | None]] = {}
        self._num_above: dict[str, int] = {}
        self._num_values: dict[str, int] = {}
        self._recent: dict[str, deque[float]] = {}

    def on_change(self, change: str) -> None:
        """Start over with fresh weights."""
        if change == "restart":
            self.reset()

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Compare a validation loss with the best so far."""
        if not math.isfinite(value):
            return
        recent = self._recent.setdefault(metric, deque(maxlen=_NUM_RECENT))
        recent.append(value)
        loss = self.signals.get("loss")
        level = loss.level if loss is not None else None
        self._num_values[metric] = self._num_values.get(metric, 0) + 1
        # The best of many noisy evaluations is low by chance, so a longer run takes the median of more of them.
        num_smoothed = max(1, min(self._num_values[metric] // 8, 5))
        smoothed = median(sorted(list(recent)[-num_smoothed:]))
        best, step, level_at_best = self._best.get(metric, (smoothed, self.context.step, level))
        if smoothed <= best:
            self._best[metric] = (smoothed, self.context.step, level)
            self._num_above[metric] = 0
            self.resolve(f"{metric} is back at its best: {figure(smoothed)}", key=metric)
            return
        self._best.setdefault(metric, (best, step, level_at_best))
        rise = max(self.thresholds.rise * abs(best), self.thresholds.noise * _noise(list(recent)))
        self._num_above[metric] = self._num_above.get(metric, 0) + 1 if value >= best + rise else 0
        patience = self.thresholds.patience
        is_above = self._num_above[metric] >= patience or _rises_steadily(list(recent), best, patience)
        if self.is_open(metric) or not is_above:
            return
        sigma = loss.sigma if loss is not None else None
        if level is not None and level_at_best is not None and level > level_at_best + 2 * (sigma or 0.0):
            return  # both losses rise: that is not overfitting
        evidence = {
            "metric": metric,
            "value": value,
            "best": best,
            "best_step": step,
            "step": self.context.step,
            "rise": (value - best) / abs(best) if best else None,
            "train_loss": level,
            "train_loss_at_best": level_at_best,
            "evaluations_above": self._num_above[metric],
        }
        excess = percent((value - best) / abs(best)) if best else figure(value - best)
        title = f"Overfitting since step {step}: {metric} is {figure(value)}, {excess} above its best of {figure(best)}"
        num_above = self._num_above[metric]
        evaluations = "1 evaluation" if num_above == 1 else f"{num_above} evaluations"
        self.report(title, f"It has been above its best for {evaluations}.", key=metric, evidence=evidence)


def _noise(values: list[float]) -> float:
    """Return the mean distance of values from the midpoint of their neighbours; zero for a steady rise."""
    distances = [
        abs(before + after - 2 * value) / 2
        for before, value, after in zip(values, values[1:], values[2:], strict=False)
    ]
    return sum(distances) / len(distances) if distances else 0.0


def _rises_steadily(values: list[float], best: float, num_values: int) -> bool:
    """Return whether there are few evaluations, and the last ones rose one after the other, far above the best."""
    last = values[-num_values:]
    is_steady = len(last) == num_values and all(before < after for before, after in itertools.pairwise(last))
    return len(values) <= _NUM_EARLY and is_steady and num_values > 1 and last[-1] - best > 0.2 * abs(best)
