"""Make the runs of a group independent of each other, as judging requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tachograph.catalog import describes_training, is_repeat_key, is_seed
from tachograph.comparison._evidence import RunEvidence, SeriesPoints, StepClock

__all__ = ["group_by_seed", "independent_runs", "seeds_of", "training_key"]

_MIN_LOSSES = 50


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


def training_key(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what a flattened config says about the training; runs with the same key differ only in their seed."""
    return tuple(
        sorted(
            (name, repr(value))
            for name, value in config.items()
            if describes_training(name) and not is_repeat_key(name)
        )
    )


def seeds_of(run: RunEvidence) -> tuple[tuple[str, str], ...]:
    """Return the seeds in the config of a run."""
    return tuple(sorted((name, repr(value)) for name, value in run.config.items() if is_seed(name)))


def group_by_seed(runs: Sequence[RunEvidence], *, has_one_seed: bool) -> list[list[RunEvidence]]:
    """Return groups of runs that count once for a loss, because they have the same losses or the same seed.

    Args:
        runs: repeats of one training.
        has_one_seed: whether all runs of the comparison have the same seed, or none in their config; repeats then
            differ by chance, as another seed would.
    """
    groups: list[list[RunEvidence]] = []
    for run in runs:
        seeds = seeds_of(run)
        for group in groups:
            is_same_seed = not has_one_seed and bool(seeds) and seeds == seeds_of(group[0])
            if is_same_seed or _has_same_losses(run, group[0]):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def _has_same_losses(run: RunEvidence, other: RunEvidence) -> bool:
    return (
        len(run.loss.steps) >= _MIN_LOSSES
        and not run.is_summary
        and np.array_equal(run.loss.values, other.loss.values, equal_nan=True)
    )


def _is_copy(run: RunEvidence, other: RunEvidence) -> bool:
    if run.run_id and run.run_id == other.run_id:
        return True
    is_short = len(run.loss.steps) < _MIN_LOSSES
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
        result=_continue([part.result for part in parts if part.result_name == last.result_name]),
        clock=_continue_clock([part.clock for part in parts]),
        memory={kind: max(part.memory.get(kind, 0.0) for part in parts) for kind in last.memory},
        rank_memory={
            kind: max((part.rank_memory.get(kind, level) for part in parts), key=lambda each: each.bytes)
            for kind, level in last.rank_memory.items()
        },
        num_steps=max(part.num_steps for part in parts),
    )


def _continue(curves: Sequence[SeriesPoints]) -> SeriesPoints:
    curve_so_far = curves[0]
    for curve in curves[1:]:
        if len(curve.steps):
            before = curve_so_far.steps < curve.steps[0]
            curve_so_far = SeriesPoints(
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
