"""The usual level of earlier runs, and how much they differ, although some of them may not belong to the rest.

`tacho compare` judges earlier runs in the same way, with numpy: see `comparison/_spread.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tachograph.diagnostics._signal_stats import median

__all__ = ["EarlierLevels", "measure_earlier"]

_MIN_RUNS = 5
_MIN_HISTORY = 10
_MIN_SIDE = 3
_MIN_T = 6.0
_MIN_STEP = math.log1p(0.01)
_TINY = 1e-12


class EarlierLevels(NamedTuple):
    """The levels of earlier runs."""

    mean: float
    squares: float
    """The sum of the squared deviations of the runs that belong together."""
    num_runs: int
    max_deviation: float
    """How far single runs were off the others."""


def measure_earlier(levels: Sequence[float]) -> EarlierLevels:
    """Measure levels of runs, oldest first: those since the last change, without a minority far away from the rest."""
    recent = list(levels)
    while (position := _last_change(recent)) is not None:
        recent = recent[position:]
    middle = median(sorted(recent))
    by_distance = sorted(recent, key=lambda level: abs(level - middle))
    # Many exceptions first: with one left out of two, the other one makes the spread so large that it fits.
    for num_usual in range(len(recent) // 2 + 1, len(recent)) if len(recent) >= _MIN_RUNS else ():
        usual = _measure(by_distance[:num_usual])
        distances = [abs(level - usual.mean) for level in by_distance[num_usual:]]
        degrees = num_usual - 1
        # A little above the quantile of Student's t that one run in a thousand exceeds, however many there are.
        limit = (5 + 180 / degrees**2) * math.sqrt(usual.squares / degrees * (1 + 1 / num_usual))
        if min(distances) > limit:
            return usual._replace(max_deviation=max(distances))
    return _measure(recent)


def _measure(levels: Sequence[float]) -> EarlierLevels:
    mean = math.fsum(levels) / len(levels)
    return EarlierLevels(mean, math.fsum((level - mean) ** 2 for level in levels), len(levels), 0.0)


def _last_change(levels: Sequence[float]) -> int | None:
    """Return from which run on the level is another one, if it has been for three runs."""
    if len(levels) < _MIN_HISTORY:
        return None
    splits = []
    for position in range(_MIN_SIDE, len(levels) - _MIN_SIDE + 1):
        before, after = _measure(levels[:position]), _measure(levels[position:])
        sd = math.sqrt((before.squares + after.squares) / (len(levels) - 2)) + _TINY
        step = abs(after.mean - before.mean)
        splits.append((step / (sd * math.sqrt(1 / before.num_runs + 1 / after.num_runs)), position, step))
    t, position, step = max(splits)
    return position if t > _MIN_T and step >= _MIN_STEP else None
