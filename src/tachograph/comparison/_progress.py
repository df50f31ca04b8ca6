"""Compare how far runs came in the same training time, which weighs speed and loss together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tachograph.comparison._evidence import RunEvidence

__all__ = ["Progress", "measure_progress"]

_NUM_BLOCKS = 50
_TAIL_SHARE = 0.1


class Progress(NamedTuple):
    """Two groups of runs at equal training time; medians over the runs of each group."""

    seconds: float
    """The training time of the shortest run."""
    losses: tuple[float, float]
    """The mean loss over the last tenth of that time."""
    target: float
    """The higher one of the final losses."""
    seconds_to_target: tuple[float | None, float | None]
    """When the loss of each group reached the target and stayed there; None if it did not."""


def measure_progress(first: Sequence[RunEvidence], second: Sequence[RunEvidence]) -> Progress | None:
    """Compare losses at equal times, or return None if a run has no times or no losses."""
    curves = [_over_time(run) for run in (*first, *second)]
    if any(len(times) < _NUM_BLOCKS for times, _ in curves):
        return None
    seconds = min(float(times[-1]) for times, _ in curves)
    at_end = [float(losses[_last(times, seconds)].mean()) for times, losses in curves]
    finals = [float(losses[_last(times, float(times[-1]))].mean()) for times, losses in curves]
    count = len(first)
    target = max(float(np.median(finals[:count])), float(np.median(finals[count:])))
    times_to_target = [_time_to(times, losses, target) for times, losses in curves]
    return Progress(
        seconds,
        (float(np.median(at_end[:count])), float(np.median(at_end[count:]))),
        target,
        (_median(times_to_target[:count]), _median(times_to_target[count:])),
    )


def _over_time(run: RunEvidence) -> tuple[np.ndarray, np.ndarray]:
    losses = run.loss.finite
    if len(run.clock.steps) < 2 or not len(losses.steps):
        return np.empty(0), np.empty(0)
    inside = losses.between(float(run.clock.steps[0]), float(run.clock.steps[-1]))
    return run.clock.at(inside.steps), inside.values


def _last(times: np.ndarray, end: float) -> np.ndarray:
    is_last: np.ndarray = (times <= end) & (times >= (1 - _TAIL_SHARE) * end)
    return is_last if is_last.any() else times == times[np.searchsorted(times, end, side="right") - 1]


def _time_to(times: np.ndarray, losses: np.ndarray, target: float) -> float | None:
    """Return the end of the first block from which on every block mean is at or below the target."""
    ends = np.linspace(0, len(times), _NUM_BLOCKS + 1).astype(int)[1:]
    means = np.array([part.mean() for part in np.split(losses, ends[:-1])])
    above = np.flatnonzero(means > target * (1 + 1e-9) if target > 0 else means > target + 1e-12)
    block = int(above[-1]) + 1 if len(above) else 0
    return float(times[ends[block] - 1]) if block < _NUM_BLOCKS else None


def _median(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return float(np.median(known_values)) if known_values and len(known_values) == len(values) else None
