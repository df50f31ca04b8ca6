"""The epoch axis: the number of epochs that were completed after each step, as a fraction.

Training code records epochs in three ways, and none of them places a step within its epoch except the first:

- fractions with the steps, such as 0.31: they are used as they are, and interpolated for the steps between them;
- whole numbers with the steps: the step at which a number changes starts an epoch, and the steps of an epoch are spread
  over it evenly. The last epoch is as long as the one before it, or longer if it has more steps;
- whole numbers in `epoch` records, at the end of each epoch: likewise. If the first one is 0, epochs count from 0,
  and the end of epoch 0 is at 1.

The axis is a function of the step only, so that a resumed run continues it and repeated steps lie where they were. If
steps or epochs decrease, for example because steps restart each epoch, there is no such function: the last recorded
epoch is used instead, as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tachograph.store._columns import Floats, Integers, SeriesPart, StreamRows
from tachograph.store._query import ColumnSource
from tachograph.store._tail import SeriesStats

__all__ = ["with_epoch_axis"]

_EPOCH = "epoch"


def with_epoch_axis(sources: list[ColumnSource]) -> list[ColumnSource]:
    """Return the sources with the position of each row on the epoch axis; the same ones if no axis can be built."""
    knots = _find_knots(sources)
    return sources if knots is None else [_WithEpochs(source, *knots) for source in sources]


def _find_knots(sources: list[ColumnSource]) -> tuple[Floats, Floats] | None:
    """Return steps and their positions on the axis, both increasing; None if there is no axis."""
    if not all(_has_increasing_steps(source) for source in sources):
        return None
    step, epoch = _recorded_epochs(sources, "step")
    if len(step) and not np.array_equal(epoch, np.floor(epoch)):
        return _increasing(step, epoch)
    if len(step):
        return _increasing(*_spread_steps(step, epoch))
    step, epoch = _recorded_epochs(sources, _EPOCH)
    if not len(step):
        return None
    first = min((float(rows.step[0]) for rows in _rows_of(sources, "step")), default=float(step[0]))
    completed = epoch + 1.0 if epoch[0] == 0 else epoch
    return _increasing(np.concatenate([[first - 1], step]), np.concatenate([[completed[0] - 1], completed]))


def _spread_steps(step: Floats, epoch: Floats) -> tuple[Floats, Floats]:
    """Return where each epoch starts, and where the last one ends."""
    begins = np.flatnonzero(np.diff(epoch, prepend=np.nan) != 0)
    starts, numbers = step[begins] - 1, epoch[begins]
    num_last = step[-1] - starts[-1]
    if len(starts) > 1:
        num_last = max(num_last, (starts[-1] - starts[-2]) / max(1.0, numbers[-1] - numbers[-2]))
    return np.append(starts, starts[-1] + num_last), np.append(numbers, numbers[-1] + 1)


def _increasing(step: Floats, epoch: Floats) -> tuple[Floats, Floats] | None:
    is_valid = len(step) > 0 and bool((np.diff(epoch) >= 0).all())
    return (step, epoch) if is_valid else None


def _recorded_epochs(sources: list[ColumnSource], stream: str) -> tuple[Floats, Floats]:
    """Return the steps at which a stream recorded an epoch, sorted and without repetitions, and the epochs."""
    steps: list[Floats] = [np.empty(0)]
    epochs: list[Floats] = [np.empty(0)]
    for source in sources:
        part = source.series_part(stream, _EPOCH) if source.num_rows(stream) else None
        if part is not None:
            rows = part.rows_at(np.arange(len(part.values)))
            steps.append(source.rows(stream).step[rows].astype(np.float64))
            epochs.append(part.values)
    step, epoch = np.concatenate(steps), np.concatenate(epochs)
    # A resumed run records some steps again: the later ones count.
    step, last = np.unique(step[::-1], return_index=True)
    return step, epoch[::-1][last]


def _rows_of(sources: Iterable[ColumnSource], stream: str) -> list[StreamRows]:
    return [source.rows(stream) for source in sources if source.num_rows(stream)]


def _has_increasing_steps(source: ColumnSource) -> bool:
    return all(each.sorted_by[0] for rows in _rows_of([source], "step") for each in rows.ranges)


class _WithEpochs:
    """A source whose rows have their positions on the epoch axis."""

    def __init__(self, source: ColumnSource, steps: Floats, epochs: Floats) -> None:
        self._source, self._steps, self._epochs = source, steps, epochs
        self._rows: dict[str, StreamRows] = {}

    def _place(self, step: Integers) -> Floats:
        known, epochs = self._steps, self._epochs
        placed: Floats = np.interp(step, known, epochs)
        if len(known) > 1 and known[1] > known[0]:  # steps before the first recorded epoch
            slope = (epochs[1] - epochs[0]) / (known[1] - known[0])
            before = np.maximum(0.0, epochs[0] + slope * (step - known[0]))
            placed = np.where(step < known[0], before, placed)
        return placed

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
        found = self._rows.get(stream)
        if found is None:
            rows = self._source.rows(stream)
            ranges = [
                each._replace(sorted_by=(each.sorted_by[0], each.sorted_by[1], each.sorted_by[0]))
                for each in rows.ranges
            ]
            found = self._rows[stream] = rows._replace(epoch=self._place(rows.step), ranges=ranges)
        return found

    def series_part(self, stream: str, name: str) -> SeriesPart | None:
        part = self._source.series_part(stream, name)
        if part is None or part.summary is None:
            return part
        return part._replace(summary=part.summary._replace(epoch=self._place(part.summary.step)))
