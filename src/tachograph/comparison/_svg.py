"""Small charts for reports: lines of two groups of runs as SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np

from tachograph.comparison._evidence import Floats, RunEvidence, SeriesPoints

__all__ = ["overlay_svg", "step_times"]

_WIDTH, _HEIGHT = 640.0, 240.0
_BOTTOM_PX, _TOP_PX, _RIGHT_PX = 24.0, 10.0, 16.0
_CHAR_PX = 6.0
"""The width of a digit in a label."""
_NUM_X_TICKS, _NUM_Y_TICKS = 8, 6
_MAX_POINTS = 400
_COLORS = ("#3b6fb6", "#d9632a")


def step_times(run: RunEvidence) -> SeriesPoints:
    """Return the time of each step in milliseconds."""
    steps = run.clock.steps
    if len(steps) < 2:
        return SeriesPoints(np.empty(0), np.empty(0))
    return SeriesPoints(steps[1:], 1000 * np.diff(run.clock.passed_s) / np.diff(steps))


def overlay_svg(title: str, groups: Sequence[Sequence[SeriesPoints]], names: Sequence[str], *, x_title: str) -> str:
    """Draw the curves of groups: each run as a thin line through the means of equal parts of its steps."""
    lines = [[(_bin_means(curve.finite)) for curve in curves if len(curve.finite.steps) > 1] for curves in groups]
    every = [line for side in lines for line in side]
    if not every:
        return ""
    x_low, x_high = min(line.steps[0] for line in every), max(line.steps[-1] for line in every)
    values = np.concatenate([line.values for line in every])
    y_low, y_high = np.quantile(values, (0.005, 0.995))
    gap = 0.05 * (y_high - y_low) or abs(y_high) * 0.05 or 1.0
    y_low, y_high = float(y_low - gap), float(y_high + gap)

    y_ticks = _round_ticks(y_low, y_high, _NUM_Y_TICKS)
    left_px = 12.0 + _CHAR_PX * max(len(text) for _, text in y_ticks)

    def x_of(steps: Floats) -> Floats:
        return np.asarray(left_px + (steps - x_low) / (x_high - x_low or 1.0) * (_WIDTH - left_px - _RIGHT_PX))

    def y_of(values: Floats) -> Floats:
        share = np.clip((values - y_low) / (y_high - y_low), 0.0, 1.0)
        return _HEIGHT - _BOTTOM_PX - share * (_HEIGHT - _BOTTOM_PX - _TOP_PX)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{html.escape(title, quote=True)}">',
        f'<rect x="{left_px}" y="{_TOP_PX}" width="{_WIDTH - left_px - _RIGHT_PX}" '
        f'height="{_HEIGHT - _BOTTOM_PX - _TOP_PX}" fill="none" stroke="currentColor" opacity="0.2"/>',
    ]
    for value, text in y_ticks:
        y = float(y_of(np.array([value]))[0])
        parts.append(_grid_line(left_px, y, _WIDTH - _RIGHT_PX, y))
        parts.append(f'<text x="{left_px - 6:g}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in _round_ticks(x_low, x_high, _NUM_X_TICKS):
        x = float(x_of(np.array([value]))[0])
        parts.append(_grid_line(x, _TOP_PX, x, _HEIGHT - _BOTTOM_PX))
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8:g}" text-anchor="middle">{text}</text>')
    for number, side in enumerate(lines):
        for line in side:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(x_of(line.steps), y_of(line.values), strict=True))
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{_COLORS[number % 2]}" stroke-width="1.2" '
                f'opacity="{0.9 if len(side) == 1 else 0.5}"/>'
            )
    parts.append("</svg>")
    legend = " ".join(
        f'<span style="color:{_COLORS[number % 2]}">■</span> {html.escape(name)}' for number, name in enumerate(names)
    )
    caption = f"{html.escape(title)}, by {html.escape(x_title)} — {legend}"
    return f"<figure><figcaption>{caption}</figcaption>{''.join(parts)}</figure>"


def _bin_means(curve: SeriesPoints) -> SeriesPoints:
    """Return the mean of each of at most 400 parts of a curve."""
    count = len(curve.steps)
    if count <= _MAX_POINTS:
        return curve
    starts = np.linspace(0, count, _MAX_POINTS + 1).astype(int)[:-1]
    sizes = np.diff(np.append(starts, count))
    return SeriesPoints(np.add.reduceat(curve.steps, starts) / sizes, np.add.reduceat(curve.values, starts) / sizes)


def _grid_line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" opacity="0.1"/>'


def _round_ticks(low: float, high: float, max_ticks: int) -> list[tuple[float, str]]:
    """Return round values of an axis with equal distances, and their labels; always at least one."""
    if not low < high:
        return [(low, f"{low:g}")]
    least_step = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(least_step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least_step * (1 - 1e-9))
    values = [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    highest = max(map(abs, values))
    if not 1e-3 <= highest < 1e9:
        return [(value, f"{value:.6g}") for value in values]
    unit, suffix = (1e6, "M") if highest >= 1e6 else (1e3, "k") if highest >= 1e4 else (1.0, "")
    num_digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    return [(value, f"{value / unit:.{num_digits}f}{suffix}" if value else "0") for value in values]
