"""A million iterations of one training loop at full speed: the time of the first and of the last ones."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import psutil

import tachograph as tacho
from benchmarks.child import run_as_child
from benchmarks.measure import Rows, append_tuples, bare_loop, make_rows, time_ns
from benchmarks.spans.calls import iterations

__all__ = ["NUM_IN_BLOCK"]

NUM_IN_BLOCK = 10_000
_NUM_BLOCKS = 100
_MIB = 1 << 20


def measure(folder: Path) -> dict[str, Any]:
    """Time every block while the writer works, and the floor before and after while it is idle."""
    rows = make_rows(NUM_IN_BLOCK)
    process = psutil.Process()
    costs_ns, sizes_mib = [], []
    with tacho.init("bench", log_dir=folder, console=False) as run:
        run.flush()
        floor_first_ns = _floor_ns(rows)
        with tacho.training_loop(train_iterations_start=0):
            for block in range(_NUM_BLOCKS):
                loop_ns = time_ns(bare_loop, rows, 0)
                costs_ns.append(time_ns(iterations, rows, block * NUM_IN_BLOCK) - loop_ns)
                sizes_mib.append(process.memory_info().rss / _MIB)
        run.flush()
        floor_last_ns = _floor_ns(rows)
        losses = run.backend.losses
    return {
        "first_ns": costs_ns[0],
        "first_ratio": costs_ns[0] / floor_first_ns,
        "last_ns": costs_ns[-1],
        "last_ratio": costs_ns[-1] / floor_last_ns,
        "growth_mib": sizes_mib[-1] - sizes_mib[_NUM_BLOCKS // 10 - 1],
        "num_lost": losses.num_records,
    }


def _floor_ns(rows: Rows) -> float:
    return statistics.median(time_ns(append_tuples, rows, 0) - time_ns(bare_loop, rows, 0) for _ in range(5))


if __name__ == "__main__":
    run_as_child(measure)
