"""Aggregates of a metric over a whole run: one row of numbers for a table of runs.

Points that a later attempt repeated are left out, as `overlap="latest"` does for series. NaN and infinite values are
counted and left out, except in `first` and `last`, which are the recorded values: a run that ended with NaN has no good
last value. `tail` is the mean over the last tenth of the range of steps, which is steadier than the last value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from tachograph.reader import Attempt
from tachograph.store._chart_lines import ColumnSource
from tachograph.store._columns import MARK_KINDS, Column, Floats, Integers

__all__ = [
    "MetricAggregates",
    "aggregate_series",
    "attempt_points",
    "series_points",
    "sort_points",
    "value_at",
    "with_window_extremes",
]

_TAIL_SHARE = 0.1
_MARK_VALUES = np.array([float(kind) for kind in MARK_KINDS])


class MetricAggregates(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The aggregates of a metric; None where no finite value was recorded."""

    num_points: int
    nonfinite: int
    """The number of NaN and infinite values."""
    first: float
    last: float
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    median: float | None = None
    tail: float | None = None
    """The mean over the last tenth of the steps."""
    at_min: int | None = None
    """The first step with the lowest value."""
    at_max: int | None = None


def series_points(
    sources: Sequence[ColumnSource],
    streams: Sequence[str],
    name: str,
    attempts: Sequence[Attempt],
    column: Column = "step",
) -> tuple[Integers | Floats, Floats] | None:
    """Return step and value of each point of a metric, or None if all were repeated by a later attempt.

    Args:
        sources: the recorded columns.
        streams: the streams that have the metric.
        name: the metric.
        attempts: the attempts of the run.
        column: the positions to return in place of steps.
    """
    parts = [
        part for stream in streams for source in sources if (part := _points(source, stream, name, column)) is not None
    ]
    if not parts:
        return None
    attempt, step, time, position, value = (np.concatenate(each) for each in zip(*parts, strict=True))
    keep = np.ones(len(value), dtype=bool)
    for later in attempts:
        if later.index > 0 and later.first_step is not None:
            keep &= ~((attempt < later.index) & (step >= later.first_step))
    if len(streams) > 1:  # for example validations inside of and after the loop
        order = np.argsort(time, kind="stable")
        position, value, keep = position[order], value[order], keep[order]
    if not keep.all():
        position, value = position[keep], value[keep]
    return (position, value) if len(value) else None


def attempt_points(
    sources: Sequence[ColumnSource], stream: str, name: str, attempt: int
) -> tuple[Integers, Floats] | None:
    """Return step and value of each point of a series in one attempt, in the order of their records; None if none."""
    parts = [part for source in sources if (part := _points(source, stream, name, "step")) is not None]
    if not parts:
        return None
    steps = np.concatenate([step[number == attempt] for number, step, *_ in parts])
    values = np.concatenate([value[number == attempt] for number, *_, value in parts])
    return (steps.astype(np.int64), values) if len(values) else None


def sort_points(
    positions: Integers | Floats, values: Floats, low: float | None, high: float | None
) -> tuple[Floats, Floats]:
    """Return the finite points in a range, sorted by position; of several at one position, only the last."""
    x: Floats = np.asarray(positions, dtype=np.float64)
    keep = np.isfinite(values) & np.isfinite(x)
    if low is not None:
        keep &= x >= low
    if high is not None:
        keep &= x <= high
    if not keep.all():
        x, values = x[keep], values[keep]
    gaps = np.diff(x)
    if (gaps < 0).any():
        order = np.argsort(x, kind="stable")
        x, values = x[order], values[order]
        gaps = np.diff(x)
    if (gaps == 0).any():
        is_last = np.append(gaps > 0, True)
        x, values = x[is_last], values[is_last]
    return x, values


def value_at(points: tuple[Integers | Floats, Floats], step: int) -> float | None:
    """Return the value at the nearest recorded step that is not after a step, also if it is NaN; None before all."""
    steps, values = points
    before = np.flatnonzero(steps <= step)
    if not len(before):
        return None
    nearest = before[steps[before] == steps[before].max()]
    return float(values[nearest[-1]])


@np.errstate(over="ignore", invalid="ignore")  # a journal may have any number
def aggregate_series(
    sources: Sequence[ColumnSource], streams: Sequence[str], name: str, attempts: Sequence[Attempt]
) -> MetricAggregates | None:
    """Return the aggregates of a metric, or None if all of its points were repeated by a later attempt."""
    points = series_points(sources, streams, name, attempts)
    if points is None:
        return None
    step, value = points
    is_finite = np.isfinite(value)
    num_points, first, last = len(value), float(value[0]), float(value[-1])
    if not is_finite.any():
        return MetricAggregates(num_points, num_points, first, last)
    finite, steps = value[is_finite], step[is_finite]
    low, high = int(finite.argmin()), int(finite.argmax())
    limit = steps.max() - _TAIL_SHARE * (steps.max() - steps.min())
    return MetricAggregates(
        num_points,
        num_points - len(finite),
        first,
        last,
        min=float(finite[low]),
        max=float(finite[high]),
        mean=_mean(finite),
        median=float(np.median(finite)),
        tail=_mean(finite[steps >= limit]),
        at_min=int(steps[low]),
        at_max=int(steps[high]),
    )


def with_window_extremes(aggregates: dict[str, MetricAggregates]) -> dict[str, MetricAggregates]:
    """Return aggregates whose extremes cover all steps of a window, and not only the latest one, which is recorded.

    With `log_every` above 1, or after thinning, ``loss/min`` and ``loss/max`` have the extremes of ``loss``.
    """
    if "window_steps" not in aggregates:
        return aggregates
    result = dict(aggregates)
    for name, metric in aggregates.items():
        low, high, bad = (aggregates.get(f"{name}/{suffix}") for suffix in ("min", "max", "nonfinite"))
        if low is not None and low.min is not None and (metric.min is None or low.min < metric.min):
            metric = msgspec.structs.replace(metric, min=low.min, at_min=low.at_min)  # noqa: PLW2901
        if high is not None and high.max is not None and (metric.max is None or high.max > metric.max):
            metric = msgspec.structs.replace(metric, max=high.max, at_max=high.at_max)  # noqa: PLW2901
        if bad is not None and bad.mean is not None:
            total = round(bad.mean * (bad.num_points - bad.nonfinite))
            metric = msgspec.structs.replace(metric, nonfinite=max(metric.nonfinite, total))  # noqa: PLW2901
        result[name] = metric
    return result


def _mean(values: Floats) -> float | None:
    with np.errstate(over="ignore"):
        mean = float(values.mean())
        # The sum of large numbers may overflow.
        mean = mean if math.isfinite(mean) else float((values / len(values)).sum())
    return mean if math.isfinite(mean) else None


def _points(
    source: ColumnSource, stream: str, name: str, column: Column
) -> tuple[Integers, Integers, Floats, Integers | Floats, Floats] | None:
    """Return attempt, step, time, position and value of each point in a source, in the order of their records."""
    part = source.series_part(stream, name)
    if part is None:
        return None
    rows = source.rows(stream)
    row, value = part.rows_at(np.arange(len(part.values))), part.values
    if len(part.mark_rows):
        row = np.concatenate([row, part.mark_rows]).astype(np.int64)
        value = np.concatenate([value, _MARK_VALUES[part.mark_kinds]])
        order = np.argsort(row, kind="stable")
        row, value = row[order], value[order]
    firsts = np.array([attempt_range.first for attempt_range in rows.ranges])
    numbers = np.array([attempt_range.attempt for attempt_range in rows.ranges])
    attempt = numbers[np.searchsorted(firsts, row, side="right") - 1]
    return attempt, rows.step[row], rows.time[row], rows.column(column)[row], value
