"""The sources of a run with positions on any axis."""

from __future__ import annotations

from typing import Any, NamedTuple

from tachograph.reader import RunDigest
from tachograph.records import finite_or_none
from tachograph.store._amounts import amount_knots
from tachograph.store._axes import Knots, SourceWithPositions, has_increasing_steps
from tachograph.store._chart_lines import ColumnSource
from tachograph.store._columns import Axis, Column
from tachograph.store._epochs import epoch_knots
from tachograph.store._knots_budget import compact_knots
from tachograph.store._training_time import join_attempts, training_time_knots

__all__ = ["AxisKnots", "AxisSources", "add_positions", "find_knots", "join_training_time"]

_MISSING = {
    "samples": "no number of samples: log `num_samples` or `global_batch_size`, or state `global_batch_size` in the "
    "config",
    "tokens": "no number of tokens: log `num_tokens` or `num_tokens_per_step`, or state `global_batch_size` and "
    "`sequence_length` in the config",
    "training_time": "no time per step",
}


class AxisKnots(NamedTuple):
    """Where the steps of a run lie on a computed axis."""

    knots: dict[int, Knots] | None
    """By attempt; None if the axis has no positions, or its positions are recorded."""
    column: Column
    """The column of the positions."""
    problem: str | None = None
    """Why there are no positions."""


class AxisSources(NamedTuple):
    """Sources whose rows have positions on an axis."""

    sources: list[ColumnSource]
    column: Column
    """The column of the positions."""
    problem: str | None = None
    """Why there are no positions."""


def find_knots(sources: list[ColumnSource], axis: Axis, digest: RunDigest) -> AxisKnots:
    """Compute where the steps of a run lie on an axis."""
    if axis == "step" or axis == "time":  # noqa: PLR1714 - mypy understands it
        return AxisKnots(None, axis)
    if axis == "epoch":
        epochs = epoch_knots(sources)
        # Without knots, the last recorded epoch is the position.
        return AxisKnots(None if epochs is None else compact_knots({0: epochs}), "epoch")
    if not all(has_increasing_steps(sources, stream) for stream in ("step", "window")):
        return AxisKnots(None, "position", "steps decrease within an attempt, so the axis has no place for them")
    if axis == "training_time":
        knots = _training_knots(sources, digest)
    else:
        knots = amount_knots(sources, axis, _facts_by_attempt(digest))
    if not knots:
        return AxisKnots(None, "position", f"the run has {_MISSING[axis]}")
    return AxisKnots(compact_knots(knots), "position")


def add_positions(sources: list[ColumnSource], axis: AxisKnots) -> AxisSources:
    """Return the sources of a run with positions on an axis."""
    if axis.knots is None:
        return AxisSources(sources, axis.column, axis.problem)
    return AxisSources([SourceWithPositions(source, axis.knots, axis.column) for source in sources], axis.column)


def _training_knots(sources: list[ColumnSource], digest: RunDigest) -> dict[int, Knots] | None:
    checkpoints = [finite_or_none(record.get("time")) for record in digest.latest("checkpoint")]
    return training_time_knots(sources, [time_s for time_s in checkpoints if time_s is not None])


def join_training_time(axis: AxisKnots) -> Knots | None:
    """Return the training time at each step, without work that a later attempt repeated; None if it is unknown."""
    knots = axis.knots
    return None if knots is None else join_attempts([knots[attempt] for attempt in sorted(knots)])


def _facts_by_attempt(digest: RunDigest) -> dict[int, dict[str, Any]]:
    facts = {attempt.index: attempt.start for attempt in digest.attempts}
    if facts:  # the digest adds facts that were recorded after the last attempt started
        facts[digest.attempts[-1].index] = {**digest.facts, "config": digest.config}
    return facts
