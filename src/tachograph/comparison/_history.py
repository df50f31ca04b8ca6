"""Say where the speed, memory or loss of a series of runs changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tachograph.comparison._changes import MIN_HISTORY, Change, find_changes
from tachograph.comparison._comparable import check_comparable
from tachograph.comparison._evidence import Floats, RunEvidence, memory_level, memory_of
from tachograph.comparison._groups import independent_runs
from tachograph.comparison._speed import TooShort, block_levels, steady_edges

__all__ = ["HistoryChange", "HistoryReport", "judge_history"]

_MIN_COVERED = 0.9
_MIN_TAIL = 20
_TAIL_SHARE = 0.1
_NUM_VALIDATIONS = 3
_TITLES = {
    "step_time": "step time",
    "device_memory": "GPU memory",
    "train_loss": "training loss",
    "val_loss": "validation loss",
}
_WORDS = {
    "step_time": ("slower", "faster"),
    "device_memory": ("more", "less"),
    "train_loss": ("worse", "better"),
    "val_loss": ("worse", "better"),
}
_MARGIN = 0.01


class HistoryChange(msgspec.Struct, kw_only=True):
    """A change in a series of runs."""

    name: str
    title: str
    verdict: str
    effect: float
    """The relative difference."""
    before: str
    """The last run before the change."""
    run: str
    """The first run after it."""
    commit_before: str | None
    commit: str | None
    hosts: list[str]
    """The hosts of these two runs, if they differ."""
    found_with: str
    """The run with which there was enough evidence."""
    is_new: bool
    """Whether that is the newest run."""

    @property
    def is_regression(self) -> bool:
        """Whether it is a change for the worse."""
        return self.verdict in {"slower", "more", "worse"}

    @property
    def text(self) -> str:
        """The change in one sentence."""
        text = f"{self.title} {self.verdict} by {abs(self.effect):.1%} since {self.run!r} (before: {self.before!r})"
        if self.commit_before and self.commit and self.commit_before != self.commit:
            text += f", commits {self.commit_before[:12]}..{self.commit[:12]}"
        if self.hosts:
            text += f", hosts {' and '.join(self.hosts)}"
        return text if self.is_new else f"{text}; found with {self.found_with!r}"


class HistoryReport(msgspec.Struct, kw_only=True):
    """The changes in a series of runs."""

    num_runs: int
    changes: list[HistoryChange] = []
    missing: list[str] = []
    """Why a quantity could not be judged."""

    @property
    def new_regressions(self) -> list[HistoryChange]:
        """Changes for the worse that the newest run proves."""
        return [change for change in self.changes if change.is_new and change.is_regression]


def judge_history(
    runs: Sequence[RunEvidence],
    metrics: Sequence[str] = tuple(_TITLES),
    margins: Mapping[str, float] | None = None,
) -> HistoryReport:
    """Find changes in a series of runs; the last one is the newest.

    Args:
        runs: runs that should be alike.
        metrics: which of `step_time`, `device_memory`, `train_loss` and `val_loss` to judge; others are ignored.
        margins: the relative differences that matter, by name.
    """
    sorted_runs = sorted(independent_runs(runs)[0], key=lambda run: run.started)
    report = HistoryReport(num_runs=len(sorted_runs))
    for name in metrics:
        if name not in _TITLES:
            continue
        run_levels = _levels(name, sorted_runs)
        if len(run_levels) < MIN_HISTORY:
            if run_levels or name == "step_time" or (name == "val_loss" and len(sorted_runs[-1].val_loss.steps)):
                report.missing.append(f"{_TITLES[name]}: {_missing_text(name, sorted_runs[-1], len(run_levels))}")
            continue
        measured_runs = [run for run, _ in run_levels]
        margin = (margins or {}).get(name, _MARGIN)
        for change in find_changes([level for _, level in run_levels], margin):
            report.changes.append(_describe_change(name, change, measured_runs))
    return report


def _missing_text(name: str, newest: RunEvidence, num_runs: int) -> str:
    if name == "val_loss" and not num_runs:
        last = newest.val_loss.values[-_NUM_VALIDATIONS:]
        if not np.isfinite(last).all():
            return f"the last validations of {newest.name!r} are not all finite"
        if len(last) < _NUM_VALIDATIONS:
            return f"{newest.name!r} has {len(last)} validations; {_NUM_VALIDATIONS} are needed"
        if not last.mean() > 0:
            return "only values above 0 can be judged"
    return f"{num_runs} runs can be compared with the newest one; {MIN_HISTORY} are needed"


def _describe_change(name: str, change: Change, runs: Sequence[RunEvidence]) -> HistoryChange:
    before, first = runs[change.position - 1], runs[change.position]
    hosts = [str(run.facts.get("host")) for run in (before, first) if run.facts.get("host")]
    return HistoryChange(
        name=name,
        title=_TITLES[name],
        verdict=_WORDS[name][0 if change.difference > 0 else 1],
        effect=math.expm1(change.difference),
        before=before.name,
        run=first.name,
        commit_before=before.facts.get("git.commit"),
        commit=first.facts.get("git.commit"),
        hosts=hosts if len(set(hosts)) > 1 else [],
        found_with=runs[change.found_at].name,
        is_new=change.found_at == len(runs) - 1,
    )


def _levels(name: str, runs: Sequence[RunEvidence]) -> list[tuple[RunEvidence, float]]:
    """Return the runs that can be compared with the last one, and their levels; none if the last one has none."""
    if name == "device_memory":
        runs_with_memory, is_over_ranks = memory_of(runs, "device_allocated")
        levels = (memory_level(run, "device_allocated", is_over_ranks=is_over_ranks) for run in runs_with_memory)
        run_levels = [(run, math.log(level)) for run, level in zip(runs_with_memory, levels, strict=True)]
    elif name == "step_time":
        run_levels = _speed_levels(runs)
    else:
        comparable = [run for run in runs if _has_same_loss(run, runs[-1])]
        run_levels = _loss_levels(comparable) if name == "train_loss" else _validation_levels(comparable)
    return run_levels if run_levels and run_levels[-1][0] is runs[-1] else []


def _has_same_loss(run: RunEvidence, other: RunEvidence) -> bool:
    """Return whether a change of the loss would be a change of the code: of the same model, on the same data."""
    comparability = check_comparable([run], [other])
    is_comparable = comparability.loss_refusal is None and comparability.val_loss_refusal is None
    return is_comparable and comparability.is_same_model


def _speed_levels(runs: Sequence[RunEvidence]) -> list[tuple[RunEvidence, float]]:
    usable = [run for run in runs if _covers(run.clock.steps, runs[-1].clock.steps)]
    usable = [run for run in usable if _is_steady(run)]
    if len(usable) < MIN_HISTORY:
        return []
    try:
        levels = block_levels(usable, steady_edges(usable))
    except TooShort:
        return []
    return list(zip(usable, np.median(levels - np.median(levels, axis=0), axis=1).tolist(), strict=True))


def _is_steady(run: RunEvidence) -> bool:
    try:
        steady_edges([run])
    except TooShort:
        return False
    return True


def _loss_levels(runs: Sequence[RunEvidence]) -> list[tuple[RunEvidence, float]]:
    usable = [run for run in runs if _covers(run.loss.steps, runs[-1].loss.steps)]
    if not usable:
        return []
    high = min(float(run.loss.steps[-1]) for run in usable)
    low = max(float(run.loss.steps[0]) for run in usable)
    run_levels = []
    for run in usable:
        tail = run.loss.between(high - _TAIL_SHARE * (high - low), high).finite
        if len(tail.steps) >= _MIN_TAIL and (mean := float(tail.values.mean())) > 0:
            run_levels.append((run, math.log(mean)))
    return run_levels


def _validation_levels(runs: Sequence[RunEvidence]) -> list[tuple[RunEvidence, float]]:
    """Return the logarithm of the mean of three validations: the last ones of the newest run, at the same steps."""
    latest_steps = runs[-1].val_loss.steps[-_NUM_VALIDATIONS:]
    run_levels = []
    for run in runs:
        values = run.val_loss.values[np.isin(run.val_loss.steps, latest_steps)]
        if len(values) == _NUM_VALIDATIONS and np.isfinite(values).all() and (mean := float(values.mean())) > 0:
            run_levels.append((run, math.log(mean)))
    return run_levels


def _covers(steps: Floats, needed_steps: Floats) -> bool:
    """Return whether a run has most of the steps of another one; a short one would shorten the comparison of all."""
    if len(steps) < 2 or len(needed_steps) < 2:
        return False
    common = min(steps[-1], needed_steps[-1]) - max(steps[0], needed_steps[0])
    return bool(common >= _MIN_COVERED * (needed_steps[-1] - needed_steps[0]))
