"""Measure the error of the shares of config keys: `python -m benchmarks.compare.importance`.

For each function with known total Sobol indices and number of runs: how often there is no answer, the mean and largest
error of the shares where there is one, how often the 95 % intervals contain the index, and the processor time.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.compare.functions import FUNCTIONS
from tachograph.catalog import explain_results

__all__: list[str] = []

_NUM_TRIALS = 20
_MAX_CPU_S = 1.0


def _main() -> int:
    table = Table("function", "runs", "no answer", "mean error", "largest error", "in interval", "s", box=None)
    for title, draw in FUNCTIONS.items():
        for num_runs in (8, 20, 60, 200):
            errors, inside = [], []
            num_silent = 0
            start_s = time.process_time()
            num_trials = _NUM_TRIALS if num_runs < 200 else _NUM_TRIALS // 4
            for seed in range(num_trials):
                columns, results, shares = draw(np.random.default_rng(seed), num_runs)
                ranking = explain_results(columns, results)
                num_silent += ranking.reason is not None
                for key in ranking.keys:
                    expected = shares.get(key.key, 0.0)
                    errors.append(abs(key.share - expected))
                    inside.append(key.low - 0.01 <= expected <= key.high + 0.01)
            cpu_s = (time.process_time() - start_s) / num_trials
            texts = [f"{np.mean(errors):.3f}", f"{max(errors):.3f}", f"{100 * np.mean(inside):.0f} %"] if errors else []
            table.add_row(title, str(num_runs), f"{num_silent} of {num_trials}", *(texts or ["–"] * 3), f"{cpu_s:.2f}")
    console = Console(width=120)
    console.print(table)
    random = np.random.default_rng(0)
    values = random.uniform(size=(200, 30))
    columns = {f"x{number}": column.tolist() for number, column in enumerate(values.T)}
    start_s = time.process_time()
    explain_results(columns, (values[:, 0] - 0.5) ** 2 + 0.3 * values[:, 1] + random.normal(0.0, 0.05, 200))
    cpu_s = time.process_time() - start_s
    console.print(f"200 runs × 30 keys: {cpu_s:.2f} s; budget {_MAX_CPU_S:g} s")
    return int(cpu_s > _MAX_CPU_S)


if __name__ == "__main__":
    sys.exit(_main())
