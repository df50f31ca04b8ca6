"""Read groups of repeated runs from public training logs, and make synthetic ones."""

from __future__ import annotations

import csv
import gzip
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tachograph.comparison import RunEvidence, SeriesPoints, StepClock

__all__ = ["read_loss_groups", "read_speed_groups", "synthetic_runs"]

_MIN_RUNS = 3
_NEAR = 0.05
"""How far curves of repeats may be apart in the first part of a run."""


def _read(path: Path) -> Iterator[tuple[str, list[dict[str, str]]]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for run, rows in itertools.groupby(csv.DictReader(file), key=lambda row: row["run"]):
            yield run, list(rows)


def _points(rows: list[dict[str, str]], name: str) -> SeriesPoints:
    found = {int(row["step"]): float(row[name]) for row in rows if row.get(name)}
    return SeriesPoints(np.array(list(found), dtype=np.float64), np.array(list(found.values())))


def read_speed_groups(folder: Path) -> list[list[RunEvidence]]:
    """Return groups of runs of modded-nanogpt with the same number of steps and nearly the same time."""
    groups: defaultdict[tuple[int, int], list[RunEvidence]] = defaultdict(list)
    for run, rows in _read(folder / "modded_nanogpt.csv.gz"):
        passed = _points(rows, "train_time_ms")
        if len(passed.steps) < 1000:
            continue
        is_rising = np.concatenate([[True], np.diff(passed.values) > 0]) & (passed.values > 0)
        clock = StepClock(passed.steps[is_rising], passed.values[is_rising] / 1000)
        losses, validations = _points(rows, "train_loss"), _points(rows, "val_loss")
        evidence = RunEvidence(run, run, clock=clock, loss=losses, val_loss=validations, num_steps=len(rows))
        key = (int(passed.steps[-1]), round(float(np.log(clock.passed_s[-1])) / 0.02))
        groups[key].append(evidence)
    return [_without_copies(group) for group in groups.values() if len(_without_copies(group)) >= _MIN_RUNS]


def _without_copies(group: list[RunEvidence]) -> list[RunEvidence]:
    known = {(float(run.clock.passed_s[-1]), run.loss.values.tobytes()): run for run in reversed(group)}
    return list(known.values())[::-1]


def read_loss_groups(folder: Path) -> list[list[RunEvidence]]:
    """Return groups of runs of AlgoPerf with one submission and workload whose curves start alike."""
    kinds: Mapping[str, tuple[str, str]]
    with (folder / "workloads.csv").open(encoding="utf-8", newline="") as file:
        kinds = {row["run"]: (row["submission"], row["workload"]) for row in csv.DictReader(file)}
    candidates: defaultdict[tuple[str, str], list[RunEvidence]] = defaultdict(list)
    for run, rows in _read(folder / "algoperf.csv.gz"):
        losses = _points([row for row in rows if row["is_eval"] == "0"], "loss")
        if len(losses.finite.steps) >= 200 and np.isfinite(losses.values).all():
            candidates[kinds.get(run, ("", ""))].append(RunEvidence(run, run, loss=losses, num_steps=len(rows)))
    groups: list[list[RunEvidence]] = []
    for runs in candidates.values():
        found: list[list[RunEvidence]] = []
        for evidence in runs:
            alike = (group for group in found if all(_start_alike(evidence.loss, other.loss) for other in group))
            near = next(alike, None)
            if near is None:
                found.append([evidence])
            else:
                near.append(evidence)
        groups += [group for group in found if len(group) >= 2]
    return groups


def _start_alike(first: SeriesPoints, second: SeriesPoints) -> bool:
    high = min(first.steps[-1], second.steps[-1])
    if max(first.steps[-1], second.steps[-1]) > 1.5 * high:
        return False
    edges = np.linspace(0.05 * high, 0.6 * high, 12)
    a, b = (np.array(_means(curve, edges)) for curve in (first, second))
    return bool(np.isfinite(a).all() and np.isfinite(b).all() and (np.abs(np.log(b / a)) < _NEAR).all())


def _means(curve: SeriesPoints, edges: np.ndarray) -> list[float]:
    parts = (curve.between(low, high).values for low, high in itertools.pairwise(edges))
    return [float(part.mean()) if len(part) and part.mean() > 0 else float("nan") for part in parts]


def synthetic_runs(random: np.random.Generator, count: int, spread: float, wander: float) -> list[RunEvidence]:
    """Make runs of 400 steps of about 0.2 s that differ by a spread, and wander within; 1 % of steps take 4 times."""
    runs = []
    for number in range(count):
        level = random.normal(0.0, spread)
        noise = np.empty(400)
        state = 0.0
        for step in range(400):
            state = 0.7 * state + random.normal(0.0, wander * np.sqrt(1 - 0.7**2))
            noise[step] = state
        each = 0.2 * np.exp(level + noise + random.normal(0.0, 0.02, 400))
        each[random.random(400) < 0.01] *= 4
        passed = np.concatenate([[0.0], np.cumsum(each)])
        runs.append(RunEvidence(f"synthetic {number}", clock=StepClock(np.arange(401.0), passed)))
    return runs
