"""Compare loss curves.

Two single runs may be identical, or differ by rounding only; then statistics have nothing to add. Otherwise, the level
of a run is the mean loss over the last tenth of the steps that all runs have. How much runs differ by their seed alone
does not show within a run, so it is assumed: little if the runs saw the same batches in the same order, which shows as
losses that go up and down together, and several times as much otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from tachograph.comparison._blocks import Onset, find_onset
from tachograph.comparison._evidence import Floats, Points
from tachograph.comparison._judge import Noise
from tachograph.comparison._speed import TooShort

__all__ = ["Agreement", "LossLevels", "agree", "block_means", "have_same_batches", "measure_final", "measure_loss"]

_TAIL_SHARE = 0.1
_MIN_COMMON = 50
_MIN_TAIL = 20
_MIN_BATCHES = 100
_MAX_BATCHES = 50_000
_MAX_GAP = 10
_SAME_CORRELATION = 0.9
_ROUNDING = 1e-5
_NUM_BLOCKS = 50
_SAME_BATCHES = Noise(0.003, "assumed: same batches")
_OTHER_BATCHES = Noise(0.015, "assumed: different order of the data")


class Agreement(NamedTuple):
    """How two curves agree, step by step."""

    kind: Literal["identical", "rounding", "identical_until", "different"]
    step: float | None = None
    """The first step that differs."""
    first_difference: float = 0.0
    """The relative difference there."""
    largest_difference: float = 0.0
    last_difference: float = 0.0
    num_digits: int = 17
    """How many digits the values have at most; logs that round agree more easily."""


class LossLevels(NamedTuple):
    """The final losses of two groups of runs."""

    first: list[float]
    second: list[float]
    values: tuple[float, float]
    """The mean losses of both groups."""
    noise: Noise
    margin: float
    onset: Onset | None
    is_logarithm: bool
    """Whether levels are logarithms; values below 0 are compared by their difference instead."""
    scale: float
    """What differences are divided by if levels are no logarithms."""


def agree(first: Points, second: Points) -> Agreement | None:
    """Compare two curves step by step, or return None if they have too few steps in common."""
    common, a, b = _common(first, second)
    if len(common) < _MIN_COMMON:
        return None
    digits = _num_digits(a)
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    if is_same.all():
        return Agreement("identical", num_digits=digits)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(is_same, 0.0, np.abs(b - a) / np.abs(a))
    relative = np.where(np.isnan(relative), np.inf, relative)
    at = int(np.argmin(is_same))
    largest = float(relative.max())
    kind: Literal["identical_until", "rounding", "different"]
    kind = "identical_until" if at >= 10 else "rounding" if largest <= _ROUNDING else "different"
    return Agreement(kind, float(common[at]), float(relative[at]), largest, float(relative[-1]), digits)


def _common(first: Points, second: Points) -> tuple[Floats, Floats, Floats]:
    """Return the steps that both curves have, and the values of both there."""
    if np.array_equal(first.steps, second.steps):
        return first.steps, first.values, second.values
    common, at_first, at_second = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    return common, first.values[at_first], second.values[at_second]


def _num_digits(values: Floats) -> int:
    sample = values[np.isfinite(values)][:: max(1, len(values) // 200)]
    return max((len(f"{value!r}".lstrip("-0.").split("e")[0].replace(".", "")) for value in sample.tolist()), default=0)


def have_same_batches(curves: Sequence[Points]) -> bool:
    """Return whether runs saw the same batches: their losses then go up and down at the same steps."""
    return all(_rise_together(curves[0], other) for other in curves[1:])


def _rise_together(first: Points, second: Points) -> bool:
    common, a, b = _common(first, second)
    begin = max(len(common) // 10, len(common) - _MAX_BATCHES)
    common, a, b = common[begin:], a[begin:], b[begin:]
    is_finite = np.isfinite(a) & np.isfinite(b)
    common, a, b = common[is_finite], np.diff(a[is_finite]), np.diff(b[is_finite])
    # The trend alone makes rarely recorded curves rise and fall together.
    if len(a) < _MIN_BATCHES or float(np.median(np.diff(common))) > _MAX_GAP:
        return False
    if not a.std() or not b.std():
        return False
    return float(np.corrcoef(a, b)[0, 1]) >= _SAME_CORRELATION


def measure_loss(first: Sequence[Points], second: Sequence[Points], *, is_same_data: bool | None = None) -> LossLevels:
    """Measure the final training losses of two groups of runs.

    Args:
        first: the curves to compare with.
        second: the curves to judge.
        is_same_data: whether the runs saw the same batches; by default, the curves tell.

    Raises:
        TooShort: if the runs have too little in common.
    """
    curves = [*first, *second]
    if any(not len(curve.steps) for curve in curves):
        raise TooShort("a run has no loss")
    low = max(float(curve.steps[0]) for curve in curves)
    high = min(float(curve.steps[-1]) for curve in curves)
    tails = [curve.between(high - _TAIL_SHARE * (high - low), high).finite for curve in curves]
    fewest = min(len(tail.steps) for tail in tails)
    if high <= low or fewest < _MIN_TAIL:
        raise TooShort(f"the last tenth of the common steps has {max(0, fewest)} losses; {_MIN_TAIL} are needed")
    is_same = have_same_batches(curves) if is_same_data is None else is_same_data
    means = np.array([tail.values.mean() for tail in tails])
    edges = np.linspace(low + 0.1 * (high - low), high, _NUM_BLOCKS + 1)
    blocks = np.array([block_means(curve.finite, edges) for curve in curves])
    is_positive = bool((means > 0).all() and (blocks[np.isfinite(blocks)] > 0).all())
    scale = None if is_positive else _range_of(first[0].between(low, high).finite.values)
    noise, margin = _assumed_noise(is_same_data=is_same)
    block_levels = np.log(blocks) if scale is None else blocks / scale
    is_known = np.array(np.isfinite(block_levels).all(axis=0))
    onset = None
    if is_known[-1] and is_known.sum() >= _NUM_BLOCKS // 2:
        known_levels = block_levels[:, is_known]
        onset = find_onset(known_levels[: len(first)], known_levels[len(first) :], edges[:-1][is_known], noise, margin)
    return _levels_of(means, len(first), scale, onset, is_same_data=is_same)


def block_means(curve: Points, edges: Floats) -> Floats:
    """Return the mean of each block, NaN where there is no value."""
    block = np.searchsorted(edges, curve.steps, side="right") - 1
    block[curve.steps == edges[-1]] = len(edges) - 2
    is_inside = (block >= 0) & (block < len(edges) - 1)
    counts = np.bincount(block[is_inside], minlength=len(edges) - 1)
    sums = np.bincount(block[is_inside], weights=curve.values[is_inside], minlength=len(edges) - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = sums / counts
    return means


def measure_final(first: Sequence[Points], second: Sequence[Points], *, is_same_data: bool) -> LossLevels:
    """Measure the mean of the last three validations that all runs have at the same steps.

    Raises:
        TooShort: if there are no three.
    """
    curves = [curve.finite for curve in (*first, *second)]
    common = curves[0].steps
    for curve in curves[1:]:
        common = np.intersect1d(common, curve.steps, assume_unique=True)
    if len(common) < 3:
        raise TooShort(f"the runs have {len(common)} validations at the same steps; 3 are needed")
    means = np.array([curve.values[np.isin(curve.steps, common[-3:])].mean() for curve in curves])
    scale = None if (means > 0).all() else _range_of(curves[0].values)
    return _levels_of(means, len(first), scale, None, is_same_data=is_same_data)


def _assumed_noise(*, is_same_data: bool) -> tuple[Noise, float]:
    """Return the noise between runs, and the margin."""
    return (_SAME_BATCHES, 0.005) if is_same_data else (_OTHER_BATCHES, 0.01)


def _range_of(values: Floats) -> float:
    low, high = np.quantile(values, (0.1, 0.9))
    return float(high - low) or 1.0


def _levels_of(
    means: Floats, num_first: int, scale: float | None, onset: Onset | None, *, is_same_data: bool
) -> LossLevels:
    """Return the levels of the final losses of both groups; without a scale, they are logarithms."""
    levels = np.log(means) if scale is None else means / scale
    noise, margin = _assumed_noise(is_same_data=is_same_data)
    return LossLevels(
        levels[:num_first].tolist(),
        levels[num_first:].tolist(),
        (float(means[:num_first].mean()), float(means[num_first:].mean())),
        noise,
        margin,
        onset,
        scale is None,
        scale or 1.0,
    )
