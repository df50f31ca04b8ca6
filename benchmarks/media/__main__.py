"""What `log` of 8 pictures of 512 × 512 costs its caller, beside copying them. Prints ratios.

Run it with ``python -m benchmarks.media``. W&B and TensorBoard are compared if they are installed.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np

import tachograph as tacho

NUM_ROUNDS = 9
PICTURES = [np.random.default_rng(seed).integers(0, 256, (512, 512, 3), dtype=np.uint8) for seed in range(8)]


def copy_pictures() -> list[np.ndarray]:
    return [picture.copy() for picture in PICTURES]


def ratio(call: Callable[[], object], pause: Callable[[], object] = lambda: None) -> float:
    """Return the time of a call beside a copy of the pictures, both measured in turn: the machine may be busy."""
    ratios = []
    for _ in range(NUM_ROUNDS):
        times_s = []
        for measured_call in (copy_pictures, call):
            started_s = time.perf_counter()
            measured_call()
            times_s.append(time.perf_counter() - started_s)
        ratios.append(times_s[1] / times_s[0])
        pause()
    return statistics.median(ratios)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with tacho.init("bench", log_dir=folder, console=False, code=False) as run:
            run.log({"first": tacho.Text("starts the thread")})
            run.flush()
            log_ratio = ratio(
                lambda: run.log({"samples": [tacho.Image(picture) for picture in PICTURES]}), lambda: run.flush(60)
            )
        print(f"tachograph: {log_ratio:.1f}", flush=True)
        try:
            from torch.utils.tensorboard import SummaryWriter

            batch = np.stack(PICTURES)
            with SummaryWriter(folder) as writer:
                tensorboard_ratio = ratio(lambda: writer.add_images("samples", batch, dataformats="NHWC"))
            print(f"tensorboard: {tensorboard_ratio:.0f}", flush=True)
        except ImportError:
            pass
        try:
            os.environ["WANDB_MODE"] = "offline"
            import wandb

            other = wandb.init(dir=folder, settings=wandb.Settings(silent=True))
            wandb_ratio = ratio(lambda: other.log({"samples": [wandb.Image(picture) for picture in PICTURES]}))
            print(f"wandb: {wandb_ratio:.0f}")
            other.finish()
        except ImportError:
            pass


if __name__ == "__main__":
    main()
