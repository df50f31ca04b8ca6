"""A trainer that logs at a steady pace until it is stopped. `train_loss` counts the steps."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.dashboard.data import start_line
from benchmarks.measure import make_rows

__all__ = ["FIRST_LOSS"]

FIRST_LOSS = 1000
"""The loss at step 0; it grows by one per step."""


def _row(step: int) -> dict[str, float]:
    return {**make_rows(1)[0], "train_loss": FIRST_LOSS + step}


def _recorded(logs: str, name: str, pause_s: float, flush_s: float) -> None:
    """Log through the recorder."""
    import tachograph

    with tachograph.init(name, log_dir=logs, console=False, git=False, flush_interval_s=flush_s) as run:
        step, due_s = 0, time.monotonic()
        while True:
            run.log(_row(step), step=step)
            step, due_s = step + 1, due_s + pause_s
            time.sleep(max(0.0, due_s - time.monotonic()))


def _written(logs: str, name: str, pause_s: float) -> None:
    """Append lines directly to the journal, so readers can see them immediately."""
    from tachograph.journal import this_process

    folder = Path(logs, name)
    folder.mkdir(parents=True)
    journal = os.open(folder / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(journal, start_line(name, time.time(), process=msgspec.to_builtins(this_process())))
    step, due_s = 0, time.monotonic()
    while True:
        row = _row(step)
        record = {"event": "step", "time": time.time(), "global_step": step, **row}
        os.write(journal, msgspec.json.encode(record) + b"\n")
        step, due_s = step + 1, due_s + pause_s
        time.sleep(max(0.0, due_s - time.monotonic()))


def _main() -> None:
    mode, logs, name, pause_s, *rest = sys.argv[1:]
    if mode == "recorded":
        _recorded(logs, name, float(pause_s), float(rest[0]))
    else:
        _written(logs, name, float(pause_s))


if __name__ == "__main__":
    _main()
