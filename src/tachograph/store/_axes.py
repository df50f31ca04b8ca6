"""Computed axes: positions of rows that no record states.

A computed axis is a function of the step within each attempt, given by *knots*: steps with their positions. Positions
between two knots are interpolated, so records without steps of their own, such as validations, lie where their step
does. How the knots are found is described in `_epochs`, `_amounts` and `_training_time`. Where the function is the same
for all attempts, steps that a resumed run repeats lie where they were before.

A function of the step exists only if steps never decrease within an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tachograph.store._aggregates import attempt_points
from tachograph.store._chart_lines import ColumnSource
from tachograph.store._columns import CHUNK, Column, Floats, Integers, SeriesPart, StreamRows
from tachograph.store._tail import SeriesStats

__all__ = [
    "AttemptSteps",
    "Knots",
    "SourceOnMetric",
    "SourceWithPositions",
    "RecordedValues",
    "attempt_steps",
    "build_knots",
    "has_increasing_steps",
    "rows_of",
    "series_of",
    "values_by_step",
]


class Knots(NamedTuple):
    """Steps and their positions on an axis, both never decreasing."""

    steps: Floats
    positions: Floats
    is_dense: bool = False
    """Whether the steps are consecutive integers; other knots may then share the array."""

    @property
    def num_own_bytes(self) -> int:
        """The memory of the arrays that are not shared."""
        return self.positions.nbytes + (0 if self.is_dense else self.steps.nbytes)

    def positions_of(self, steps: Integers) -> Floats:
        """Return the positions of recorded steps, interpolated between knots."""
        if len(self.steps) == 2:  # as for amounts that the config states: much faster than searching for each step
            (first, last), (low, high) = self.steps.tolist(), self.positions.tolist()
            line = (np.clip(steps, first, last) - first) * ((high - low) / (last - first)) + low
            return np.asarray(np.clip(line, low, high), dtype=np.float64)
        if not self.is_dense:
            return np.interp(steps, self.steps, self.positions)
        indexes = steps.astype(np.intp) - int(self.steps[0])
        positions: Floats = self.positions[np.clip(indexes, 0, len(self.positions) - 1, out=indexes)]
        return positions

    def at(self, step: float) -> float:
        """Return the position of a step, extrapolated from the last two knots if it is beyond them."""
        steps, positions = self.steps, self.positions
        if step > steps[-1] and len(steps) > 1 and steps[-1] > steps[-2]:
            slope = (positions[-1] - positions[-2]) / (steps[-1] - steps[-2])
            return float(positions[-1] + slope * (step - steps[-1]))
        return float(np.interp(step, steps, positions))


class _AttemptRows(NamedTuple):
    """The rows of one attempt in a stream of one source."""

    attempt: int
    first: int
    end: int


class RecordedValues(NamedTuple):
    """Finite values of one attempt, with their steps and times."""

    steps: Floats
    times: Floats
    values: Floats


class AttemptSteps(NamedTuple):
    """The steps that the records of one attempt cover."""

    before: float
    """The step before the first one."""
    last: float

    def num_steps(self, steps: Floats) -> Floats:
        """Return how many steps each record covers, counted from the record before it or from the start."""
        return np.diff(steps, prepend=min(self.before, float(steps[0])))


def rows_of(sources: Sequence[ColumnSource], stream: str) -> list[StreamRows]:
    """Return the rows of a stream in each source that has some."""
    return [source.rows(stream) for source in sources if source.num_rows(stream)]


def _attempt_rows(rows: StreamRows) -> list[_AttemptRows]:
    """Return the rows of each attempt, in order."""
    firsts = [each.first for each in rows.ranges]
    ends = [*firsts[1:], len(rows.step)]
    return [_AttemptRows(each.attempt, each.first, end) for each, end in zip(rows.ranges, ends, strict=True)]


def series_of(sources: Sequence[ColumnSource], stream: str, name: str) -> dict[int, RecordedValues]:
    """Return the finite values of a series in each attempt, in the order in which they were recorded."""
    parts_by_attempt: dict[int, list[RecordedValues]] = {}
    for source in sources:
        part = source.series_part(stream, name) if source.num_rows(stream) else None
        if part is None:
            continue
        rows = source.rows(stream)
        for attempt, first, end in _attempt_rows(rows):
            begin, stop = part.position(first), part.position(end)
            if stop > begin:
                row = part.rows_at(np.arange(begin, stop))
                values = RecordedValues(rows.step[row].astype(np.float64), rows.time[row], part.values[begin:stop])
                parts_by_attempt.setdefault(attempt, []).append(values)
    return {
        attempt: parts[0] if len(parts) == 1 else RecordedValues(*map(np.concatenate, zip(*parts, strict=True)))
        for attempt, parts in sorted(parts_by_attempt.items())
    }


def has_increasing_steps(sources: Sequence[ColumnSource], stream: str = "step") -> bool:
    """Return whether the steps of a stream never decrease within an attempt."""
    last: dict[int, int] = {}
    for rows in rows_of(sources, stream):
        if not all(each.sorted_by[0] for each in rows.ranges):
            return False
        for attempt, first, end in _attempt_rows(rows):
            if end > first:
                if int(rows.step[first]) < last.get(attempt, int(rows.step[first])):
                    return False
                last[attempt] = int(rows.step[end - 1])
    return True


def attempt_steps(sources: Sequence[ColumnSource]) -> dict[int, AttemptSteps]:
    """Return the steps of each attempt, in order. A record of several steps also covers the steps before it."""
    step_ranges: dict[int, AttemptSteps] = {}
    for stream, count in (("step", "window_steps"), ("window", "window/iterations")):
        counts = series_of(sources, stream, count)
        for rows in rows_of(sources, stream):
            for attempt, first, end in _attempt_rows(rows):
                step, num_steps = float(rows.step[first]), 1.0
                if attempt in counts and counts[attempt].steps[0] == step:
                    num_steps = max(0.0, float(counts[attempt].values[0]))
                before, last = step - num_steps, float(rows.step[end - 1])
                step_range = step_ranges.get(attempt, AttemptSteps(before, last))
                step_ranges[attempt] = AttemptSteps(min(before, step_range.before), max(last, step_range.last))
    return dict(sorted(step_ranges.items()))


def build_knots(step_range: AttemptSteps, start: float, steps: Floats, positions: Floats) -> Knots:
    """Return the knots of an attempt.

    Args:
        step_range: the steps of the attempt.
        start: the position before its first step.
        steps: the steps of the records, never decreasing.
        positions: their positions, never decreasing.
    """
    steps = np.concatenate([[min(step_range.before, steps[0])], steps])
    positions = np.concatenate([[start], positions])
    is_last = np.append(np.diff(steps) > 0, True)  # of several records of a step, the last one counts
    knots = Knots(steps[is_last], positions[is_last])
    if step_range.last <= steps[-1]:
        return knots
    return Knots(np.append(knots.steps, step_range.last), np.append(knots.positions, knots.at(step_range.last)))


class SourceWithPositions:
    """A source whose rows have positions on a computed axis, in one of their columns."""

    def __init__(self, source: ColumnSource, knots: dict[int, Knots], column: Column) -> None:
        """Create the source.

        Args:
            source: the recorded columns.
            knots: the knots by attempt; an attempt without knots uses the knots of the one before, or of the first.
            column: the column that gets the positions.
        """
        self._source, self._knots, self._column = source, knots, column
        self._attempts_with_knots = sorted(knots)
        self._rows: dict[str, StreamRows] = {}

    def _knots_of(self, attempt: int) -> Knots:
        attempts = self._attempts_with_knots
        return self._knots[max((each for each in attempts if each <= attempt), default=attempts[0])]

    @property
    def streams(self) -> list[str]:
        return self._source.streams

    @property
    def series_keys(self) -> list[tuple[str, str]]:
        return self._source.series_keys

    @property
    def num_changes(self) -> int:
        return self._source.num_changes

    def stats(self, stream: str, name: str) -> SeriesStats | None:
        return self._source.stats(stream, name)

    def num_rows(self, stream: str) -> int:
        return self._source.num_rows(stream)

    def is_changed(self) -> bool:
        return self._source.is_changed()

    def rows(self, stream: str) -> StreamRows:
        rows = self._rows.get(stream)
        if rows is None:
            rows = self._source.rows(stream)
            positions = np.empty(len(rows.step))
            for attempt, first, end in _attempt_rows(rows):
                knots = self._knots_of(attempt)
                positions[first:end] = knots.positions_of(rows.step[first:end])
            # Positions are sorted where steps are.
            ranges = [each._replace(sorted_by=(*each.sorted_by[:2], *[each.sorted_by[0]] * 2)) for each in rows.ranges]
            changes: dict[str, Any] = {self._column: positions}
            rows = self._rows[stream] = rows._replace(ranges=ranges, **changes)
        return rows

    def series_part(self, stream: str, name: str) -> SeriesPart | None:
        part = self._source.series_part(stream, name)
        if part is None or part.summary is None:
            return part
        first = part.rows_at(np.arange(0, len(part.summary.low) * CHUNK, CHUNK))
        changes: dict[str, Any] = {self._column: self.rows(stream).column(self._column)[first]}
        return part._replace(summary=part.summary._replace(**changes))


def values_by_step(sources: Sequence[ColumnSource], streams: Sequence[str], name: str) -> dict[int, StepValues]:
    """Return the values of a metric in each attempt, sorted by step; NaN and infinities are included."""
    attempts = {each.attempt for stream in streams for rows in rows_of(sources, stream) for each in rows.ranges}
    values: dict[int, StepValues] = {}
    for attempt in sorted(attempts):
        lines = [line for stream in streams if (line := attempt_points(sources, stream, name, attempt)) is not None]
        if lines:
            steps, numbers = (np.concatenate(each) for each in zip(*lines, strict=True))
            order = np.argsort(steps, kind="stable")
            values[attempt] = StepValues(steps[order], numbers[order])
    return values


class StepValues(NamedTuple):
    """Values of a metric in one attempt, sorted by step."""

    steps: Integers
    values: Floats

    def at(self, steps: Integers) -> Floats:
        """Return the last value at or before each step; NaN before the first."""
        indexes = np.searchsorted(self.steps, steps, side="right") - 1
        return np.where(indexes < 0, np.nan, self.values[np.maximum(indexes, 0)])


class SourceOnMetric(SourceWithPositions):
    """A source whose rows lie where a metric is at their steps; see `MetricAxis`."""

    def __init__(self, source: ColumnSource, name: str, step_values: dict[int, StepValues]) -> None:
        """Create the source.

        Args:
            source: the recorded columns.
            name: the metric.
            step_values: its values by attempt, for rows without a value of their own.
        """
        super().__init__(source, {}, "position")
        self._name, self._step_values = name, step_values

    def rows(self, stream: str) -> StreamRows:
        rows = self._rows.get(stream)
        if rows is None:
            rows = self._source.rows(stream)
            positions = np.full(len(rows.step), np.nan)
            has_value = np.zeros(len(rows.step), dtype=bool)
            part = self._source.series_part(stream, self._name)
            if part is not None:
                row = part.rows_at(np.arange(len(part.values)))
                positions[row] = part.values
                has_value[row] = has_value[part.mark_rows] = True
            for attempt, first, end in _attempt_rows(rows):
                missing = first + np.flatnonzero(~has_value[first:end])
                if len(missing) and attempt in self._step_values:
                    positions[missing] = self._step_values[attempt].at(rows.step[missing])
            positions[np.isinf(positions)] = np.nan
            ranges = []
            for each, (_, first, end) in zip(rows.ranges, _attempt_rows(rows), strict=True):
                within = positions[first:end]
                is_sorted = not np.isnan(within).any() and bool(np.all(np.diff(within) >= 0))
                ranges.append(each._replace(sorted_by=(*each.sorted_by[:3], is_sorted)))
            rows = self._rows[stream] = rows._replace(ranges=ranges, position=positions)
        return rows
