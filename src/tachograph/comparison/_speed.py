"""Compare the speed of runs.

The range of steps that all runs have is divided into blocks. In each block, a run has a mean time per step, as a
logarithm. The median of the first group in each block is the *profile*: it contains changes of the training, such
as a schedule of batch sizes. The level of a run is the median over blocks of its distance to the profile, so a few
blocks with validations or stalls do not count; the *overall* ratio has them.

Within a run, blocks wander around the profile. A restless run betrays a restless machine, so the spread between runs is
assumed to be at least one and a half times as large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tachograph.comparison._blocks import Onset, find_onset, mad
from tachograph.comparison._evidence import Floats, RunEvidence
from tachograph.comparison._judge import Noise, learned_noise
from tachograph.comparison._spread import spread_of_earlier

__all__ = ["NUM_BLOCKS", "SpeedLevels", "TooShort", "measure_speed", "steady_edges"]

NUM_BLOCKS = 20
_MIN_FILLED = 16
_MAX_SAMPLES = 20_000
_MIN_STEPS = 100
_MIN_SECONDS = 30.0
_SAME_MACHINE_NOISE = 0.005
_OTHER_MACHINE_NOISE = 0.01
_WANDER_FACTOR = 1.5
_MIN_EARLIER = 5
_MAX_PROFILE_RANGE = math.log(1.1)


class TooShort(Exception):  # noqa: N818 - an answer, not a fault
    """There is not enough of a run to compare; the text names the missing part."""


class SpeedLevels(NamedTuple):
    """The speed of two groups of runs over their common steps."""

    first: list[float]
    second: list[float]
    """The level of each run: the logarithm of its time per step relative to the profile."""
    overall: float
    """The logarithm of the ratio of mean times per step, with all stalls."""
    overall_seconds: tuple[float, float]
    seconds: tuple[float, float]
    """Typical seconds per step of both groups."""
    noise: Noise
    onset: Onset | None
    is_first_part_equal: bool
    """Whether the groups agree before the onset."""
    tails: tuple[float | None, float | None]
    """The 95th percentile of the time per step relative to the median, of both groups."""
    edges: Floats
    profile: Floats
    has_other_schedule: bool
    """Whether the ratio of the groups changes so much over the run that their schedules probably differ."""


def steady_edges(
    runs: Sequence[RunEvidence], *, min_steps: int = _MIN_STEPS, min_seconds: float = _MIN_SECONDS
) -> Floats:
    """Return the edges of the blocks of the common steps of runs, without their beginning.

    Raises:
        TooShort: if the runs have too few steps in common.
    """
    for run in runs:
        if len(run.clock.steps) < 2:
            raise TooShort(f"{run.name!r} has no times of steps")
    low = max(float(run.clock.steps[0]) for run in runs)
    high = min(float(run.clock.steps[-1]) for run in runs)
    low += max(20.0, 0.05 * (high - low))
    if high - low < min_steps:
        common = max(0, int(high - low))
        raise TooShort(f"the runs have {common} steps in common after the first ones; {min_steps} are needed")
    edges = np.linspace(low, high, NUM_BLOCKS + 1)
    for run in runs:
        passed_s = run.clock.at(edges)
        if passed_s[-1] - passed_s[0] < min_seconds:
            took = passed_s[-1] - passed_s[0]
            raise TooShort(f"the common steps of {run.name!r} took {took:.1f} s; {min_seconds:.0f} s are needed")
        num_filled = int((np.diff(np.searchsorted(run.clock.steps, edges, side="right")) > 0).sum())
        if num_filled < _MIN_FILLED:
            raise TooShort(f"{run.name!r} has times in only {num_filled} of {NUM_BLOCKS} parts of the common steps")
    return edges


def block_levels(runs: Sequence[RunEvidence], edges: Floats) -> Floats:
    """Return the logarithm of the mean time per step of each run in each block."""
    sizes = np.diff(edges)
    return np.array([np.log(np.diff(run.clock.at(edges)) / sizes) for run in runs])


def measure_speed(
    first: Sequence[RunEvidence],
    second: Sequence[RunEvidence],
    *,
    is_same_machine: bool,
    margin: float,
    earlier: Sequence[RunEvidence] = (),
) -> SpeedLevels:
    """Measure the speed of two groups of runs over their common steps.

    Args:
        first: the runs to compare with.
        second: the runs to judge.
        is_same_machine: whether all of them ran on one host with the same devices.
        margin: the ratio minus one that matters.
        earlier: other runs of the same kind, to learn the spread between runs from.

    Raises:
        TooShort: if there is not enough to compare.
    """
    edges = steady_edges([*first, *second])
    a, b = block_levels(first, edges), block_levels(second, edges)
    profile = np.median(a, axis=0)
    levels_a, levels_b = (np.median(levels - profile, axis=1) for levels in (a, b))
    noise = _noise(a, b, profile, is_same_machine=is_same_machine)
    noise = _learn_noise(earlier, edges, profile, margin) or noise
    wander = Noise(max(noise.sd, _SAME_MACHINE_NOISE), noise.source, noise.degrees)
    onset = find_onset(a, b, edges, wander, margin)
    is_first_part_equal = onset is not None and onset.block >= 1 and _is_equal_before(a, b, onset.block, margin)
    sizes = edges[-1] - edges[0]
    total_a, total_b = (
        np.log([(run.clock.at(edges[-1:]) - run.clock.at(edges[:1]))[0] / sizes for run in runs])
        for runs in (first, second)
    )
    ratio = b.mean(axis=0) - a.mean(axis=0)
    return SpeedLevels(
        levels_a.tolist(),
        levels_b.tolist(),
        float(total_b.mean() - total_a.mean()),
        (float(np.exp(total_a.mean())), float(np.exp(total_b.mean()))),
        (float(np.exp(np.median(a))), float(np.exp(np.median(b)))),
        noise,
        onset,
        is_first_part_equal,
        (_tail(first, edges), _tail(second, edges)),
        edges,
        profile,
        bool(np.quantile(ratio, 0.9) - np.quantile(ratio, 0.1) > _MAX_PROFILE_RANGE),
    )


def _noise(a: Floats, b: Floats, profile: Floats, *, is_same_machine: bool) -> Noise:
    floor = _SAME_MACHINE_NOISE if is_same_machine else _OTHER_MACHINE_NOISE
    # A single run is its own profile and does not wander around it; the other group then has the wander of both.
    residuals = (b - profile) / math.sqrt(2) if len(a) == 1 else np.concatenate([a, b]) - profile
    wander = math.sqrt(float(np.mean([mad(row) ** 2 for row in residuals])))
    if _WANDER_FACTOR * wander > floor:
        return Noise(_WANDER_FACTOR * wander, "from the unrest within the runs")
    where = "same machine" if is_same_machine else "different machines"
    return Noise(floor, f"assumed: {where}")


def _learn_noise(earlier: Sequence[RunEvidence], edges: Floats, profile: Floats, margin: float) -> Noise | None:
    """Return the spread between earlier runs that have the same steps."""
    usable = [
        run
        for run in sorted(earlier, key=lambda run: run.started)
        if len(run.clock.steps) > 1 and run.clock.steps[0] <= edges[0] and run.clock.steps[-1] >= edges[-1]
    ]
    if len(usable) < _MIN_EARLIER:
        return None
    levels = np.median(block_levels(usable, edges) - profile, axis=1)
    spread = spread_of_earlier(levels.tolist(), margin)
    return None if spread is None else learned_noise(spread, len(usable))


def _is_equal_before(a: Floats, b: Floats, block: int, margin: float) -> bool:
    before = np.median(b[:, :block].mean(axis=0) - a[:, :block].mean(axis=0))
    return bool(abs(before) < math.log1p(margin))


def _tail(runs: Sequence[RunEvidence], edges: Floats) -> float | None:
    ratios = []
    for run in runs:
        if run.is_summary:
            return None
        steps, passed_s = run.clock.steps, run.clock.passed_s
        first, end = np.searchsorted(steps, (edges[0], edges[-1]), side="right")
        each = np.diff(passed_s[first:end]) / np.diff(steps[first:end])
        each = each[:: max(1, len(each) // _MAX_SAMPLES)]
        if len(each) >= NUM_BLOCKS:
            median, high = np.quantile(each, (0.5, 0.95))
            ratios.append(float(high / median))
    return float(np.median(ratios)) if ratios else None
