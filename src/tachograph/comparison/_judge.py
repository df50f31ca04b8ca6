"""Judge whether two groups of runs differ.

Each run counts as one number, its *level*: a logarithm, so that differences are ratios. The steps of a run tell how
restless this run was, but not how much the next run with the same code differs from it; tests on single steps call
identical runs different most of the time. With one run in a group, nothing can be learned about the spread between
runs, so a spread that is assumed or known from earlier runs takes part with some degrees of freedom: an assumed one
decides alone between two single runs, and counts for little between groups of five. Without one, only the spread within
the groups counts, and the judgement is Welch's test, or Student's if a group has fewer than three runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from tachograph.comparison._spread import EarlierSpread, measure_spread
from tachograph.comparison._student import student_quantile

__all__ = [
    "EQUAL_CONFIDENCE",
    "POWER_Z",
    "Direction",
    "Judgement",
    "Noise",
    "Side",
    "conclude",
    "judge",
    "judge_sides",
    "learned_noise",
    "measure_side",
    "quantile_for",
]

Direction = Literal["higher", "lower", "equal", "unknown"]
"""How the second group compares to the first one; *unknown* is not *equal*."""

EQUAL_CONFIDENCE = 0.95
POWER_Z = 0.84
"""A standard normal value is below this with a probability of 80 %."""
_MAX_RUNS = 1_000
_MIN_WELCH = 3
"""The least number of runs in both groups with which each group has a spread of its own."""


class Noise(NamedTuple):
    """The spread between runs that is assumed or known before looking at the runs compared."""

    sd: float
    """The standard deviation of levels."""
    source: str
    """Where the number comes from, for people."""
    degrees: float = 4.0
    """How many degrees of freedom it counts for; with 0, only the spread of the runs compared counts."""
    max_deviation: float = 0.0
    """How far single runs are known to be off all others."""
    resolution: float = 0.0
    """The least standard deviation of levels that could be seen: values may have been rounded."""


class Judgement(NamedTuple):
    """The difference between the levels of two groups, with its interval and direction."""

    difference: float
    """The mean of the second group minus the mean of the first one."""
    low: float
    high: float
    """The interval of the difference."""
    confidence: float
    direction: Direction
    is_certain: bool
    """Whether the interval excludes 0; a certain difference can still be *equal*, if it is below the margin."""
    sd: float
    """The spread between runs, assumed and observed."""
    runs_needed: int | None
    """How many runs per group would probably settle an unknown difference of this size; None if over 1,000."""


def learned_noise(spread: EarlierSpread, num_runs: int) -> Noise:
    """Return the noise that earlier runs show."""
    source = f"{num_runs} earlier runs"
    if spread.max_deviation:
        source += f", single ones {100 * spread.max_deviation:.2g} % off"
    return Noise(spread.sd, source, spread.degrees, spread.max_deviation)


def judge(
    first: Sequence[float], second: Sequence[float], noise: Noise, margin: float, confidence: float = 0.99
) -> Judgement:
    """Judge the difference between the levels of two groups.

    Args:
        first: the levels of the runs to compare with.
        second: the levels of the runs to judge.
        noise: the spread between runs that is assumed or known. Without its degrees of freedom, three or more runs in
            total are needed.
        margin: the ratio minus one that matters; smaller differences count as equal.
        confidence: of a difference. Equality always needs 95 %.
    """
    reference = measure_spread(first)
    difference = _mean(second) - reference.mean
    degrees = noise.degrees + reference.num_runs + len(second) - 2
    squares = noise.degrees * noise.sd**2 + reference.squares + _squares(second)
    sd = max(math.sqrt(squares / degrees), noise.resolution)
    error = sd * math.sqrt(1 / reference.num_runs + 1 / len(second))
    if not noise.degrees and min(reference.num_runs, len(second)) >= _MIN_WELCH:
        groups = ((reference.squares, reference.num_runs), (_squares(second), len(second)))
        error, degrees = _welch(
            [(max(squares / (size - 1), noise.resolution**2), size, size - 1) for squares, size in groups]
        )
    # One run of the smaller group may be as far off as single runs have been.
    offset = max(noise.max_deviation, reference.max_deviation) / min(reference.num_runs, len(second))

    def count_needed(size: float, limit: float) -> int | None:
        return _runs_needed(size, sd, noise.degrees, limit, confidence)

    return conclude(difference, error, degrees, sd, margin, confidence, count_needed, offset)


class Side(NamedTuple):
    """The level of a group with a spread of its own."""

    mean: float
    sd: float
    degrees: float
    """The degrees of freedom of the spread; 0 if it is not known."""
    num_runs: int
    max_deviation: float
    """How far single runs are known to be off all others."""


def measure_side(levels: Sequence[float], earlier: EarlierSpread | None, resolution: float) -> Side:
    """Measure the level of a group, and its spread together with earlier runs of the same kind.

    Args:
        levels: the levels of the runs.
        earlier: the spread of the earlier runs, if it is known.
        resolution: as for `Noise`.
    """
    own = measure_spread(levels)
    degrees, squares = own.num_runs - 1.0, own.squares
    max_deviation = own.max_deviation
    if earlier is not None:
        degrees, squares = degrees + earlier.degrees, squares + earlier.degrees * earlier.sd**2
        max_deviation = max(max_deviation, earlier.max_deviation)
    sd = math.sqrt(squares / degrees) if degrees else 0.0
    return Side(own.mean, max(sd, resolution), degrees, own.num_runs, max_deviation)


def judge_sides(first: Side, second: Side, margin: float, confidence: float = 0.99) -> Judgement:
    """Judge the difference between two groups whose spreads are known and may differ: Welch's test.

    Args:
        first: the group to compare with.
        second: the group to judge.
        margin: as for `judge`.
        confidence: as for `judge`.
    """
    error, degrees = _welch([(side.sd**2, side.num_runs, side.degrees) for side in (first, second)])
    sd = math.sqrt((first.sd**2 + second.sd**2) / 2)
    offset = max(side.max_deviation / side.num_runs for side in (first, second))

    def count_needed(size: float, limit: float) -> int | None:
        return _runs_needed(size, sd, 0.0, limit, confidence)

    return conclude(second.mean - first.mean, error, degrees, sd, margin, confidence, count_needed, offset)


def conclude(
    difference: float,
    error: float,
    degrees: float,
    sd: float,
    margin: float,
    confidence: float,
    count_needed: Callable[[float, float], int | None],
    offset: float = 0.0,
) -> Judgement:
    """Decide whether a difference is real, excluded or neither.

    Args:
        difference: a difference of levels.
        error: its standard error.
        degrees: the degrees of freedom of the error.
        sd: the spread that the error comes from.
        margin: the ratio minus one that matters; smaller differences count as equal.
        confidence: of a difference. Equality always needs 95 %.
        count_needed: returns how many measurements would settle a difference, from its size and the limit.
        offset: widens the intervals on both sides.
    """
    limit = math.log1p(margin)
    half = quantile_for(confidence, degrees) * error + offset
    half_equal = quantile_for(EQUAL_CONFIDENCE, degrees) * error + offset
    is_certain = abs(difference) > half
    direction: Direction = "unknown"
    if is_certain and abs(difference) >= limit:
        direction = "higher" if difference > 0 else "lower"
    elif abs(difference) + half_equal <= limit:
        direction = "equal"
    num_needed = count_needed(abs(difference), limit) if direction == "unknown" else None
    return Judgement(
        difference, difference - half, difference + half, confidence, direction, is_certain, sd, num_needed
    )


def quantile_for(confidence: float, degrees: float) -> float:
    """Return the quantile of an interval with two sides."""
    return student_quantile(0.5 + 0.5 * confidence, degrees)


def _runs_needed(size: float, sd: float, degrees: float, limit: float, confidence: float) -> int | None:
    """Return how many runs per group find a difference of this size, or exclude one above the margin, in 80 %."""
    is_large = size >= limit
    room, min_confidence = (size, confidence) if is_large else (limit - size, EQUAL_CONFIDENCE)
    for count in range(1 if degrees else 2, _MAX_RUNS + 1):
        reach = (quantile_for(min_confidence, degrees + 2 * count - 2) + POWER_Z) * sd * math.sqrt(2 / count)
        if reach <= room:
            return count
    return None


def _welch(sides: Sequence[tuple[float, int, float]]) -> tuple[float, float]:
    """Return the standard error of a difference and its degrees of freedom, if each group has a spread of its own.

    Args:
        sides: of each group, the variance between runs, the number of runs, and the degrees of freedom of the variance.
    """
    errors = [(variance / num_runs, degrees) for variance, num_runs, degrees in sides]
    total = math.fsum(error for error, _ in errors)
    if not total:
        return 0.0, 1.0
    return math.sqrt(total), total**2 / math.fsum(error**2 / degrees for error, degrees in errors)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)
