"""Lines of metrics that were recorded in windows of several steps, as `log_every` and thinning do.

A window has the latest value of a metric as `loss`, and the extremes of its steps as ``loss/min`` and ``loss/max``. The
line of `loss` goes through them at the position of the window: value, lowest, highest, value. So no spike is missing
in the chart, and a point next to the cursor is still a recorded value. Means and the number of points count only the
values: extremes say nothing about a mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tachograph.store._chart_lines import ColumnSource, Line, View, build_lines
from tachograph.store._columns import SeriesPart

__all__ = ["build_lines_with_extremes"]

_WINDOW_STEPS = "window_steps"


def build_lines_with_extremes(sources: Sequence[ColumnSource], stream: str, name: str, view: View) -> list[Line]:
    """Return the lines of a series in a view, with the extremes of its windows."""
    lines = build_lines(sources, stream, name, view)
    if not any(_has_windows(source, stream, name) for source in sources):
        return lines
    lines_by_attempt = {line.attempt: line for line in lines}
    lines_with_extremes = build_lines(sources, stream, name, view, _with_extremes)
    for line in lines_with_extremes:
        values = lines_by_attempt.get(line.attempt)
        if values is None:  # the latest value of each window was NaN or infinite
            continue
        line.num_points = values.num_points
        line.mean_x, line.mean_y, line.mean_count = values.mean_x, values.mean_y, values.mean_count
        if not values.mean_x:
            points = [(x, y) for x, y in zip(values.x, values.y, strict=True) if y is not None]
            line.mean_x, line.mean_y = [x for x, _ in points], [y for _, y in points]
            line.mean_count = [1] * len(points)
    return lines_with_extremes


def _has_windows(source: ColumnSource, stream: str, name: str) -> bool:
    keys = [(stream, _WINDOW_STEPS), (stream, f"{name}/min"), (stream, f"{name}/max")]
    return all(source.stats(*key) is not None for key in keys)


def _with_extremes(source: ColumnSource, stream: str, name: str) -> SeriesPart | None:
    """Return a series with the extremes of each window between its value and its value again."""
    part, windows = source.series_part(stream, name), source.series_part(stream, _WINDOW_STEPS)
    bounds = [source.series_part(stream, f"{name}/{side}") for side in ("min", "max")]
    if part is None or windows is None or None in bounds:
        return part
    window_rows = windows.rows_at(np.arange(len(windows.values)))
    row, value = part.rows_at(np.arange(len(part.values))), part.values
    rows, values = [row], [value]
    for bound in bounds:
        assert bound is not None  # noqa: S101 - see above
        bound_row = bound.rows_at(np.arange(len(bound.values)))
        is_in_window = np.isin(bound_row, window_rows)
        rows.append(bound_row[is_in_window])
        values.append(bound.values[is_in_window])
    has_extremes = np.isin(row, rows[1])
    rows.append(row[has_extremes])
    values.append(value[has_extremes])
    kinds = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    all_rows = np.concatenate(rows).astype(np.int64)
    order = np.lexsort((kinds, all_rows))
    return SeriesPart(all_rows[order], np.concatenate(values)[order], part.mark_rows, part.mark_kinds)
