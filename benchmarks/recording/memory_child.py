"""A training loop of a million steps, with or without recording, that pauses now and then so its parent can sample it.

This module imports only what the loop needs: it is also the bare process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__: list[str] = []

NUM_STEPS = 1_000_000
SAMPLE_EVERY = 50_000


def _wait_for_sample() -> None:
    sys.stdout.write("sample\n")
    sys.stdout.flush()
    sys.stdin.readline()


def _loop(log: Callable[[dict[str, float], int], None]) -> None:
    _wait_for_sample()
    for step in range(1, NUM_STEPS + 1):
        loss = 10.0 / (step + 3)
        metrics = {
            "train_loss": loss,
            "lr": loss * 0.1,
            "grad_norm": loss * 0.2,
            "weight_norm": loss * 0.3,
            "perplexity": loss * 0.4,
            "accuracy": loss * 0.5,
            "tokens_per_sec": loss * 0.6,
            "data_wait_ms": loss * 0.7,
            "forward_ms": loss * 0.8,
            "backward_ms": loss * 0.9,
        }
        log(metrics, step)
        if step % SAMPLE_EVERY == 0:
            _wait_for_sample()


def _main() -> None:
    if sys.argv[1] == "bare":
        _loop(lambda _metrics, _step: None)
        return
    import tachograph

    with tachograph.init("bench", log_dir=".", console=False) as run:
        _loop(run.log)


if __name__ == "__main__":
    _main()
