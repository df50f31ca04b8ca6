"""Find where two groups of runs part: from which block of steps on every block differs in the same direction."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tachograph.comparison._evidence import Floats
from tachograph.comparison._judge import Noise, quantile_for

__all__ = ["Onset", "find_onset", "mad"]

_MIN_BLOCKS = 3
_CONFIDENCE = 0.99


class Onset(NamedTuple):
    """The last stretch of a run, in which it differs throughout."""

    step: float
    """The step at which the first block of the stretch starts."""
    block: int
    difference: float
    """The median over the blocks of the stretch."""
    is_growing: bool
    """Whether the second half of the stretch differs by half as much again as the first."""


def mad(values: Floats) -> float:
    """Return the median absolute deviation, scaled to the standard deviation of a normal distribution."""
    finite_values = values[np.isfinite(values)]
    return 1.4826 * float(np.median(np.abs(finite_values - np.median(finite_values)))) if len(finite_values) else 0.0


def find_onset(first: Floats, second: Floats, edges: Floats, noise: Noise, margin: float) -> Onset | None:
    """Return from where on two groups differ, or None if they do not differ throughout up to the end.

    Args:
        first: the level of each run in each block, a row for each run; NaN where it is unknown.
        second: the same of the other group.
        edges: the steps between blocks, one more than there are blocks.
        noise: the spread between runs within a block.
        margin: as for `judge`.
    """
    with np.errstate(invalid="ignore"):
        difference = second.mean(axis=0) - first.mean(axis=0)
    spread = ((first - first.mean(axis=0)) ** 2).sum(axis=0) + ((second - second.mean(axis=0)) ** 2).sum(axis=0)
    degrees = noise.degrees + len(first) + len(second) - 2
    sd = np.sqrt((noise.degrees * noise.sd**2 + spread) / degrees)
    half = quantile_for(_CONFIDENCE, degrees) * sd * math.sqrt(1 / len(first) + 1 / len(second))
    is_apart = np.abs(difference) > np.maximum(half, math.log1p(margin))
    signs = np.sign(difference)
    start = len(difference)
    while start > 0 and is_apart[start - 1] and signs[start - 1] == signs[-1]:
        start -= 1
    stretch = difference[start:]
    if len(stretch) < _MIN_BLOCKS:
        return None
    typical = float(np.median(stretch))
    while start > 0 and signs[start - 1] == signs[-1] and abs(difference[start - 1]) > abs(typical) / 4:
        start -= 1
    middle = len(stretch) // 2
    early, late = abs(float(np.median(stretch[:middle]))), abs(float(np.median(stretch[middle:])))
    return Onset(float(edges[start]), start, typical, late > 1.5 * early)
