"""Verdicts about loss and gradients of two trainings at equal weights.

At equal weights there is no luck: the numbers are equal, equal up to the rounding of their type, or different. So the
verdict compares the largest difference with a tolerance, and the interval is the range over the measured batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tachograph.comparison._report import ComparisonReport, MetricVerdict

__all__ = ["EqualWeightsLevel", "add_equal_weights", "judge_equal_weights"]

_TOLERANCES = {
    "float32": (1e-5, 1e-4),
    "tf32": (1e-3, 1e-2),
    "float16": (1e-3, 1e-2),
    "bfloat16": (5e-3, 5e-2),
}
"""The relative difference of a loss, and of a gradient, that rounding explains."""


class EqualWeightsLevel(NamedTuple):
    """Loss or gradients of some batches in both trainings, at equal weights."""

    name: str
    title: str
    levels: tuple[float, float]
    """The loss, or the norm of the gradient, of the first batch."""
    differences: Sequence[float | None]
    """The relative difference in each batch; None if there is nothing to compare."""
    is_gradient: bool = False
    notes: Sequence[str] = ()


def judge_equal_weights(level: EqualWeightsLevel, precision: str) -> MetricVerdict:
    """Return the verdict about a loss or a gradient.

    Args:
        level: the measurements.
        precision: `float32`, `tf32`, `float16` or `bfloat16`.
    """
    metric = MetricVerdict(name=level.name, title=level.title, unit="max_difference", notes=list(level.notes))
    metric.a, metric.b = level.levels
    differences = [each for each in level.differences if each is not None]
    metric.runs_a = metric.runs_b = len(differences)
    if not differences:
        metric.verdict, metric.reason = "unknown", "nothing was measured in both arms"
        return metric
    metric.effect, metric.low, metric.high = max(differences), min(differences), max(differences)
    tolerance = _TOLERANCES.get(precision, _TOLERANCES["float32"])[level.is_gradient]
    if metric.effect == 0:
        metric.verdict = "identical"
    elif metric.effect <= tolerance and math.isfinite(metric.effect):
        metric.verdict = "rounding"
    else:
        metric.verdict = "different"
    return metric


def add_equal_weights(
    report: ComparisonReport, metrics: Sequence[MetricVerdict], notes: Sequence[str]
) -> ComparisonReport:
    """Return a report with verdicts about loss and gradients at equal weights, also in its headline."""
    different = [metric for metric in metrics if metric.verdict == "different"]
    unknown = [metric for metric in metrics if metric.verdict == "unknown"]
    if different:
        parts = dict.fromkeys("gradients" if "gradient" in metric.name else "loss" for metric in different)
        text = f"at equal weights, {' and '.join(parts)} differ{'s' * (list(parts) == ['loss'])}"
    elif unknown:
        text = "loss and gradients at equal weights are not known"
    elif all(metric.verdict == "identical" for metric in metrics):
        text = "loss and gradients at equal weights are identical"
    else:
        text = "loss and gradients at equal weights are equal up to rounding"
    return msgspec.structs.replace(
        report,
        metrics=[*report.metrics, *metrics],
        headline=f"{report.headline}; {text}",
        warnings=[*report.warnings, *notes],
    )
