"""What `kill -9` costs: the time between the last record in the journal and the kill, in loops that only log."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.child import ChildError, child_environment, temporary_folder
from tachograph.records import decode

__all__ = ["LOOPS", "measure_kill"]

LOOPS = {
    "10 metrics": ("10", "plain"),
    "10 metrics in an iteration": ("10", "spans"),
    "3,000 metrics": ("3000", "plain"),
}
_TAIL_BYTES = 4_000_000
_START = """
import sys, time
import tachograph
from tachograph.spans import training_iteration, training_loop

row = {f"metric{number}": number * 1.5 for number in range(int(sys.argv[1]))}
run = tachograph.init("x", log_dir=".", git=False, console=False)
print("ready", flush=True)
step = 0
if sys.argv[2] == "plain":
    while True:
        run.log({**row, "wall_s": time.time()}, step=step)
        step += 1
with training_loop(train_iterations_start=0):
    while True:
        with training_iteration():
            run.log({**row, "wall_s": time.time()}, step=step)
        step += 1
"""


def measure_kill(arguments: tuple[str, str], num_kills: int) -> float:
    """Start and kill the loop several times; return the most seconds lost.

    Raises:
        ChildError: if the loop does not start.
    """
    instants = random.Random(0)
    return max(_lost_s(arguments, instants.uniform(1.5, 4.0)) for _ in range(num_kills))


def _lost_s(arguments: tuple[str, str], after_s: float) -> float:
    with temporary_folder() as folder:
        command = [sys.executable, "-c", _START, *arguments]
        with subprocess.Popen(
            command, cwd=folder, env=child_environment(folder), stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            if not child.stdout.readline():
                raise ChildError("the loop did not start")
            time.sleep(after_s)
            child.kill()
            killed_s = time.time()
        with open(Path(folder, "x", "metrics.jsonl"), "rb") as journal:
            journal.seek(max(journal.seek(0, 2) - _TAIL_BYTES, 0))
            lines = journal.read().splitlines(keepends=True)[1:]
        logged_s = [decode(line).get("wall_s", 0.0) for line in lines if line.endswith(b"\n")]
        return killed_s - max(logged_s, default=0.0)
