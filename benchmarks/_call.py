"""What one call costs the thread that makes it, against appending a timestamped tuple to a list."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks._children import answer
from benchmarks._measure import Spread, append_tuples, bare_loop, make_rows, time_ns
from benchmarks._subjects import SUBJECTS

__all__: list[str] = []

_BUDGET_S = 5.0
_MOST_ROUNDS = 200
_REST_S = 0.002


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Take turns: the loop alone, the floor, the subject; what the subject leaves to do is waited for in between."""
    subject = SUBJECTS[name]
    rows = make_rows(subject.num_calls)
    costs_ns, ratios = [], []
    with subject.open(folder) as opened:
        step = 0
        deadline_s = time.monotonic() + _BUDGET_S
        while len(ratios) <= _MOST_ROUNDS and time.monotonic() < deadline_s:
            loop_ns = time_ns(bare_loop, rows, step)
            floor_ns = time_ns(append_tuples, rows, step) - loop_ns
            cost_ns = time_ns(opened.burst, rows, step) - loop_ns
            costs_ns.append(cost_ns)
            ratios.append(cost_ns / floor_ns)
            step += len(rows)
            opened.settle()
            time.sleep(_REST_S)
    # The first round is the one that imports, compiles and opens things.
    return {"cost_ns": Spread.of(costs_ns[1:]), "ratio": Spread.of(ratios[1:])}


if __name__ == "__main__":
    answer(measure)
