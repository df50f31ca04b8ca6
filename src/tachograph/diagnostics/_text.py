"""Formats numbers for the titles and messages of alerts."""

from __future__ import annotations

import math

__all__ = ["cost", "duration", "factor", "figure", "percent"]


def figure(value: float | None) -> str:
    """Return a number with four significant digits, or five to six in front of the decimal point."""
    if value is None:
        return "unknown"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.4g}"


def factor(value: float) -> str:
    """Return a ratio: `4.3 times`."""
    return f"{value:.2g} times" if value < 10 else f"{value:,.0f} times" if value < 1e6 else f"{value:.1e} times"


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """Return a duration in one unit."""
    for size, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def cost(seconds: float, step_s: float) -> str:
    """Return the seconds that a step loses, and the hours per day this amounts to."""
    return f"{duration(seconds)} per step, {24 * seconds / step_s:.2g} h per day"
