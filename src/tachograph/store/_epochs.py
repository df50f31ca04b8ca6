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

from collections.abc import Sequence

import numpy as np

from tachograph.store._axes import Knots, has_increasing_steps, rows_of, series_of
from tachograph.store._chart_lines import ColumnSource
from tachograph.store._columns import Floats

__all__ = ["epoch_knots"]

_EPOCH = "epoch"


def epoch_knots(sources: Sequence[ColumnSource]) -> Knots | None:
    """Return the knots of the epoch axis; None if no axis can be built."""
    if not all(has_increasing_steps([source]) for source in sources):
        return None
    step, epoch = _recorded_epochs(sources, "step")
    if len(step) and not np.array_equal(epoch, np.floor(epoch)):
        return _knots_if_increasing(step, epoch)
    if len(step):
        return _knots_if_increasing(*_spread_steps(step, epoch))
    step, epoch = _recorded_epochs(sources, _EPOCH)
    if not len(step):
        return None
    first = min((float(rows.step[0]) for rows in rows_of(sources, "step")), default=float(step[0]))
    ends = epoch + 1.0 if epoch[0] == 0 else epoch
    return _knots_if_increasing(np.concatenate([[first - 1], step]), np.concatenate([[ends[0] - 1], ends]))


def _spread_steps(step: Floats, epoch: Floats) -> tuple[Floats, Floats]:
    """Return where each epoch starts, and where the last one ends."""
    first_rows = np.flatnonzero(np.diff(epoch, prepend=np.nan) != 0)
    starts, numbers = step[first_rows] - 1, epoch[first_rows]
    num_last_steps = step[-1] - starts[-1]
    if len(starts) > 1:
        num_last_steps = max(num_last_steps, (starts[-1] - starts[-2]) / max(1.0, numbers[-1] - numbers[-2]))
    return np.append(starts, starts[-1] + num_last_steps), np.append(numbers, numbers[-1] + 1)


def _knots_if_increasing(step: Floats, epoch: Floats) -> Knots | None:
    if not len(step) or not (np.diff(epoch) >= 0).all():
        return None
    if len(step) > 1 and step[1] > step[0] and epoch[0] > 0 and epoch[1] > epoch[0]:
        # Steps before the first recorded epoch.
        per_step = (epoch[1] - epoch[0]) / (step[1] - step[0])
        step = np.concatenate([[step[0] - epoch[0] / per_step], step])
        epoch = np.concatenate([[0.0], epoch])
    return Knots(step, epoch)


def _recorded_epochs(sources: Sequence[ColumnSource], stream: str) -> tuple[Floats, Floats]:
    """Return the steps at which a stream recorded an epoch, sorted and without repetitions, and the epochs."""
    series = list(series_of(sources, stream, _EPOCH).values())
    step = np.concatenate([np.empty(0), *(each.steps for each in series)])
    epoch = np.concatenate([np.empty(0), *(each.values for each in series)])
    # A resumed run records some steps again: the later ones count.
    step, last = np.unique(step[::-1], return_index=True)
    return step, epoch[::-1][last]
