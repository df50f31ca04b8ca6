"""Quantiles of Student's t distribution.

These are the only special functions that comparisons need, so they are written out instead of depending on scipy,
which is larger than everything else together.
"""

from __future__ import annotations

import functools
import math

__all__ = ["student_quantile"]

_MAX_TERMS = 10_000
_TINY = 1e-300


@functools.lru_cache(maxsize=4096)
def student_quantile(probability: float, degrees: float) -> float:
    """Return the t below which a share of the distribution lies.

    Args:
        probability: the share, above 0 and below 1.
        degrees: the degrees of freedom, above 0.
    """
    if probability < 0.5:
        return -student_quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while _below(high, degrees) < probability:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if _below(middle, degrees) < probability else (low, middle)
    return 0.5 * (low + high)


def _below(t: float, degrees: float) -> float:
    """Return the share of the distribution below a t that is not negative."""
    return 1.0 - 0.5 * _incomplete_beta(degrees / (degrees + t * t), 0.5 * degrees, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges fast on the other side only
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return the value of 1 + d1/(1 + d2/(1 + …)), by Lentz's method."""
    value = ratio = 1.0
    inverse = 0.0
    for term in range(1, _MAX_TERMS):
        half = term // 2
        if term % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1.0))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1.0) * (a + 2 * half))
        inverse = 1.0 / _not_zero(1.0 + factor * inverse)
        ratio = _not_zero(1.0 + factor / ratio)
        value *= ratio * inverse
        if abs(ratio * inverse - 1.0) < 1e-15:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
