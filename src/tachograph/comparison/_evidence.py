"""The evidence of a run: the series and facts that comparisons of speed, memory and loss use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "SeriesPoints", "RankLevel", "RunEvidence", "StepClock", "memory_level", "memory_of", "no_points"]

Floats = npt.NDArray[np.float64]


class SeriesPoints(NamedTuple):
    """A metric over the steps of a run, each step once and in order; NaN and infinities included."""

    steps: Floats
    values: Floats

    def between(self, low: float, high: float) -> SeriesPoints:
        """Return the points in a range of steps."""
        first, end = np.searchsorted(self.steps, (low, high), side="left")
        end = int(np.searchsorted(self.steps, high, side="right"))
        return SeriesPoints(self.steps[first:end], self.values[first:end])

    @property
    def finite(self) -> SeriesPoints:
        """The points with a finite value."""
        is_finite = np.isfinite(self.values)
        return self if is_finite.all() else SeriesPoints(self.steps[is_finite], self.values[is_finite])


class StepClock(NamedTuple):
    """The training time that had passed at each recorded step, in seconds."""

    steps: Floats
    passed_s: Floats
    num_invalid: int = 0
    """Steps whose recorded time was not a positive number."""

    def at(self, steps: Floats) -> Floats:
        """Return the time that had passed at any steps, linear between records."""
        return np.interp(steps, self.steps, self.passed_s)

    @staticmethod
    def of(times: SeriesPoints) -> StepClock:
        """Sum up the seconds per step; a record covers the steps since the one before."""
        if len(times.steps) < 2:
            return StepClock(np.empty(0), np.empty(0))
        sizes, each = np.diff(times.steps), times.values[1:]
        is_valid = np.isfinite(each) & (each > 0)
        typical = float(np.median(each[is_valid])) if is_valid.any() else 0.0
        passed_s = np.concatenate([[0.0], np.cumsum(np.where(is_valid, each, typical) * sizes)])
        return StepClock(times.steps, passed_s, int(len(each) - is_valid.sum()))


class RankLevel(NamedTuple):
    """The memory of the rank that needs most of it."""

    rank: int
    bytes: float
    num_ranks: int
    """The number of ranks with readings."""


def no_points() -> SeriesPoints:
    """Return a metric without points."""
    return SeriesPoints(np.empty(0), np.empty(0))


@dataclass(frozen=True)
class RunEvidence:
    """The series and facts of a run that comparisons use."""

    name: str
    run_id: str = ""
    started: float = 0.0
    state: str = "finished"
    failure: str | None = None
    """Why the run failed."""
    perf_tags: tuple[str, ...] = ()
    session_tag: str | None = None
    is_baseline: bool = False
    """Whether the training code marked the run as one to compare with."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the machine, the code and the training."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config, with dotted names."""
    clock: StepClock = field(default_factory=lambda: StepClock(np.empty(0), np.empty(0)))
    loss: SeriesPoints = field(default_factory=no_points)
    val_loss: SeriesPoints = field(default_factory=no_points)
    result_name: str = ""
    """The metric that tells how good the run is, if that is no loss: an accuracy, or a reward."""
    result: SeriesPoints = field(default_factory=no_points)
    batches: SeriesPoints | None = None
    """Losses of consecutive steps as they were recorded, if the rest is known only as means over blocks of steps."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """`device_allocated`, `device_reserved` and `host`, in bytes; of rank 0."""
    rank_memory: Mapping[str, RankLevel] = field(default_factory=dict)
    """The same of the rank with the highest level, if ranks other than 0 recorded theirs."""
    memory_spread: Mapping[str, float] = field(default_factory=dict)
    """How far the highest reading is above the usual high ones: readings are samples, which can miss a peak."""
    num_steps: int = 0
    goodput: float | None = None
    uses: Mapping[str, float] = field(default_factory=dict)
    """The share of the wall time spent waiting for data, saving checkpoints and validating."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds per step of each phase of the training loop."""

    @property
    def is_summary(self) -> bool:
        """Whether times and losses are means over blocks of steps, as in a baseline file."""
        return self.batches is not None

    def without_clock(self) -> RunEvidence:
        """Return the run without its speed."""
        return replace(self, clock=StepClock(np.empty(0), np.empty(0)))

    @property
    def has_failed(self) -> bool:
        """Whether the run ended with an error or died."""
        return self.state in {"failed", "crashed"}

    @property
    def has_ranks(self) -> bool:
        """Whether the run consists of several processes."""
        size = self.facts.get("world_size")
        return isinstance(size, int) and size > 1


def memory_of(runs: Sequence[RunEvidence], kind: str) -> tuple[list[RunEvidence], bool]:
    """Return the runs with a level of a kind of memory, and whether the levels of their highest ranks can be compared.

    It cannot if one of them recorded only rank 0, as all did before other ranks recorded their memory.
    """
    runs_with_memory = [run for run in runs if kind in run.memory]
    return runs_with_memory, all(kind in run.rank_memory or not run.has_ranks for run in runs_with_memory)


def memory_level(run: RunEvidence, kind: str, *, is_over_ranks: bool) -> float:
    """Return a level of memory in bytes: of the rank that needs most of it, or of rank 0."""
    return run.rank_memory[kind].bytes if is_over_ranks and kind in run.rank_memory else run.memory[kind]
