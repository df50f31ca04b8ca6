"""Count right and wrong verdicts beside Welch's test and a bootstrap: `python -m benchmarks.compare.trials`.

Every cell has 200 comparisons, fewer where runs are too short. The groups of public logs, and the curves that synthetic
seeds are made of, are divided into two halves by their position, so that a limit that fits one of them only shows.
*Real seeds* are repeats in public logs, drawn at random. *Synthetic seeds* are a public curve whose deviations from its
trend are shuffled in blocks, with a level of its own for each run, normal or with heavy tails. `+ n` are earlier runs.
*Different trainings* have different configs, of which the seeds of one differ far more than those of the other.
Welch's test and the bootstrap use the same final losses of runs, or the single losses between two runs, with 99 %.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.compare.logs import read_loss_groups, read_speed_groups, synthetic_runs
from tachograph.comparison import RunEvidence, SeriesPoints, StepClock, compare_groups, student_quantile

__all__: list[str] = []

_NUM_TRIALS = 200
_NUM_RESAMPLES = 200
Design = tuple[int, int, int]
"""The sizes of both groups, and the number of earlier runs."""
_DESIGNS: tuple[Design, ...] = (
    *((1, 1, 0), (1, 1, 2), (1, 1, 4), (2, 1, 0), (3, 1, 0), (5, 1, 0), (2, 2, 0), (3, 2, 0), (3, 3, 0), (5, 5, 0)),
)
_FEW_DESIGNS: tuple[Design, ...] = ((1, 1, 0), (1, 1, 5), (3, 1, 0), (2, 2, 0), (3, 3, 0), (5, 5, 0))
_BLOCK = 10
_MAX_FALSE = 2.2
"""The most false verdicts of one kind in a cell, in percent: with a rate of 0.5 %, 4 of 190 happen in some cells."""
Trial = tuple[list[RunEvidence], list[RunEvidence], list[RunEvidence]]
"""Both groups, and earlier runs."""
Draw = Callable[[np.random.Generator, Design, float], Iterator[Trial]]


# Tests to compare with ------------------------------------------------------------------------------------------------


def _samples(first: Sequence[RunEvidence], second: Sequence[RunEvidence]) -> tuple[np.ndarray, np.ndarray]:
    """Return the final losses of runs as logarithms; of two single runs, their losses over the last steps."""
    curves = [run.loss for run in (*first, *second)]
    low, high = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    tails = [curve.between(high - 0.1 * (high - low), high).values for curve in curves]
    if len(curves) == 2:
        return np.log(np.maximum(tails[0], 1e-9)), np.log(np.maximum(tails[1], 1e-9))
    levels = np.log([tail.mean() for tail in tails])
    return levels[: len(first)], levels[len(first) :]


def _welch(first: np.ndarray, second: np.ndarray) -> str:
    if min(len(first), len(second)) < 2:
        return "unknown"
    errors = [float(side.var(ddof=1)) / len(side) for side in (first, second)]
    if not sum(errors):
        return "unknown"
    degrees = sum(errors) ** 2 / sum(e**2 / (len(s) - 1) for e, s in zip(errors, (first, second), strict=True))
    t = (second.mean() - first.mean()) / np.sqrt(sum(errors))
    is_apart = abs(t) > student_quantile(0.995, degrees)
    return ("worse" if t > 0 else "better") if is_apart else "unknown"


def _bootstrap(random: np.random.Generator, first: np.ndarray, second: np.ndarray) -> str:
    means = [side[random.integers(0, len(side), (_NUM_RESAMPLES, len(side)))].mean(axis=1) for side in (first, second)]
    low, high = np.quantile(means[1] - means[0], (0.005, 0.995))
    return "worse" if low > 0 else "better" if high < 0 else "unknown"


# Runs -----------------------------------------------------------------------------------------------------------------


def _raise(runs: Sequence[RunEvidence], effect: float) -> list[RunEvidence]:
    return [replace(run, loss=SeriesPoints(run.loss.steps, (1 + effect) * run.loss.values)) for run in runs]


def _divide(runs: list[RunEvidence], sizes: Design, effect: float) -> Trial:
    first, rest = runs[: sizes[0]], runs[sizes[0] :]
    return first, _raise(rest[: sizes[1]], effect), rest[sizes[1] :]


def _draw_real(groups: Sequence[list[RunEvidence]]) -> Draw:
    def draw(random: np.random.Generator, sizes: Design, effect: float) -> Iterator[Trial]:
        usable = [group for group in groups if len(group) >= sum(sizes)]
        for number in range(_NUM_TRIALS if usable else 0):
            group = usable[number % len(usable)]
            chosen = [group[each] for each in random.permutation(len(group))[: sum(sizes)]]
            yield _divide(chosen, sizes, effect)

    return draw


def _draw_synthetic(curves: Sequence[SeriesPoints], spread: float, *, is_heavy: bool = False) -> Draw:
    def make(random: np.random.Generator, curve: SeriesPoints, name: str) -> RunEvidence:
        logs = np.log(curve.values)
        width = max(5, len(logs) // 20) | 1
        padded = np.pad(logs, width // 2, mode="edge")
        trend = np.convolve(padded, np.ones(width) / width, mode="valid")
        rest = logs - trend
        starts = random.integers(0, len(rest) - _BLOCK, len(rest) // _BLOCK + 1)
        shuffled = (rest[starts[:, None] + np.arange(_BLOCK)]).ravel()[: len(rest)]
        values = np.exp(trend + shuffled)
        first, last = curve.steps[0], curve.steps[-1]
        final_loss = SeriesPoints(curve.steps, values).between(last - 0.1 * (last - first), last).values.mean()
        level = random.standard_t(3) / np.sqrt(3) if is_heavy else random.normal()
        # Nothing but this level separates the final losses of runs.
        return RunEvidence(name, name, loss=SeriesPoints(curve.steps, values * np.exp(spread * level) / final_loss))

    def draw(random: np.random.Generator, sizes: Design, effect: float) -> Iterator[Trial]:
        for number in range(_NUM_TRIALS):
            curve = curves[number % len(curves)]
            runs = [make(random, curve, f"run {each}") for each in range(sum(sizes))]
            yield _divide(runs, sizes, effect)

    return draw


def _draw_trainings(curves: Sequence[SeriesPoints], spread: float, other_spread: float) -> Draw:
    """Draw two trainings whose seeds differ by other amounts; every second earlier run is one of each."""
    draws = [_draw_synthetic(curves, each) for each in (spread, other_spread)]

    def draw(random: np.random.Generator, sizes: Design, effect: float) -> Iterator[Trial]:
        for first, second in zip(draws[0](random, sizes, effect), draws[1](random, sizes, effect), strict=True):
            a, b = (
                [
                    [replace(run, name=f"{name}-{run.name}", run_id="", config={"width": name}) for run in runs]
                    for runs in trial
                ]
                for name, trial in (("small", first), ("large", second))
            )
            yield a[0], b[1], [*a[2][::2], *b[2][1::2]]

    return draw


# Tables ---------------------------------------------------------------------------------------------------------------


def _count(random: np.random.Generator, trials: Iterator[Trial]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {"tacho": Counter(), "Welch": Counter(), "bootstrap": Counter()}
    for first, second, earlier in trials:
        metric = compare_groups(first, second, earlier=earlier).metric("train_loss")
        if metric is None or "are needed" in metric.reason:
            continue
        counts["tacho"][metric.verdict] += 1
        samples = _samples(first, second)
        counts["Welch"][_welch(*samples)] += 1
        counts["bootstrap"][_bootstrap(random, *samples)] += 1
    return counts


def _loss_table(
    console: Console, title: str, halves: Sequence[Draw], effects: Sequence[float], designs: Sequence[Design]
) -> float:
    """Print verdicts on losses; return the largest share of one false verdict by `tacho compare`."""
    columns = [f"{name}, half {half}" for half in (1, 2) for name in ("tacho", "Welch", "bootstrap")]
    table = Table("runs", "change", *columns, title=f"{title} (worse / better, tacho also equal, in %)", box=None)
    most = 0.0
    for sizes in designs:
        for effect in effects:
            cells = []
            for draw in halves:
                random = np.random.default_rng(20261118)
                for name, count in _count(random, draw(random, sizes, effect)).items():
                    total = sum(count.values())
                    if total < _NUM_TRIALS // 2:
                        cells.append("–")
                        continue
                    worse, better, equal = (100 * count[word] / total for word in ("worse", "better", "equal"))
                    cells.append(f"{worse:.1f} / {better:.1f}" + (f", {equal:.0f}" if name == "tacho" else ""))
                    if name == "tacho":
                        most = max(most, better if effect else max(worse, better))
            if set(cells) != {"–"}:
                runs = f"{sizes[0]} v {sizes[1]}" + (f" + {sizes[2]}" if sizes[2] else "")
                table.add_row(runs, f"{100 * effect:+g} %" if effect else "none", *cells)
    console.print(table, "")
    return most


def _slow_down(runs: Sequence[RunEvidence], effect: float) -> list[RunEvidence]:
    return [replace(run, clock=StepClock(run.clock.steps, (1 + effect) * run.clock.passed_s)) for run in runs]


_SPEED_CASES: tuple[tuple[Design, int, str], ...] = (
    ((1, 1, 0), 0, ""),
    ((3, 1, 0), 0, ""),
    ((3, 3, 0), 0, ""),
    ((1, 1, 10), 0, ""),
    ((1, 1, 10), 1, "anywhere"),
    ((1, 1, 10), 2, "anywhere"),
    ((1, 1, 10), 2, "at the end"),
    ((1, 1, 10), 3, "anywhere"),
    ((1, 1, 10), 5, "at the end"),
)
"""The design, the number of earlier runs that were 10 % slower, and where they are."""


def _speed_table(console: Console) -> float:
    """Print verdicts on speed, with earlier runs of which some were slow; return the largest share of false ones."""
    random = np.random.default_rng(7)
    table = Table("runs", "earlier runs", "change", "slower / faster / equal in %", title="Speed", box=None)
    most = 0.0
    runs = synthetic_runs(random, 120, 0.005, 0.002)
    for sizes, num_slow, where in _SPEED_CASES:
        for effect in (0.0, 0.1, 0.2):
            count: Counter[str] = Counter()
            for _ in range(_NUM_TRIALS):
                chosen = [runs[each] for each in random.permutation(len(runs))[: sum(sizes)]]
                first, second, earlier = chosen[: sizes[0]], chosen[sizes[0] : sizes[0] + sizes[1]], chosen[-sizes[2] :]
                order = range(sizes[2])[::-1] if where == "at the end" else random.permutation(sizes[2])
                slow = {int(number) for number in order[:num_slow]}
                earlier = [
                    replace(_slow_down([run], 0.1 * (number in slow))[0], started=float(number))
                    for number, run in enumerate(earlier if sizes[2] else [])
                ]
                metric = compare_groups(first, _slow_down(second, effect), earlier=earlier).metric("step_time")
                assert metric is not None
                count[metric.verdict] += 1
            slower, faster, equal = (100 * count[word] / _NUM_TRIALS for word in ("slower", "faster", "equal"))
            most = max(most, faster if effect else max(slower, faster))
            texts = f"{sizes[0]} v {sizes[1]}", f"{sizes[2]}" + (f", {num_slow} slow, {where}" if num_slow else "")
            table.add_row(*texts, f"{100 * effect:+g} %", f"{slower:.1f} / {faster:.1f} / {equal:.1f}")
    console.print(table, "")
    return most


def _main() -> int:
    console = Console(width=150)
    most = _speed_table(console)
    folder = Path(os.environ.get("TRAINING_LOGS", "../shared/data/training_logs"))
    if not folder.is_dir():
        console.print(f"no public logs in {folder}: set TRAINING_LOGS to their folder")
        return int(most > _MAX_FALSE)
    groups = read_loss_groups(folder)
    real = [_draw_real(groups[half::2]) for half in (0, 1)]
    most = max(most, _loss_table(console, f"Real seeds, {len(groups)} groups", real, (0.0, 0.02, 0.1), _DESIGNS))
    nano = [
        group for group in read_speed_groups(folder) if len(group) > 10 and all(len(run.loss.steps) for run in group)
    ]
    same = [_draw_real([group[half::2] for group in nano]) for half in (0, 1)]
    most = max(most, _loss_table(console, "Real seeds, same batches", same, (0.0, 0.02), _DESIGNS))
    curves = [
        group[0].loss for group in groups if (group[0].loss.values > 0).all() and len(group[0].loss.steps) < 3_000
    ]
    for spread, is_heavy in ((0.001, False), (0.001, True), (0.01, False), (0.01, True), (0.05, False)):
        halves = [_draw_synthetic(curves[half::2], spread, is_heavy=is_heavy) for half in (0, 1)]
        title = f"Synthetic seeds, {100 * spread:g} % apart{', heavy tails' if is_heavy else ''}"
        most = max(most, _loss_table(console, title, halves, (0.0, 0.02), _FEW_DESIGNS))
    for spreads in ((0.001, 0.02), (0.02, 0.001), (0.01, 0.03)):
        halves = [_draw_trainings(curves[half::2], *spreads) for half in (0, 1)]
        title = f"Different trainings, seeds {100 * spreads[0]:g} % and {100 * spreads[1]:g} % apart"
        designs: tuple[Design, ...] = ((1, 1, 0), (1, 1, 10), (3, 1, 0), (5, 1, 10), (2, 2, 0), (3, 3, 0), (5, 5, 0))
        most = max(most, _loss_table(console, title, halves, (0.0, 0.1), designs))
    console.print(f"largest share of one false verdict in a cell: {most:.1f} %; budget {_MAX_FALSE:g} %")
    return int(most > _MAX_FALSE)


if __name__ == "__main__":
    sys.exit(_main())
