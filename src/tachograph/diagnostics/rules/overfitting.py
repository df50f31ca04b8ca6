"""The validation loss rises while the training loss does not."""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Annotated, NamedTuple

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, median
from tachograph.diagnostics._text import figure, percent

__all__ = ["Overfitting"]

_SCALES = (3, 6, 12, 24, 48, 96)
"""Numbers of evaluations that are compared. A small rise under strong noise needs many."""
_NUM_WINDOWS = 24
_NUM_NOISE = 64
_SELECTION_ERRORS = 2.0
"""The lowest of many noisy levels is low by chance, by about this many errors."""
_SCATTER_FACTOR = 3.0
_NUM_PERSISTENT = 3
"""Stretches in each of which the loss must be high."""
_MIN_PERSISTENT = 16
_MIN_TRAIN_VALUES = 4
_MIN_NOISY = 24
"""Compared evaluations from which on a single one among them says nothing about the level."""
_MAX_SHARE_IF_NEVER_BETTER = 0.6
_MAX_RISE_PER_FALL = 2.0
"""How much the validation loss rises at most when the training loss falls, unless that is far below the best one."""
_MEMORISED_SHARE = 0.9
"""A training loss below this share of the best validation loss has fallen further than the model can generalise."""


class _Rise(NamedTuple):
    """A significant rise above the best level."""

    level: float
    best: float
    num_values: int


class _TrainLevel(NamedTuple):
    """The level of the training loss around an evaluation, and its error."""

    level: float
    error: float


class _Scale:
    """Levels over a fixed number of evaluations: the best one, and how much such levels vary on their own."""

    def __init__(self, num_values: int) -> None:
        self.num_values = num_values
        self.best = math.inf
        self.windows: deque[float] = deque(maxlen=_NUM_WINDOWS)  # levels of stretches that do not overlap

    def scatter(self) -> float | None:
        """Return the spread of the change from one stretch to the next; None if there are too few of them."""
        changes = sorted(after - before for before, after in itertools.pairwise(self.windows))
        if len(changes) < 4:
            return None
        # Only rises count: a loss that wanders rises as much as it falls, but the fall at the start is no scatter.
        return max(0.0, changes[len(changes) * 9 // 10]) / 1.28


class _Evaluations:
    """The recent values of one validation loss, and the best so far."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=_NUM_PERSISTENT * _SCALES[-1])
        self.scales = [_Scale(num_values) for num_values in _SCALES]
        self.num_values = 0
        self.num_since_best = 0
        self.first: float | None = None
        self.best = math.inf
        self.best_step: int | None = None
        self.train_at_best: _TrainLevel | None = None
        self.num_train_values: deque[int] = deque(maxlen=3)
        self.highest_rise = 0.0
        """The highest rise over the best value from which this loss has returned: such rises are usual in this run."""
        self.rise = 0.0
        self.reported: _Rise | None = None

    def add(self, value: float) -> None:
        """Add an evaluation."""
        self.num_values += 1
        self.first = value if self.first is None else self.first
        self.recent.append(value)

    def noise(self) -> float:
        """Return the spread of single evaluations, from their distance to the midpoint of their neighbours."""
        values = list(self.recent)[-_NUM_NOISE:]
        if self.num_values < _MIN_PERSISTENT:
            values = values[-self.num_since_best - 1 :]  # the bend of the curve at its best is no noise
        distances = sorted(
            abs(before + after - 2 * value) / 2.45  # the standard deviation of this, for noise of one
            for before, value, after in zip(values, values[1:], values[2:], strict=False)
        )
        if not distances:
            return 0.0
        # A high quantile contains heavy tails, but neither the fall at the start nor a single bad evaluation.
        return max(distances[len(distances) // 2] / 0.67, distances[len(distances) * 9 // 10] / 1.65)

    def find_rise(self, min_share: float, min_errors: float) -> _Rise | None:
        """Update the levels of all scales; return the rise that is significant on one of them."""
        values, noise = list(self.recent), None
        for scale in self.scales:
            size = scale.num_values
            if len(values) < size or (self.num_values % max(1, size // 3) and size > _SCALES[0]):
                continue
            last = sorted(values[-size:])
            level = median(last)
            if self.num_values % size == 0:
                scale.windows.append(level)
            scale.best = min(scale.best, level)
            is_short = size == _SCALES[0]
            best = self.best if is_short and self.num_values < _MIN_PERSISTENT else scale.best
            now = last[0] if is_short else level
            if now - best < min_share * abs(best) or self.num_values < size + 2:
                continue
            before = values[-2 * size : -size]
            if len(before) == size and level < median(sorted(before)) - 0.25 * (now - best):
                continue  # it is falling again
            if noise is None:
                noise = self.noise()
            error = noise * (1.25 * math.sqrt(2 / size) if not is_short else 1.0 + 6 / self.num_values)
            scatter = scale.scatter()
            limit = (min_errors + (0.0 if is_short else _SELECTION_ERRORS)) * error
            if now - best < max(limit, _SCATTER_FACTOR * (scatter or 0.0)) or (scatter is None and size > 12):
                continue
            if self.num_values >= _MIN_PERSISTENT and not self._persists(values, size, best, 0.25 * (now - best)):
                continue  # a bump
            return _Rise(level, best, size)
        return None

    def _persists(self, values: list[float], size: int, best: float, rise: float) -> bool:
        """Return whether the loss was this high in each of the last stretches: three, or a fifth of the run."""
        num_values = max(_NUM_PERSISTENT * size, min(self.num_values // 5, len(values)))
        # Few values must not come near the best level at all; of many noisy ones some may.
        lowest = sorted(values[-num_values:])[int(min(0.25, size / 100) * num_values)]
        if lowest < best + 0.5 * rise:
            return False
        ends = range(len(values), len(values) - num_values, -size)
        return all(median(sorted(values[max(0, end - size) : end])) >= best + rise for end in ends if end > 0)

    def is_still_high(self, rise: _Rise) -> bool:
        """Return whether the level is still high, although a single one of many noisy evaluations was the lowest."""
        last = sorted(list(self.recent)[-rise.num_values :])
        return rise.num_values >= _MIN_NOISY and median(last) > 0.5 * (rise.level + rise.best)

    def rises_gradually(self, num_values: int) -> bool:
        """Return whether no single step makes up most of the rise: a sudden one is a different fault."""
        values = [self.best, *list(self.recent)[-2 * num_values :]]
        changes = [after - before for before, after in itertools.pairwise(values)]
        return max(changes[1:], default=0.0) <= 0.6 * (max(values[-num_values:]) - self.best)


class Overfitting(Rule):
    """The validation loss has been rising, while the training loss has not risen.

    The rule compares the level of the last 3, 6, 12, 24, 48 or 96 evaluations with the best level of as many. The rise
    must exceed a share of the best level, several times the noise of such a level, and several times the usual change
    from one such stretch to the next, so that neither a small validation set nor a loss that wanders is reported. A
    sudden rise is a different fault: see `validation_blow_up`.

    The alert is a warning if the training loss has fallen since then, and clearly below the best validation loss or by
    a similar amount, or if no training loss is recorded; otherwise the cause may be another one, and the alert is for
    information. If the validation loss has never improved, the training loss must have fallen far. The alert names the
    step of the lowest validation loss, which is the checkpoint to keep, and is withdrawn when a lower validation loss
    follows. From then on, only a clearly larger rise is reported in this run.
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
            float, Meta(description="Minimum rise of the validation loss above its best level, as a share.", gt=0)
        ] = 0.03
        noise: Annotated[
            float,
            Meta(description="Minimum rise as a multiple of the noise of the compared levels.", ge=0),
        ] = 4.0
        patience: Annotated[int, Meta(description="Evaluations since the best one, at least.", ge=1)] = 3
        after_recovery: Annotated[
            float,
            Meta(description="Minimum rise as a multiple of one from which the loss has recovered before.", ge=1),
        ] = 1.5

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all evaluations."""
        self._by_metric: dict[str, _Evaluations] = {}

    def on_change(self, change: str) -> None:
        """Start over with fresh weights."""
        if change == "restart":
            for metric in self._by_metric:
                self.resolve("training restarted with fresh weights", key=metric)
            self.reset()

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Compare a validation loss with the best so far."""
        if not math.isfinite(value):
            return
        evaluations = self._by_metric.setdefault(metric, _Evaluations())
        train = self._train_level(evaluations)
        evaluations.add(value)
        evaluations.num_since_best += 1
        rise = evaluations.find_rise(self.thresholds.rise, self.thresholds.noise)
        reported = evaluations.reported
        if value <= evaluations.best:
            evaluations.best, evaluations.best_step, evaluations.num_since_best = value, self.context.step, 0
            if reported is None or not evaluations.is_still_high(reported):
                evaluations.highest_rise = max(evaluations.highest_rise, evaluations.rise)
                evaluations.rise = 0.0
                evaluations.train_at_best = train
                evaluations.reported = None
                step = self.context.step
                self.resolve(f"withdrawn: {metric} reached {figure(value)} at step {step}, a new best", key=metric)
            return
        if rise is None:
            return
        evaluations.rise = max(evaluations.rise, rise.level - rise.best)
        if rise.level - rise.best < self.thresholds.after_recovery * evaluations.highest_rise:
            return
        if evaluations.num_since_best < self.thresholds.patience:
            return
        if self.is_open(metric) or not evaluations.rises_gradually(rise.num_values):
            return
        train_at_best = evaluations.train_at_best
        if train is not None and train_at_best is not None:
            error = math.hypot(train.error, train_at_best.error)
            if train.level > train_at_best.level + 3 * error:
                return  # both losses rise: that is not overfitting
            first = evaluations.first or 0.0
            has_improved = evaluations.best < first - self.thresholds.rise * abs(first)
            if not has_improved and train.level > _MAX_SHARE_IF_NEVER_BETTER * train_at_best.level:
                return  # before a model learns something, it may become worse for a while
        evaluations.reported = rise
        self._report(metric, rise, evaluations, train)

    def _train_level(self, evaluations: _Evaluations) -> _TrainLevel | None:
        """Return the level of the training loss since the last evaluations; None if it is not recorded as often."""
        stats = self.signals.get("loss")
        if stats is None:
            return None
        counts = evaluations.num_train_values
        counts.append(stats.num_added)
        values = stats.last_values(BLOCK)
        if len(values) < _MIN_TRAIN_VALUES or counts[0] == counts[-1]:
            return None
        changes = sorted(abs(after - before) for before, after in itertools.pairwise(values))
        sigma = changes[len(changes) // 2] / 0.954
        values = stats.last_values(max(2, counts[-1] - counts[-2]))
        train = _TrainLevel(median(sorted(values)), 1.25 * sigma / math.sqrt(len(values)))
        if evaluations.train_at_best is None and evaluations.num_values:
            evaluations.train_at_best = train  # the best evaluation was before the first training losses
        return train

    def _report(self, metric: str, rise: _Rise, evaluations: _Evaluations, train: _TrainLevel | None) -> None:
        best, step, at_best = evaluations.best, evaluations.best_step, evaluations.train_at_best
        evidence = {
            "metric": metric,
            "value": rise.level,
            "best": best,
            "best_step": step,
            "best_level": rise.best,
            "step": self.context.step,
            "rise": (rise.level - best) / abs(best) if best else None,
            "train_loss": train.level if train is not None else None,
            "train_loss_at_best": at_best.level if at_best is not None else None,
            "window_values": rise.num_values,
            "expected": [None, best + self.thresholds.rise * abs(best)],
        }
        message = f"The checkpoint closest to step {step} is the best one. "
        message += f"The level of the last {rise.num_values} evaluations is {figure(rise.level)}."
        fault, severity = "Validation loss has been rising", "warning"
        if train is None or at_best is None:
            message += " No training loss of that time is recorded to compare it with."
        else:
            fall = at_best.level - train.level
            has_memorised = train.level < _MEMORISED_SHARE * best or _MAX_RISE_PER_FALL * fall >= rise.level - rise.best
            if has_memorised and fall > 2 * math.hypot(train.error, at_best.error):
                fault = "Overfitting"
                message += f" The training loss fell from {figure(at_best.level)} to {figure(train.level)}."
            else:
                severity = "info"
                message += (
                    f" The training loss was {figure(at_best.level)} and is {figure(train.level)}, which does not "
                    "explain it: the evaluation may use other weights or other data than the training."
                )
        excess = percent((rise.level - best) / abs(best)) if best else figure(rise.level - best)
        value = f"{metric} is {figure(rise.level)}, {excess} above its best of {figure(best)}"
        self.report(f"{fault} since step {step}: {value}", message, key=metric, severity=severity, evidence=evidence)
