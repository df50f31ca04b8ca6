"""Compare loss curves.

Two single runs may be identical, or differ by rounding only; then statistics have nothing to add. Otherwise, the level
of a run is the mean loss over the last tenth of the steps that all runs have. How much runs differ by their seed alone
does not show within a run and depends on the training (0.05 to 5 % in public logs), so it is never assumed: it comes
from the runs of the groups, from earlier runs with the same config, or from the user. Between two single runs without
either, there is no verdict. Runs that saw the same batches in the same order, which shows as losses that go up and down
together, differ several times less, so that smaller differences matter.

Two trainings with different configs, such as two models, may also differ in how much their seeds differ. The spread of
one of them says nothing about the other, so each needs three seeds of its own, among the runs compared or earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from tachograph.comparison._blocks import Onset, find_onset
from tachograph.comparison._evidence import Floats, SeriesPoints
from tachograph.comparison._judge import Judgement, Noise, Side, judge, judge_sides, learned_noise, measure_side
from tachograph.comparison._speed import TooShort
from tachograph.comparison._spread import EarlierSpread, spread_of_earlier

__all__ = [
    "Agreement",
    "LossLevels",
    "agree",
    "block_means",
    "have_same_batches",
    "judge_losses",
    "measure_final",
    "measure_loss",
]

_TAIL_SHARE = 0.1
_MIN_COMMON = 50
_MIN_TAIL = 20
_MIN_BATCHES = 100
_MAX_BATCHES = 50_000
_MAX_GAP = 10
_SAME_CORRELATION = 0.9
_ROUNDING = 1e-5
_NUM_BLOCKS = 50
_SAME_BATCHES_MARGIN = 0.005
_MARGIN = 0.01
_SAME_BATCHES_SD = 0.003
_OTHER_BATCHES_SD = 0.015
_OTHER_TRAINING_SD = 0.02
"""Of a training of which nothing is known; the seeds of four in five trainings in public logs differ by less."""
_ASSUMED_DEGREES = 4.0
_MIN_SEEDS = 3
_NUM_SIDES = 2
_STATED_DEGREES = 20.0
_STATED = "stated"


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
    """The spread between seeds, without the runs compared."""
    margin: float
    onset: Onset | None
    is_logarithm: bool
    """Whether levels are logarithms; values below 0 are compared by their difference instead."""
    scale: float
    """What differences are divided by if levels are no logarithms."""
    is_same_data: bool
    """Whether all runs saw the same batches."""
    earlier_spreads: tuple[EarlierSpread | None, EarlierSpread | None] | None
    """What earlier runs show of each group, if these are different trainings."""


def agree(first: SeriesPoints, second: SeriesPoints) -> Agreement | None:
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


def _common(first: SeriesPoints, second: SeriesPoints) -> tuple[Floats, Floats, Floats]:
    """Return the steps that both curves have, and the values of both there."""
    if np.array_equal(first.steps, second.steps):
        return first.steps, first.values, second.values
    common, at_first, at_second = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    return common, first.values[at_first], second.values[at_second]


def _num_digits(values: Floats) -> int:
    sample = values[np.isfinite(values)][:: max(1, len(values) // 200)]
    return max((len(f"{value!r}".lstrip("-0.").split("e")[0].replace(".", "")) for value in sample.tolist()), default=0)


def have_same_batches(curves: Sequence[SeriesPoints]) -> bool:
    """Return whether runs saw the same batches: their losses then go up and down at the same steps."""
    return all(_rise_together(curves[0], other) for other in curves[1:])


def _rise_together(first: SeriesPoints, second: SeriesPoints) -> bool:
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


def measure_loss(
    first: Sequence[SeriesPoints],
    second: Sequence[SeriesPoints],
    *,
    is_same_data: bool | None = None,
    earlier: Sequence[Sequence[SeriesPoints]] = (),
    seed_spread: float | None = None,
) -> LossLevels:
    """Measure the final training losses of two groups of runs.

    Args:
        first: the curves to compare with.
        second: the curves to judge.
        is_same_data: whether the runs saw the same batches; by default, the curves tell.
        earlier: curves of runs that differ from these only in their seed, oldest first: one list, or one for each group
            if these are different trainings.
        seed_spread: the standard deviation between seeds, if the user states it.

    Raises:
        TooShort: if the runs have too little in common.
    """
    curves = [*first, *second]
    if any(not len(curve.steps) for curve in curves):
        raise TooShort("a run has no loss")
    low = max(float(curve.steps[0]) for curve in curves)
    high = min(float(curve.steps[-1]) for curve in curves)
    tail_start = high - _TAIL_SHARE * (high - low)
    tails = [curve.between(tail_start, high).finite for curve in curves]
    fewest = min(len(tail.steps) for tail in tails)
    if high <= low or fewest < _MIN_TAIL:
        raise TooShort(f"the last tenth of the common steps has {max(0, fewest)} losses; {_MIN_TAIL} are needed")
    is_same = have_same_batches(curves) if is_same_data is None else is_same_data
    means = np.array([tail.values.mean() for tail in tails])
    edges = np.linspace(low, high, _NUM_BLOCKS + 1)
    blocks = np.array([block_means(curve.finite, edges) for curve in curves])
    is_positive = bool((means > 0).all() and (blocks[np.isfinite(blocks)] > 0).all())
    scale = None if is_positive else _range_of(first[0].between(low, high).finite.values)
    earlier_means = []
    for earlier_curves in earlier:
        usable = [curve for curve in earlier_curves if len(curve.steps) and curve.steps[-1] >= high]
        if len(usable) > 1 and not is_same and have_same_batches(usable):
            usable = []  # these differ less than the runs compared do
        earlier_tails = [curve.between(tail_start, high).finite.values for curve in usable]
        earlier_means.append(np.array([tail.mean() for tail in earlier_tails if len(tail) >= _MIN_TAIL]))
    levels = _levels_of(means, len(first), earlier_means, scale, seed_spread, is_same_data=is_same)
    block_levels = np.log(blocks) if scale is None else blocks / scale
    return levels._replace(onset=_find_onset(block_levels, len(first), edges, levels))


def _find_onset(block_levels: Floats, num_first: int, edges: Floats, levels: LossLevels) -> Onset | None:
    """Find from where on two groups are apart; the spread within a block is about the same in all blocks."""
    is_known = np.array(np.isfinite(block_levels).all(axis=0))
    if not is_known[-1] or is_known.sum() < _NUM_BLOCKS // 2:
        return None
    first, second = block_levels[:num_first, is_known], block_levels[num_first:, is_known]
    noise = levels.noise
    if (degrees := len(block_levels) - 2) > 0:
        squares = sum(((group - group.mean(axis=0)) ** 2).sum(axis=0) for group in (first, second))
        noise = Noise(max(noise.sd, float(np.sqrt(np.median(squares) / degrees))), "", _STATED_DEGREES)
    elif not noise.degrees:
        return None
    return find_onset(first, second, edges[:-1][is_known], noise, levels.margin)


def block_means(curve: SeriesPoints, edges: Floats) -> Floats:
    """Return the mean of each block, NaN where there is no value."""
    block = np.searchsorted(edges, curve.steps, side="right") - 1
    block[curve.steps == edges[-1]] = len(edges) - 2
    is_inside = (block >= 0) & (block < len(edges) - 1)
    counts = np.bincount(block[is_inside], minlength=len(edges) - 1)
    sums = np.bincount(block[is_inside], weights=curve.values[is_inside], minlength=len(edges) - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = sums / counts
    return means


def measure_final(
    first: Sequence[SeriesPoints],
    second: Sequence[SeriesPoints],
    *,
    is_same_data: bool,
    earlier: Sequence[Sequence[SeriesPoints]] = (),
    seed_spread: float | None = None,
) -> LossLevels:
    """Measure the mean of the last three validations that all runs have at the same steps.

    Args:
        first: the curves to compare with.
        second: the curves to judge.
        is_same_data: whether the runs were trained with the same batches.
        earlier: as for `measure_loss`.
        seed_spread: as for `measure_loss`.

    Raises:
        TooShort: if there are no three.
    """
    curves = [curve.finite for curve in (*first, *second)]
    common = curves[0].steps
    for curve in curves[1:]:
        common = np.intersect1d(common, curve.steps, assume_unique=True)
    if len(common) < 3:
        raise TooShort(f"the runs have {len(common)} validations at the same steps; 3 are needed")
    last = [curve.values[np.isin(curve.steps, common[-3:])] for curve in curves]
    means = np.array([values.mean() for values in last])
    scale = None if (means > 0).all() else _range_of(curves[0].values)
    earlier_means = []
    for earlier_curves in earlier:
        earlier_last = [curve.finite.values[np.isin(curve.finite.steps, common[-3:])] for curve in earlier_curves]
        earlier_means.append(np.array([values.mean() for values in earlier_last if len(values) == 3]))
    levels = _levels_of(means, len(first), earlier_means, scale, seed_spread, is_same_data=is_same_data)
    resolution = _resolution(np.concatenate(last)) / (scale or float(means.min()))
    return levels._replace(noise=levels.noise._replace(resolution=resolution))


def _resolution(values: Floats) -> float:
    """Return the standard deviation that rounding causes, if these few values were rounded."""
    gaps = np.diff(np.unique(values))
    return float(gaps.min()) / math.sqrt(12) if len(gaps) else 0.0


def _range_of(values: Floats) -> float:
    low, high = np.quantile(values, (0.1, 0.9))
    return float(high - low) or 1.0


def _levels_of(
    means: Floats,
    num_first: int,
    earlier_means: Sequence[Floats],
    scale: float | None,
    seed_spread: float | None,
    *,
    is_same_data: bool,
) -> LossLevels:
    """Return the levels of the final losses of both groups; without a scale, they are logarithms."""
    levels = np.log(means) if scale is None else means / scale
    margin = _SAME_BATCHES_MARGIN if is_same_data else _MARGIN
    earlier_levels = [np.log(each[each > 0]) if scale is None else each / scale for each in earlier_means]
    spreads = [spread_of_earlier(each.tolist(), margin) for each in earlier_levels]
    return LossLevels(
        levels[:num_first].tolist(),
        levels[num_first:].tolist(),
        (float(means[:num_first].mean()), float(means[num_first:].mean())),
        _noise(spreads, sum(map(len, earlier_levels)), seed_spread),
        margin,
        None,
        scale is None,
        scale or 1.0,
        is_same_data,
        (spreads[0], spreads[1]) if len(spreads) == _NUM_SIDES else None,
    )


def _noise(spreads: Sequence[EarlierSpread | None], num_earlier: int, seed_spread: float | None) -> Noise:
    if seed_spread is not None:
        return Noise(seed_spread, _STATED, _STATED_DEGREES)
    known_spreads = [spread for spread in spreads if spread is not None]
    degrees = sum(spread.degrees for spread in known_spreads)
    if not degrees:
        return Noise(0.0, "between these runs", 0.0)
    sd = math.sqrt(math.fsum(spread.degrees * spread.sd**2 for spread in known_spreads) / degrees)
    pooled = EarlierSpread(sd, degrees, max(spread.max_deviation for spread in known_spreads))
    return learned_noise(pooled, num_earlier)


def judge_losses(
    first: Sequence[float], second: Sequence[float], levels: LossLevels, margin: float, confidence: float
) -> tuple[Judgement, Noise] | None:
    """Judge the final losses of two groups of seeds, and return the noise that decided.

    Between two single runs of which nothing else is known, the answer is None.

    One seed of five or ten can be far off the others, which are close together. In a group of one or two, it looks like
    a difference that is many times the spread of the other group. So with fewer than three seeds in a group, a
    difference must also exceed what seeds usually differ by, which counts for less the more seeds the other group has.

    Args:
        first: the levels to compare with, one for each seed.
        second: the levels to judge.
        levels: what was measured.
        margin: as for `judge`.
        confidence: as for `judge`.
    """
    noise = levels.noise
    if not noise.degrees and len(first) == len(second) == 1:
        return None
    if levels.earlier_spreads is not None and noise.source != _STATED:
        return _judge_trainings(first, second, levels, levels.earlier_spreads, margin, confidence)
    judgement = judge(first, second, noise, margin, confidence)
    if min(len(first), len(second)) >= _MIN_SEEDS or noise.source == _STATED:
        return judgement, noise
    usual_sd = _SAME_BATCHES_SD if levels.is_same_data else _OTHER_BATCHES_SD
    degrees = noise.degrees + _ASSUMED_DEGREES
    sd = math.sqrt((noise.degrees * noise.sd**2 + _ASSUMED_DEGREES * usual_sd**2) / degrees)
    source = noise.source if noise.degrees else "assumed: fewer than three seeds"
    usual_noise = noise._replace(sd=sd, degrees=degrees, source=source)
    careful = judge(first, second, usual_noise, margin, confidence)
    is_wider = careful.high - careful.low > judgement.high - judgement.low
    wider, wider_noise = (careful, usual_noise) if is_wider else (judgement, noise)
    if judgement.direction != careful.direction:
        wider = wider._replace(direction="unknown")
    num_needed = None if judgement.runs_needed is None else max(_MIN_SEEDS, judgement.runs_needed)
    if judgement.direction != "unknown":
        num_needed = _MIN_SEEDS
    return wider._replace(runs_needed=num_needed), wider_noise


def _judge_trainings(
    first: Sequence[float],
    second: Sequence[float],
    levels: LossLevels,
    earlier_spreads: tuple[EarlierSpread | None, EarlierSpread | None],
    margin: float,
    confidence: float,
) -> tuple[Judgement, Noise]:
    """Judge two different trainings: Welch's test, with the earlier seeds of each group in its spread.

    With fewer than three seeds of a group, its spread is not known; it is assumed to be what is usual, with few degrees
    of freedom, so that only large differences count.
    """
    noise = levels.noise
    a, b = (
        measure_side(own_levels, earlier, noise.resolution)
        for own_levels, earlier in zip((first, second), earlier_spreads, strict=True)
    )
    if min(a.degrees, b.degrees) >= _MIN_SEEDS - 1:
        return judge_sides(a, b, margin, confidence), noise
    usual_sd = _SAME_BATCHES_SD if levels.is_same_data else _OTHER_TRAINING_SD
    careful = judge_sides(_assume_spread(a, usual_sd), _assume_spread(b, usual_sd), margin, confidence)
    if careful.direction in {"equal", "unknown"}:
        careful = careful._replace(direction="unknown", runs_needed=max(_MIN_SEEDS, careful.runs_needed or 0))
    return careful, Noise(careful.sd, "assumed: fewer than three seeds", _ASSUMED_DEGREES)


def _assume_spread(side: Side, usual_sd: float) -> Side:
    if side.degrees >= _MIN_SEEDS - 1:
        return side
    return side._replace(sd=max(side.sd, usual_sd), degrees=_ASSUMED_DEGREES)
