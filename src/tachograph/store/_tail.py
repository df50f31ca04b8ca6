"""The tail: columns in memory for the records after the last segment.

Values are appended to growing `array` objects. Queries need numpy arrays that do not change, so each stream and series
builds a snapshot on demand and reuses it until the next append. Plain steps arrive as columns, see `_step_decoder`;
other records are appended column by column.
"""

from __future__ import annotations

import math
from array import array
from typing import Any

import msgspec
import numpy as np

from tachograph.reader import NOT_METRICS, RecordBatch, times_of
from tachograph.records import METRIC_KINDS, finite_or_none, is_number, step_of
from tachograph.store._columns import AttemptRange, Floats, Integers, SeriesPart, StreamRows
from tachograph.store._step_decoder import StepColumns

__all__ = ["SeriesStats", "Tail"]

_WINDOW = "window"


class SeriesStats(msgspec.Struct, array_like=True):
    """Statistics of a series, available without reading its values."""

    num_values: int = 0
    num_marks: int = 0
    low: float = math.inf
    high: float = -math.inf
    last: float = math.nan
    last_step: int | None = None
    order: int = 0
    """Sequence number of the last value; the series with the highest has the latest value of a source."""


class _StreamColumns:
    """The rows of a stream in the tail."""

    def __init__(self) -> None:
        self.step = array("q")
        self.time = array("d")
        self.epoch = array("d")
        self.starts: list[tuple[int, int]] = []
        self._snapshot: StreamRows | None = None

    def extend(self, attempt: int, steps: list[int], times: list[float], epochs: list[float]) -> None:
        # Each attempt is a line of its own, so remember its first row.
        if not self.starts or self.starts[-1][0] != attempt:
            self.starts.append((attempt, len(self.step)))
        self.step.extend(steps)
        self.time.extend(times)
        self.epoch.extend(epochs)
        self._snapshot = None

    def extend_arrays(self, attempt: int, steps: Integers, times: Floats, epochs: Floats) -> None:
        self.extend(attempt, [], [], [])
        self.step.frombytes(steps.tobytes())
        self.time.frombytes(times.tobytes())
        self.epoch.frombytes(epochs.tobytes())

    def snapshot(self) -> StreamRows:
        if self._snapshot is None:
            step, time, epoch = np.array(self.step), np.array(self.time), np.array(self.epoch)
            ends = [first for _, first in self.starts[1:]] + [len(step)]
            ranges = [
                AttemptRange(
                    attempt,
                    first,
                    (
                        _is_sorted(step[first:end]),
                        _is_sorted(time[first:end]),
                        _is_sorted_ignoring_nan(epoch[first:end]),
                    ),
                )
                for (attempt, first), end in zip(self.starts, ends, strict=True)
            ]
            self._snapshot = StreamRows(step, time, None if np.isnan(epoch).all() else epoch, ranges)
        return self._snapshot


class _SeriesColumns:
    """One metric of a stream in the tail."""

    def __init__(self) -> None:
        self.rows = array("I")
        self.values = array("d")
        self.mark_rows = array("I")
        self.mark_kinds = bytearray()
        self.stats = SeriesStats()
        self._snapshot: SeriesPart | None = None

    def extend(self, first_row: int, column: list[Any], steps: list[int | None], order: int) -> None:
        # A finite sum of floats proves that all of them are finite, without checking each.
        if set(map(type, column)) == {float} and math.isfinite(sum(column)):
            self.rows.extend(range(first_row, first_row + len(column)))
            self.values.extend(column)
            stats = self.stats
            stats.num_values += len(column)
            stats.low, stats.high = min(stats.low, *column), max(stats.high, *column)
            stats.last, stats.last_step, stats.order = column[-1], steps[-1], order
        else:
            for index, value in enumerate(column):
                if is_number(value):
                    self._add(first_row + index, float(value), steps[index], order)
        self._snapshot = None

    def extend_array(
        self, first_row: int, values: Floats, present: Integers | None, steps: Integers, order: int
    ) -> None:
        """Append numbers of any kind.

        Args:
            first_row: the row of the first position.
            values: a value per position, arbitrary where none is present.
            present: the positions that have a value; None if all have.
            steps: the step of each position.
            order: see `SeriesStats`.
        """
        rows: Integers = np.arange(first_row, first_row + len(values), dtype=np.uint32)
        if present is not None:
            values, steps, rows = values[present], steps[present], rows[present]
        stats = self.stats
        stats.last, stats.last_step, stats.order = float(values[-1]), int(steps[-1]), order
        is_finite = np.isfinite(values)
        if not is_finite.all():
            marks = values[~is_finite]
            self.mark_rows.frombytes(rows[~is_finite].tobytes())
            self.mark_kinds += np.where(np.isnan(marks), 0, np.where(marks > 0, 1, 2)).astype(np.uint8).tobytes()
            stats.num_marks += len(marks)
            values, rows = values[is_finite], rows[is_finite]
        if len(values):
            self.rows.frombytes(rows.tobytes())
            self.values.frombytes(values.tobytes())
            stats.num_values += len(values)
            stats.low, stats.high = min(stats.low, float(values.min())), max(stats.high, float(values.max()))
        self._snapshot = None

    def _add(self, row: int, value: float, step: int | None, order: int) -> None:
        stats = self.stats
        stats.last, stats.last_step, stats.order = value, step, order
        if math.isfinite(value):
            self.rows.append(row)
            self.values.append(value)
            stats.num_values += 1
            stats.low, stats.high = min(stats.low, value), max(stats.high, value)
        else:
            stats.num_marks += 1
            self.mark_rows.append(row)
            self.mark_kinds.append(0 if math.isnan(value) else 1 if value > 0 else 2)

    def snapshot(self) -> SeriesPart:
        if self._snapshot is None:
            kinds = np.frombuffer(bytes(self.mark_kinds), dtype=np.uint8)
            self._snapshot = SeriesPart(np.array(self.rows), np.array(self.values), np.array(self.mark_rows), kinds)
        return self._snapshot


class Tail:
    """Collects metric records in order and provides the same columns as a segment."""

    def __init__(self, epoch: float = math.nan, step: int | None = None) -> None:
        self.epoch = epoch
        """The last epoch recorded in this attempt."""
        self.step = step
        """The last recorded step."""
        self._order = 0
        self._streams: dict[str, _StreamColumns] = {}
        self._series: dict[tuple[str, str], _SeriesColumns] = {}

    def begin_attempt(self) -> None:
        """Reset the epoch: a new process starts without one."""
        self.epoch = math.nan

    def add(self, batch: RecordBatch, attempt: int) -> None:
        """Add a batch of records; a record without a step belongs to the last step."""
        names, records = batch.names, batch.records
        if batch.event not in METRIC_KINDS:
            return
        stream_name = _WINDOW if "window/sec" in names else batch.event
        stream = self._streams.get(stream_name)
        if stream is None:
            stream = self._streams[stream_name] = _StreamColumns()
        first_row = len(stream.step)
        steps = self._steps(batch)
        row_steps = steps if batch.are_plain_steps else [step or 0 for step in steps]
        stream.extend(attempt, row_steps, times_of(records), self._epochs(batch))  # type: ignore[arg-type]
        self._order += 1
        for name in names:
            if name in NOT_METRICS:
                continue
            column = [record[name] for record in records]
            series = self._series.get((stream_name, name))
            if series is None:
                if not {int, float} & set(map(type, column)) or not any(map(is_number, column)):
                    continue
                series = self._series[stream_name, name] = _SeriesColumns()
            series.extend(first_row, column, steps, self._order)

    def add_steps(self, columns: StepColumns, attempt: int) -> None:
        """Add plain steps."""
        stream = self._streams.setdefault("step", _StreamColumns())
        first_row = len(stream.step)
        stream.extend_arrays(attempt, columns.steps, columns.times, self._epochs_of(columns))
        self.step = int(columns.steps[-1])
        self._order += 1
        for index, name in enumerate(columns.names):
            present = None
            if columns.is_missing is not None and columns.is_missing[index].any():
                present = np.flatnonzero(~columns.is_missing[index])
                if not len(present):
                    continue
            series = self._series.get(("step", name))
            if series is None:
                series = self._series["step", name] = _SeriesColumns()
            series.extend_array(first_row, columns.values[index], present, columns.steps, self._order)

    def _epochs_of(self, columns: StepColumns) -> Floats:
        """Return the last known epoch at each step."""
        if "epoch" not in columns.names:
            return np.full(len(columns.steps), self.epoch)
        values = columns.values[list(columns.names).index("epoch")]
        finite = np.flatnonzero(np.isfinite(values))
        last_finite = np.searchsorted(finite, np.arange(len(values)), side="right") - 1
        epochs = np.where(last_finite >= 0, values[finite[last_finite]] if len(finite) else np.nan, self.epoch)
        self.epoch = float(epochs[-1])
        return epochs

    def _steps(self, batch: RecordBatch) -> list[int | None]:
        steps: list[int | None] = []
        if batch.are_plain_steps:
            steps = [record["global_step"] for record in batch.records]
            self.step = steps[-1]
            return steps
        for record in batch.records:
            if (step := step_of(record)) is not None:
                self.step = step
            steps.append(self.step)
        return steps

    def _epochs(self, batch: RecordBatch) -> list[float]:
        if "epoch" not in batch.names:
            return [self.epoch] * len(batch.records)
        epochs = []
        for record in batch.records:
            if (epoch := finite_or_none(record["epoch"])) is not None:
                self.epoch = epoch
            epochs.append(self.epoch)
        return epochs

    @property
    def streams(self) -> list[str]:
        """The names of the streams, in order of appearance."""
        return list(self._streams)

    @property
    def series_keys(self) -> list[tuple[str, str]]:
        """Stream and name of each series, in order of appearance."""
        return list(self._series)

    def num_rows(self, stream: str) -> int:
        """Return the number of rows of a stream in the tail."""
        return len(self._streams[stream].step) if stream in self._streams else 0

    def rows(self, stream: str) -> StreamRows:
        """Return the rows of a stream."""
        return self._streams[stream].snapshot()

    def series_part(self, stream: str, name: str) -> SeriesPart | None:
        """Return the values of a series in the tail, or None."""
        series = self._series.get((stream, name))
        return None if series is None else series.snapshot()

    def stats(self, stream: str, name: str) -> SeriesStats | None:
        """Return the statistics of a series, or None if it is not in the tail."""
        series = self._series.get((stream, name))
        return None if series is None else series.stats

    def is_changed(self) -> bool:
        """Return False: nothing else can change the memory of this process."""
        return False

    @property
    def num_changes(self) -> int:
        """Zero, see `is_changed`."""
        return 0


def _is_sorted(values: Any) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def _is_sorted_ignoring_nan(epochs: Any) -> bool:
    """Return whether epochs never decrease, ignoring unknown ones."""
    return _is_sorted(epochs[~np.isnan(epochs)])
