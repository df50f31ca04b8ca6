"""The slow-down of the first steps of a plain loop: ``python -m benchmarks.recording.first_steps``.

The loop is recorded with `watch` and `track`.
Each child process trains the same small model. After some bare steps it starts to record, or does not, and times
blocks of steps from the very first one on. Starting the run itself is not timed: it happens before the loop. Children
with and without recording alternate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch

import tachograph as tacho
from benchmarks.measure import Spread
from benchmarks.recording.overhead import small_batch, small_model

__all__: list[str] = []

_NUM_BARE = 300
_BLOCKS = (100, 100, 100, 300, 600, 1200)
"""Steps in each timed block."""


def _train(device: str, *, is_recorded: bool) -> None:
    """Print the durations of the blocks, in seconds, as JSON."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch = small_model(device), small_batch(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    durations_s: list[float] = []

    def batches(num_steps: int) -> Iterator[Any]:
        for _ in range(num_steps):
            yield batch

    def step(inputs: Any) -> None:
        loss = model(inputs).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def synchronise() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for inputs in batches(_NUM_BARE):
        step(inputs)
    loader: Any = batches(sum(_BLOCKS))
    with tempfile.TemporaryDirectory() as folder:
        if is_recorded:
            run = tacho.init("first-steps", log_dir=folder, console=False)
            tacho.watch(model, optimizer)
            loader = tacho.track(loader)
        iterator = iter(loader)
        for num_steps in _BLOCKS:
            synchronise()
            start_s = time.perf_counter()
            for _ in range(num_steps):
                step(next(iterator))
            synchronise()
            durations_s.append(time.perf_counter() - start_s)
        if is_recorded:
            run.finish()
            history = tacho.read(run)
            changes = [
                (change["values_every"], change["overhead"]) for change in history.latest("event", "sampling_changed")
            ]
            print(f"sampling: {history.sampling or 'everything'}; {changes}", file=sys.stderr)
    print(json.dumps(durations_s))


def _measure(device: str, num_rounds: int) -> None:
    durations_s: dict[bool, list[list[float]]] = {False: [], True: []}
    for number in range(num_rounds):
        for is_recorded in (False, True) if number % 2 else (True, False):
            command = [sys.executable, "-m", __spec__.name, "--device", device, "--child", str(int(is_recorded))]
            out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            durations_s[is_recorded].append(json.loads(out.splitlines()[-1]))
    first = 1
    for at, num_steps in enumerate(_BLOCKS):
        bare, recorded = (Spread.of([child[at] for child in durations_s[kind]]) for kind in (False, True))
        print(
            f"steps {first:5} to {first + num_steps - 1:5}: {1000 * bare.median / num_steps:.2f} ms bare, "
            f"{recorded.median / bare.median - 1:+.1%} recorded "
            f"(quartiles {recorded.low / bare.median - 1:+.1%} … {recorded.high / bare.median - 1:+.1%}; "
            f"bare {bare.low / bare.median - 1:+.1%} … {bare.high / bare.median - 1:+.1%})",
            flush=True,
        )
        first += num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how much slower the first steps are with recording.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        _train(options.device, is_recorded=bool(options.child))
    else:
        _measure(options.device, options.rounds)


if __name__ == "__main__":
    main()
