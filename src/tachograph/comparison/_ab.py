"""Judge a change that was switched on and off inside one run, or in runs that took turns on one machine.

Within a run, the arms take turns in blocks of a few steps, in the order A B B A. Such a *quad* gives one difference,
between the medians of its blocks B and of its blocks A, as logarithms. A steady drift adds the same to both and
cancels. Runs that took turns give one difference per pair of neighbours. Unlike the levels of runs that were started at
any time, these differences repeat under the same conditions, so their own spread is all that an interval needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tachograph.comparison._evidence import Floats, SeriesPoints
from tachograph.comparison._judge import EQUAL_CONFIDENCE, POWER_Z, Judgement, conclude, quantile_for
from tachograph.comparison._speed import TooShort

__all__ = ["MIN_QUADS", "ArmSteps", "ArmSwitch", "QuadLevels", "judge_differences", "measure_quads"]

MIN_QUADS = 6
_NUM_SKIPPED = 2
"""Steps at the start of a block that are left out: they may still do work of the other arm, or allocate memory."""
_MIN_LENGTH = 0.8
"""The share of a typical block that a block needs; the last one of a run may be cut short."""
_MAX_COUNT = 1_000


class ArmSwitch(NamedTuple):
    """From after this step on, an arm is used."""

    step: float
    """The last step that was logged before; minus infinity before the first one."""
    arm: int
    """0 for the first arm and 1 for the second one."""


class ArmSteps(NamedTuple):
    """The seconds per step of an arm, of the blocks that are compared."""

    steps: Floats
    seconds: Floats
    num_steps: Floats
    """How many steps each of them covers."""


class QuadLevels(NamedTuple):
    """The differences between the arms of a run."""

    differences: list[float]
    """The logarithm of the ratio of the second arm to the first one, in each quad."""
    seconds: tuple[float, float]
    """Typical seconds per step of both arms."""
    arms: tuple[ArmSteps, ArmSteps]
    block: float
    """The typical number of steps of a block."""
    num_blocks: int
    num_unused: int
    """Blocks that are not part of a whole quad."""


class _Block(NamedTuple):
    arm: int
    after: float
    last: float
    begin: int
    end: int
    """The records that lie inside, without the first steps."""
    level: float


def judge_differences(differences: Sequence[float], margin: float, confidence: float = 0.99) -> Judgement:
    """Judge independent measurements of the same difference, by their own spread.

    Args:
        differences: logarithms of ratios, at least two.
        margin: the ratio minus one that matters; smaller differences count as equal.
        confidence: of a difference. Equality always needs 95 %.
    """
    count = len(differences)
    mean = math.fsum(differences) / count
    sd = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (count - 1))

    def count_needed(size: float, limit: float) -> int | None:
        return _count_needed(size, sd, limit, confidence, count)

    return conclude(mean, sd / math.sqrt(count), count - 1, sd, margin, confidence, count_needed)


def _count_needed(size: float, sd: float, limit: float, confidence: float, count: int) -> int | None:
    """Return how many differences find one of this size, or exclude one above the margin, in 80 %; None if too many."""
    is_large = size >= limit
    room, min_confidence = (size, confidence) if is_large else (limit - size, EQUAL_CONFIDENCE)

    def is_enough(number: int) -> bool:
        return (quantile_for(min_confidence, number - 1) + POWER_Z) * sd / math.sqrt(number) <= room

    low, high = count, max(count + 1, _MAX_COUNT)  # the present count was not enough
    if not is_enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def measure_quads(switches: Sequence[Sequence[ArmSwitch]], times: SeriesPoints) -> QuadLevels:
    """Measure the differences between the arms of a run.

    Args:
        switches: the switches of each attempt of the run, in order.
        times: the seconds per step; a record covers the steps since the one before.

    Raises:
        TooShort: if there are too few quads, or the records are too coarse.
    """
    if len(times.steps) < 2:
        raise TooShort("the run has no times of steps")
    previous, steps = times.steps[:-1], times.steps[1:]
    is_valid = np.isfinite(times.values[1:]) & (times.values[1:] > 0)
    previous, steps, seconds = previous[is_valid], steps[is_valid], times.values[1:][is_valid]
    if not len(steps):
        raise TooShort("the run has no times of steps")
    logarithms = np.log(seconds)
    edges: list[tuple[int, float, float]] = []
    for number, attempt in enumerate(switches):
        later = [each[0].step for each in switches[number + 1 :] if each and math.isfinite(each[0].step)]
        end = min([float(times.steps[-1]), *later[:1]])
        edges += _split_blocks(attempt, float(times.steps[0]) - _NUM_SKIPPED, end)
    lengths = [last - after for _, after, last in edges]
    typical = float(np.median(lengths)) if lengths else 0.0
    blocks = [_fill(*edge, previous, steps, logarithms) for edge in edges]
    stride = float(np.median(steps - previous))
    usable = [_is_usable(block, typical, stride) for block in blocks]
    quads = _find_quads(blocks, usable)
    if len(quads) < MIN_QUADS:
        num_empty = sum(last - after >= _MIN_LENGTH * typical for _, after, last in edges) - sum(usable)
        raise TooShort(_too_few(len(quads), len(edges), num_empty, typical, stride))
    means = [[_arm_level(quad, arm) for quad in quads] for arm in (0, 1)]
    rows_of_arms = [
        np.concatenate([np.arange(block.begin, block.end) for quad in quads for block in quad if block.arm == arm])
        for arm in (0, 1)
    ]
    arms = [ArmSteps(steps[rows], seconds[rows], (steps - previous)[rows]) for rows in rows_of_arms]
    return QuadLevels(
        [b - a for a, b in zip(*means, strict=True)],
        (math.exp(float(np.mean(means[0]))), math.exp(float(np.mean(means[1])))),
        (arms[0], arms[1]),
        typical,
        len(edges),
        len(edges) - 4 * len(quads),
    )


def _arm_level(quad: Sequence[_Block], arm: int) -> float:
    return math.fsum(block.level for block in quad if block.arm == arm) / 2


def _split_blocks(switches: Sequence[ArmSwitch], start: float, end: float) -> list[tuple[int, float, float]]:
    """Return the arm, the step before and the last step of each block.

    Two blocks of the same arm follow each other without a switch. A journal may have an event for each block instead.
    """
    places = [max(switch.step, start) for switch in switches] + [end]
    stretches = [
        (switch.arm, after, last)
        for switch, after, last in zip(switches, places, places[1:], strict=False)
        if last > after
    ]
    inner = [last - after for _, after, last in stretches[1:-1]]
    is_each = any(first[0] == second[0] for first, second in itertools.pairwise(stretches))
    if is_each or not inner:
        return stretches
    half = float(np.median(inner)) / 2
    blocks = []
    for arm, after, last in stretches:
        ends = np.linspace(after, last, max(1, round((last - after) / half)) + 1).tolist()
        blocks += [(arm, low, high) for low, high in itertools.pairwise(ends)]
    return blocks


def _fill(arm: int, after: float, last: float, previous: Floats, steps: Floats, logarithms: Floats) -> _Block:
    begin = int(np.searchsorted(previous, after + _NUM_SKIPPED, side="left"))
    end = int(np.searchsorted(steps, last, side="right"))
    level = float(np.median(logarithms[begin:end])) if end > begin else math.nan
    return _Block(arm, after, last, begin, max(begin, end), level)


def _is_usable(block: _Block, typical: float, stride: float) -> bool:
    """Return whether a block is as long as others and has at least half of the records that fit into it for sure."""
    length = block.last - block.after
    num_certain = (length - _NUM_SKIPPED) / stride - 1
    return length >= _MIN_LENGTH * typical and block.end - block.begin >= max(1.0, num_certain / 2)


def _find_quads(blocks: Sequence[_Block], usable: Sequence[bool]) -> list[Sequence[_Block]]:
    """Return blocks in the order A B B A, or B A A B, that follow each other."""
    quads, position = [], 0
    while position + 4 <= len(blocks):
        quad = blocks[position : position + 4]
        first, second, third, fourth = (block.arm for block in quad)
        is_quad = all(usable[position : position + 4]) and first == fourth != second == third
        if is_quad and all(one.last == other.after for one, other in itertools.pairwise(quad)):
            quads.append(quad)
            position += 4
        else:
            position += 1
    return quads


def _too_few(num_quads: int, num_blocks: int, num_empty: int, typical: float, stride: float) -> str:
    if num_empty > num_blocks / 4:
        need = f"{2 * stride + _NUM_SKIPPED:.0f}"
        return (
            f"a record covers {stride:.0f} steps and a block {typical:.0f}, so few records lie inside a block: record "
            f"every step (log_every=1), or use ab(…, block={need}) or more"
        )
    missing = "steps" if not typical else f"steps: a quad takes {4 * typical:.0f}"
    return f"{num_quads} whole quads A B B A; {MIN_QUADS} are needed. Train for more {missing}"
