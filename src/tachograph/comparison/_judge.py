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

from tachograph.comparison._spread import EarlierSpread, Spread, measure_spread
from tachograph.comparison._student import student_quantile

__all__ = [
    "EQUAL_CONFIDENCE",
    "POWER_Z",
    "Direction",
    "Judgement",
    "Noise",
    "conclude",
    "judge",
    "learned_noise",
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
        error, degrees = _welch(reference, second, noise.resolution)
    # One run of the smaller group may be as far off as single runs have been.
    offset = max(noise.max_deviation, reference.max_deviation) / min(reference.num_runs, len(second))

    def count_needed(size: float, limit: float) -> int | None:
        return _runs_needed(size, sd, noise.degrees, limit, confidence)

    return conclude(difference, error, degrees, sd, margin, confidence, count_needed, offset)


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


def _welch(reference: Spread, second: Sequence[float], resolution: float) -> tuple[float, float]:
    """Return the standard error of a difference and its degrees of freedom, if each group has a spread of its own."""
    sides = ((reference.squares, reference.num_runs), (_squares(second), len(second)))
    variances = [(max(squares / (count - 1), resolution**2) / count, count) for squares, count in sides]
    total = math.fsum(variance for variance, _ in variances)
    if not total:
        return 0.0, 1.0
    return math.sqrt(total), total**2 / math.fsum(variance**2 / (count - 1) for variance, count in variances)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)
