"""Judge whether two groups of runs differ.

Each run counts as one number, its *level*: a logarithm, so that differences are ratios. The steps of a run tell how
restless this run was, but not how much the next run with the same code differs from it; tests on single steps call
identical runs different most of the time. With one run in a group, nothing can be learned about the spread between
runs, so an assumed spread takes part with a few degrees of freedom: it decides alone between two single runs, and
counts for little between groups of five.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from tachograph.comparison._student import student_quantile

__all__ = ["EQUAL_CONFIDENCE", "POWER_Z", "Direction", "Judgement", "Noise", "conclude", "judge", "quantile_for"]

Direction = Literal["higher", "lower", "equal", "unknown"]
"""How the second group compares to the first one; *unknown* is not *equal*."""

EQUAL_CONFIDENCE = 0.95
POWER_Z = 0.84
"""A standard normal value is below this with a probability of 80 %."""
_MAX_RUNS = 1_000


class Noise(NamedTuple):
    """The spread between runs that is assumed before looking at the runs compared."""

    sd: float
    """The standard deviation of levels."""
    source: str
    """Where the number comes from, for people."""
    degrees: float = 4.0
    """How many degrees of freedom it counts for."""


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
    """Whether the interval excludes 0; a certain difference below the margin is *equal*."""
    sd: float
    """The spread between runs, assumed and observed."""
    runs_needed: int | None
    """How many runs per group would probably settle an unknown difference of this size; None if over 1,000."""


def judge(
    first: Sequence[float], second: Sequence[float], noise: Noise, margin: float, confidence: float = 0.99
) -> Judgement:
    """Judge the difference between the levels of two groups.

    Args:
        first: the levels of the runs to compare with.
        second: the levels of the runs to judge.
        noise: the assumed spread between runs.
        margin: the ratio minus one that matters; smaller differences count as equal.
        confidence: of a difference. Equality always needs 95 %.
    """
    difference = _mean(second) - _mean(first)
    degrees = noise.degrees + len(first) + len(second) - 2
    squares = noise.degrees * noise.sd**2 + _squares(first) + _squares(second)
    sd = math.sqrt(squares / degrees)
    error = sd * math.sqrt(1 / len(first) + 1 / len(second))

    def count_needed(size: float, limit: float) -> int | None:
        return _runs_needed(size, sd, noise.degrees, limit, confidence)

    return conclude(difference, error, degrees, sd, margin, confidence, count_needed)


def conclude(
    difference: float,
    error: float,
    degrees: float,
    sd: float,
    margin: float,
    confidence: float,
    count_needed: Callable[[float, float], int | None],
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
    """
    limit = math.log1p(margin)
    half = quantile_for(confidence, degrees) * error
    half_equal = quantile_for(EQUAL_CONFIDENCE, degrees) * error
    is_certain = abs(difference) > half
    direction: Direction = "unknown"
    if is_certain and abs(difference) >= limit:
        direction = "higher" if difference > 0 else "lower"
    elif abs(difference) + half_equal <= limit or (is_certain and abs(difference) < limit):
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
    for count in range(1, _MAX_RUNS + 1):
        reach = (quantile_for(min_confidence, degrees + 2 * count - 2) + POWER_Z) * sd * math.sqrt(2 / count)
        if reach <= room:
            return count
    return None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)
