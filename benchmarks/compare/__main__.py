"""Measure how often comparisons are wrong, what they find, and how fast they are: `make bench-compare`.

Runs of public logs that repeat the same training are divided into two groups at random. Without a change, every verdict
*slower*, *faster*, *worse* or *better* is false. With the times or losses of one group multiplied, the share of
verdicts that find it is the power. Synthetic runs show how the result depends on the noise of a machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.compare.logs import read_loss_groups, read_speed_groups, synthetic_runs
from tachograph.comparison import (
    RunEvidence,
    SeriesPoints,
    StepClock,
    TooShort,
    compare_groups,
    judge,
    judge_losses,
    load_folders,
    measure_loss,
    measure_speed,
)
from tachograph.journal import RunFolder
from tachograph.records import encode

__all__: list[str] = []

_DESIGNS = ((1, 1), (3, 1), (5, 1), (2, 2), (3, 3), (5, 5))
_NUM_DRAWS = 100
_MAX_FALSE = 1.0
"""The budget of false *slower* or *worse* verdicts, in percent."""
Group = list[RunEvidence]
Judge = Callable[[Group, Group, float], str]


def _judge_speed(first: Group, second: Group, effect: float) -> str:
    slowed = [replace(run, clock=StepClock(run.clock.steps, (1 + effect) * run.clock.passed_s)) for run in second]
    found = measure_speed(first, slowed, is_same_machine=True, margin=0.01)
    return judge(found.first, found.second, found.noise, 0.01).direction


def _judge_loss(first: Group, second: Group, effect: float) -> str:
    curves = [run.loss for run in first]
    raised = [SeriesPoints(run.loss.steps, (1 + effect) * run.loss.values) for run in second]
    found = measure_loss(curves, raised)
    result = judge_losses(found.first, found.second, found, found.margin, 0.99)
    return "unknown" if result is None else result[0].direction


def _draws(
    random: np.random.Generator, groups: Sequence[Group], sizes: tuple[int, int]
) -> Iterator[tuple[Group, Group]]:
    usable = [group for group in groups if len(group) >= sum(sizes)]
    for group in usable:
        for _ in range(max(4, _NUM_DRAWS // len(usable))):
            order = random.permutation(len(group))[: sum(sizes)]
            chosen = [group[number] for number in order]
            yield chosen[: sizes[0]], chosen[sizes[0] :]


def _row(
    random: np.random.Generator, groups: Sequence[Group], sizes: tuple[int, int], decide: Judge, effect: float
) -> Counter[str]:
    found: Counter[str] = Counter()
    for first, second in _draws(random, groups, sizes):
        try:
            found[decide(first, second, effect)] += 1
        except TooShort:
            found["too short"] += 1
    return found


def _measure(title: str, groups: Sequence[Group], decide: Judge, effects: Sequence[float], console: Console) -> float:
    """Print a table; return the highest share of false *higher* verdicts in percent."""
    random = np.random.default_rng(20261117)
    table = Table(
        "runs", *(f"{100 * effect:+g} %" if effect else "no change" for effect in effects), title=title, box=None
    )
    worst = 0.0
    for sizes in _DESIGNS:
        cells = []
        for effect in effects:
            found = _row(random, groups, sizes, decide, effect)
            total = sum(found.values()) - found["too short"]
            if total < 10:
                cells.append("–")
                continue
            shares = {word: 100 * found[word] / total for word in ("higher", "lower", "equal")}
            if effect:
                cells.append(f"found {shares['higher']:.0f} %")
            else:
                worst = max(worst, shares["higher"])
                wrong = f"wrong {shares['higher']:.1f} / {shares['lower']:.1f} %"
                cells.append(f"{wrong}, equal {shares['equal']:.0f} %  (n={total})")
        table.add_row(f"{sizes[0]} v {sizes[1]}", *cells)
    console.print(table, "")
    return worst


def _measure_cost(console: Console, num_runs: int, num_steps: int) -> None:
    """Time a comparison of runs whose columns are cached, as the second look at them."""
    with tempfile.TemporaryDirectory(prefix="tachograph-bench-") as name:
        first = RunFolder(Path(name) / "run-0")
        _write_long_run(first, num_steps)
        load_folders([first])
        folders = [first]
        for number in range(1, num_runs):  # the same columns under other names
            path = Path(name) / f"run-{number}"
            shutil.copytree(first.path, path, copy_function=os.link)
            folders.append(RunFolder(path))
        start_s = time.perf_counter()
        evidence = [replace(run, run_id=run.name) for run in load_folders(folders)]
        loaded_s = time.perf_counter()
        compare_groups(evidence[: num_runs // 2], evidence[num_runs // 2 :])
        done_s = time.perf_counter()
    console.print(
        f"compare {num_runs} runs × {num_steps:,} steps from cached columns: {done_s - start_s:.2f} s "
        f"(reading {loaded_s - start_s:.2f} s); budget 2 s"
    )


def _write_long_run(folder: RunFolder, num_steps: int) -> None:
    folder.path.mkdir(parents=True)
    random = np.random.default_rng(1)
    times = 0.1 * np.exp(random.normal(0.0, 0.01, num_steps))
    losses = 2.0 + 4.0 * np.exp(-np.arange(num_steps) / 1e5) + random.normal(0.0, 0.1, num_steps)
    with folder.journal.open("wb") as file:
        file.write(
            encode({"event": "start", "time": 1.7e9, "run_name": folder.name, "run_id": "long", "schema": 1}) + b"\n"
        )
        for step, (took_s, now_s, loss) in enumerate(zip(times, 1.7e9 + np.cumsum(times), losses, strict=True)):
            values = {"train_loss": float(loss), "sec_per_step": float(took_s)}
            file.write(encode({"event": "step", "time": float(now_s), "global_step": step, **values}) + b"\n")
        file.write(encode({"event": "end", "time": 1.7e9 + float(times.sum()), "status": "finished"}) + b"\n")


def _main() -> int:
    console = Console(width=140)
    folder = Path(os.environ.get("TRAINING_LOGS", "../shared/data/training_logs"))
    worst = 0.0
    if folder.is_dir():
        speed_groups = read_speed_groups(folder)
        sizes = ", ".join(str(len(group)) for group in speed_groups)
        effects = (0.0, 0.02, 0.05, 0.1)
        worst = _measure(
            f"Speed, public logs of 8 GPUs (groups of {sizes})", speed_groups, _judge_speed, effects, console
        )
        same = [group for group in speed_groups if len(group) > 10 and all(len(run.loss.steps) for run in group)]
        effects = (0.0, 0.005, 0.01, 0.02)
        worst = max(worst, _measure("Training loss, same batches", same, _judge_loss, effects, console))
        loss_groups = read_loss_groups(folder)
        title = f"Training loss, other order of the data ({len(loss_groups)} groups)"
        worst = max(worst, _measure(title, loss_groups, _judge_loss, (0.0, 0.05, 0.1), console))
    else:
        console.print(f"no public logs in {folder}: set TRAINING_LOGS to their folder")
    random = np.random.default_rng(7)
    for spread, wander in ((0.005, 0.002), (0.01, 0.01), (0.03, 0.02), (0.07, 0.05)):
        runs = synthetic_runs(random, 40, spread, wander)
        title = f"Speed, synthetic: {100 * spread:g} % between runs, {100 * wander:g} % within"
        _measure(title, [runs], _judge_speed, (0.0, 0.02, 0.05, 0.1), console)
    _measure_cost(console, 20, 1_000_000)
    console.print(f"false slower or worse verdicts on public logs: at most {worst:.1f} % (budget {_MAX_FALSE:g} %)")
    return int(worst > _MAX_FALSE)


if __name__ == "__main__":
    sys.exit(_main())
