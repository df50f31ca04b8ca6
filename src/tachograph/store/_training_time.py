"""The axis of training time: the seconds that a run spent in training steps until each step.

Windows of marked iterations state it: their seconds without checkpoints, validation and testing. Otherwise it is the
sum of the recorded time per step, in which two sorts of steps count as long as the median step of their attempt:

- steps with a validation, a test or a checkpoint between their record and the one before, if they took longer;
- steps that took more than a minute and more than 50 times as long: the process was paused.

The first record of an attempt has no time per step; its steps count as long as the steps of the next record.

Time between attempts does not count. A resumed run continues at the training time of the attempt before, so the steps
that it repeats come later than they did: the time of lost work is not subtracted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tachograph.store._amounts import window_training_s
from tachograph.store._axes import AttemptSteps, Knots, RecordedValues, attempt_steps, build_knots, rows_of, series_of
from tachograph.store._chart_lines import ColumnSource
from tachograph.store._columns import Floats

__all__ = ["join_attempts", "training_time_knots"]

_PAUSE_S = 60.0
_PAUSE_FACTOR = 50.0


def training_time_knots(sources: Sequence[ColumnSource], checkpoint_times: Iterable[float]) -> dict[int, Knots] | None:
    """Return the knots of each attempt; None if the run has no times of steps.

    Args:
        sources: the recorded columns.
        checkpoint_times: when checkpoints were recorded.
    """
    windows = window_training_s(sources)
    paces = series_of(sources, "step", "sec_per_step")
    interruptions = [rows.time for stream in ("validation", "test") for rows in rows_of(sources, stream)]
    interruption_times = np.sort(np.concatenate([*interruptions, np.array(list(checkpoint_times), dtype=np.float64)]))
    knots: dict[int, Knots] = {}
    spent_s = 0.0
    for attempt, step_range in attempt_steps(sources).items():
        if attempt in windows:
            steps, training_s = windows[attempt]
        elif attempt in paces:
            steps, training_s = _step_times(step_range, paces[attempt], interruption_times)
        else:
            continue
        knots[attempt] = build_knots(step_range, spent_s, steps, spent_s + np.cumsum(training_s))
        spent_s = float(knots[attempt].positions[-1])
    return knots or None


def _step_times(step_range: AttemptSteps, pace: RecordedValues, interruption_times: Floats) -> tuple[Floats, Floats]:
    """Return steps and the seconds of training since the record before each of them."""
    steps, times, sec_per_step = pace.steps, pace.times, np.maximum(0.0, pace.values)
    num_steps = step_range.num_steps(steps)
    is_interrupted = np.zeros(len(sec_per_step), dtype=bool)
    if bool((np.diff(times) >= 0).all()):
        since = interruption_times[interruption_times > times[0] - sec_per_step[0] * num_steps[0]]
        index = np.searchsorted(times, since, side="right")  # at the time of a record: after it
        is_interrupted[index[index < len(sec_per_step)]] = True
    typical_s = float(np.median(sec_per_step if is_interrupted.all() else sec_per_step[~is_interrupted]))
    is_paused = (sec_per_step * num_steps > _PAUSE_S) & (sec_per_step > _PAUSE_FACTOR * typical_s)
    is_too_long = is_paused | (is_interrupted & (sec_per_step > typical_s))
    return steps, np.where(is_too_long, typical_s, sec_per_step) * num_steps


def join_attempts(attempts: Sequence[Knots]) -> Knots:
    """Return one line: each attempt up to the first step of the next one, without the time of repeated steps."""
    steps, positions = attempts[0].steps, attempts[0].positions
    for later in attempts[1:]:
        is_earlier = steps < later.steps[0]
        start = float(np.interp(later.steps[0], steps, positions))
        steps = np.concatenate([steps[is_earlier], later.steps])
        positions = np.concatenate([positions[is_earlier], later.positions - later.positions[0] + start])
    return Knots(steps, positions)
