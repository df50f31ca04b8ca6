"""Time of one log call in the calling thread, compared with appending a timestamped tuple to a list."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.child import run_as_child
from benchmarks.measure import Spread, append_tuples, bare_loop, make_rows, time_ns
from benchmarks.recording.subjects import SUBJECTS

__all__: list[str] = []

_BUDGET_S = 5.0
_MAX_ROUNDS = 200
_REST_S = 0.002


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Alternate between the bare loop, the floor and the subject; let the subject finish its work in between."""
    subject = SUBJECTS[name]
    rows = make_rows(subject.num_calls)
    costs_ns, ratios = [], []
    with subject.open(folder) as opened:
        step = 0
        deadline_s = time.monotonic() + _BUDGET_S
        while len(ratios) <= _MAX_ROUNDS and time.monotonic() < deadline_s:
            loop_ns = time_ns(bare_loop, rows, step)
            floor_ns = time_ns(append_tuples, rows, step) - loop_ns
            cost_ns = time_ns(opened.burst, rows, step) - loop_ns
            costs_ns.append(cost_ns)
            ratios.append(cost_ns / floor_ns)
            step += len(rows)
            opened.wait_until_written()
            time.sleep(_REST_S)
    # The first round imports, compiles and opens files.
    return {"cost_ns": Spread.of(costs_ns[1:]), "ratio": Spread.of(ratios[1:])}


if __name__ == "__main__":
    run_as_child(measure)
