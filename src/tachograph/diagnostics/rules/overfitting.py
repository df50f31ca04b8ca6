"""The validation loss rises while the training loss does not."""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats, median
from tachograph.diagnostics._text import figure, percent

__all__ = ["Overfitting"]

_NUM_RECENT = 24


class _Evaluations:
    """The recent values of one validation loss, and the best so far."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self.num_values = 0
        self.num_above = 0
        self.best = math.inf
        self.best_step: int | None = None
        self.train_at_best: float | None = None
        self.last_step: int | None = None

    def smoothed_loss(self) -> float:
        """Return the median of the last evaluations.

        The best of many noisy evaluations is low by chance, so a longer run takes the median of more of them.
        """
        return median(sorted(list(self.recent)[-max(1, min(self.num_values // 8, 5)) :]))

    def noise(self) -> float:
        """Return the mean distance of an evaluation from the midpoint of its neighbours; zero for a steady rise."""
        values = list(self.recent)
        distances = [
            abs(before + after - 2 * value) / 2
            for before, value, after in zip(values, values[1:], values[2:], strict=False)
        ]
        return sum(distances) / len(distances) if distances else 0.0

    def rises_gradually(self, patience: int) -> bool:
        """Return whether no single step makes up most of the rise, and the last evaluations do not fall again."""
        values = list(self.recent)
        last = values[-patience:]
        steps = [after - before for before, after in itertools.pairwise([self.best, *values[-2 * patience :]])]
        is_falling = len(last) > 1 and last[-1] < last[0] and last[-1] < last[-2]
        return not is_falling and max(steps[1:], default=0.0) <= 0.6 * (values[-1] - self.best)


class Overfitting(Rule):
    """The validation loss has been rising for several evaluations, while the training loss has not risen.

    The rise must be larger than the noise between evaluations, last for several of them, and be gradual: a sudden rise
    is a different fault, see `validation_blow_up`. The alert names the step of the best validation loss, which is the
    checkpoint to keep. It is a warning if the training loss is below the validation loss and not above its own value at
    the best step. If that is unknown, because no recent training loss is recorded, or if the training loss is the
    higher one, as with strong augmentation, the alert is for information only. It is resolved when the validation loss
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
    block_signals = ("loss",)

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
        self._by_metric: dict[str, _Evaluations] = {}
        self._train_step: int | None = None

    def on_change(self, change: str) -> None:
        """Start over with fresh weights."""
        if change == "restart":
            self.reset()

    def on_block(self, stats: SignalStats) -> None:
        """Remember when the level of the training loss was updated."""
        self._train_step = self.context.step

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Compare a validation loss with the best so far."""
        if not math.isfinite(value):
            return
        evaluations = self._by_metric.setdefault(metric, _Evaluations())
        train = self._train_level(evaluations)
        evaluations.last_step = self.context.step
        evaluations.recent.append(value)
        evaluations.num_values += 1
        smoothed_loss, best = evaluations.smoothed_loss(), evaluations.best
        if smoothed_loss <= best:
            evaluations.best, evaluations.best_step, evaluations.train_at_best = smoothed_loss, self.context.step, train
            evaluations.num_above = 0
            self.resolve(f"{metric} is back at its best: {figure(smoothed_loss)}", key=metric)
            return
        rise = max(self.thresholds.rise * abs(best), self.thresholds.noise * evaluations.noise())
        evaluations.num_above = evaluations.num_above + 1 if value >= best + rise else 0
        patience = self.thresholds.patience
        if evaluations.num_above < patience or self.is_open(metric) or not evaluations.rises_gradually(patience):
            return
        sigma = self.signals["loss"].sigma if "loss" in self.signals else None
        train_at_best = evaluations.train_at_best
        if train is not None and train_at_best is not None and train > train_at_best + 2 * (sigma or 0.0):
            return  # both losses rise: that is not overfitting
        self._report(metric, value, evaluations, train)

    def _train_level(self, evaluations: _Evaluations) -> float | None:
        """Return the level of the training loss; None if it is older than the evaluation before the last one."""
        if "loss" not in self.signals:
            return None
        step, train_step, last_step = self.context.step, self._train_step, evaluations.last_step
        if (
            step is not None
            and train_step is not None
            and last_step is not None
            and train_step < last_step - (step - last_step)
        ):
            return None
        return self.signals["loss"].level

    def _report(self, metric: str, value: float, evaluations: _Evaluations, train: float | None) -> None:
        best, step, train_at_best = evaluations.best, evaluations.best_step, evaluations.train_at_best
        num_above = evaluations.num_above
        evidence = {
            "metric": metric,
            "value": value,
            "best": best,
            "best_step": step,
            "step": self.context.step,
            "rise": (value - best) / abs(best) if best else None,
            "train_loss": train,
            "train_loss_at_best": train_at_best,
            "evaluations_above": num_above,
        }
        evaluations_above = "1 evaluation" if num_above == 1 else f"{num_above} evaluations"
        message = f"It has been above its best for {evaluations_above}."
        is_certain = train is not None and train_at_best is not None and train <= value
        if train is None or train_at_best is None:
            message += " No training loss of that time is recorded to compare it with."
        elif not is_certain:
            message += f" The training loss is higher, at {figure(train)}: the model may not have memorised its data."
        fault, severity = ("Overfitting", "warning") if is_certain else ("Validation loss has been rising", "info")
        excess = percent((value - best) / abs(best)) if best else figure(value - best)
        title = f"{fault} since step {step}: {metric} is {figure(value)}, {excess} above its best of {figure(best)}"
        self.report(title, message, key=metric, severity=severity, evidence=evidence)
