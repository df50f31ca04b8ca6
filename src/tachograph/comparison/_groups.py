"""Make the runs of a group independent of each other, as judging requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tachograph.comparison._evidence import Points, RunEvidence, StepClock

__all__ = ["independent_runs"]


def independent_runs(runs: Sequence[RunEvidence]) -> tuple[list[RunEvidence], list[str]]:
    """Return the runs of a group without copies, with the parts of one session joined, and a note for each change."""
    notes: list[str] = []
    unique_runs: list[RunEvidence] = []
    for run in runs:
        original = next((other for other in unique_runs if _is_copy(run, other)), None)
        if original is None:
            unique_runs.append(run)
        else:
            notes.append(f"{run.name!r} is a copy of {original.name!r} and counts once")
    sessions: dict[str, list[RunEvidence]] = {}
    for number, run in enumerate(unique_runs):
        sessions.setdefault(run.session_tag or f"\0{number}", []).append(run)
    joined_runs = [_join(sorted(parts, key=lambda part: part.started)) for parts in sessions.values()]
    notes += [
        f"{len(parts)} runs are one training, by their session_tag {tag!r}, and count once"
        for tag, parts in sessions.items()
        if len(parts) > 1
    ]
    return joined_runs, notes


def _is_copy(run: RunEvidence, other: RunEvidence) -> bool:
    if run.run_id and run.run_id == other.run_id:
        return True
    is_short = len(run.loss.steps) < 50
    if is_short or len(run.loss.steps) != len(other.loss.steps) or run.loss.values[-1] != other.loss.values[-1]:
        return False
    is_same_loss = np.array_equal(run.loss.values, other.loss.values, equal_nan=True)
    return is_same_loss and np.array_equal(run.clock.passed_s, other.clock.passed_s)


def _join(parts: Sequence[RunEvidence]) -> RunEvidence:
    """Continue each part with the next one, which replaces steps that it repeats."""
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    return replace(
        last,
        loss=_continue([part.loss for part in parts]),
        val_loss=_continue([part.val_loss for part in parts]),
        clock=_continue_clock([part.clock for part in parts]),
        memory={kind: max(part.memory.get(kind, 0.0) for part in parts) for kind in last.memory},
        rank_memory={
            kind: max((part.rank_memory.get(kind, level) for part in parts), key=lambda each: each.bytes)
            for kind, level in last.rank_memory.items()
        },
        num_steps=max(part.num_steps for part in parts),
    )


def _continue(curves: Sequence[Points]) -> Points:
    curve_so_far = curves[0]
    for curve in curves[1:]:
        if len(curve.steps):
            before = curve_so_far.steps < curve.steps[0]
            curve_so_far = Points(
                np.concatenate([curve_so_far.steps[before], curve.steps]),
                np.concatenate([curve_so_far.values[before], curve.values]),
            )
    return curve_so_far


def _continue_clock(clocks: Sequence[StepClock]) -> StepClock:
    clock_so_far = clocks[0]
    for clock in clocks[1:]:
        if len(clock.steps) and len(clock_so_far.steps):
            before = clock_so_far.steps < clock.steps[0]
            passed_s = clock_so_far.passed_s[before]
            start = float(np.interp(clock.steps[0], clock_so_far.steps, clock_so_far.passed_s))
            clock_so_far = StepClock(
                np.concatenate([clock_so_far.steps[before], clock.steps]),
                np.concatenate([passed_s, clock.passed_s + start]),
                clock_so_far.num_invalid + clock.num_invalid,
            )
        elif len(clock.steps):
            clock_so_far = clock
    return clock_so_far
