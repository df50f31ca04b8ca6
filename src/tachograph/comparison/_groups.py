"""Make the runs of a group independent of each other, as judging requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tachograph.comparison._evidence import Points, RunEvidence, StepClock

__all__ = ["independent_runs"]


def independent_runs(runs: Sequence[RunEvidence]) -> tuple[list[RunEvidence], list[str]]:
    """Return the runs of a group without copies, with the parts of one session joined, and what was done."""
    notes: list[str] = []
    kept: list[RunEvidence] = []
    for run in runs:
        original = next((other for other in kept if _is_copy(run, other)), None)
        if original is None:
            kept.append(run)
        else:
            notes.append(f"{run.name!r} is a copy of {original.name!r} and counts once")
    sessions: dict[str, list[RunEvidence]] = {}
    for number, run in enumerate(kept):
        sessions.setdefault(run.session_tag or f"\0{number}", []).append(run)
    joined = [_join(sorted(parts, key=lambda part: part.started)) for parts in sessions.values()]
    notes += [
        f"{len(parts)} runs are one training, by their session_tag {tag!r}, and count once"
        for tag, parts in sessions.items()
        if len(parts) > 1
    ]
    return joined, notes


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
    joined = curves[0]
    for curve in curves[1:]:
        if len(curve.steps):
            before = joined.steps < curve.steps[0]
            joined = Points(
                np.concatenate([joined.steps[before], curve.steps]),
                np.concatenate([joined.values[before], curve.values]),
            )
    return joined


def _continue_clock(clocks: Sequence[StepClock]) -> StepClock:
    joined = clocks[0]
    for clock in clocks[1:]:
        if len(clock.steps) and len(joined.steps):
            before = joined.steps < clock.steps[0]
            passed = joined.passed_s[before]
            start = float(np.interp(clock.steps[0], joined.steps, joined.passed_s))
            joined = StepClock(
                np.concatenate([joined.steps[before], clock.steps]),
                np.concatenate([passed, clock.passed_s + start]),
                joined.num_invalid + clock.num_invalid,
            )
        elif len(clock.steps):
            joined = clock
    return joined
