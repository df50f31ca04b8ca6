"""What histograms of gradients and weights cost a training loop: ``python -m benchmarks.media.watch [--device cuda]``.

A model of transformer layers trains in turns without `watch`, with it, and with `histograms="both"`. A step that is
sampled is compared with a bare step, and the cost is divided over the 1,000 steps between two samplings. On a GPU the
time of the training thread is measured as well, without waiting for the device: that is how long the loop is held up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from typing import Any

import torch

import tachograph as tacho

EVERY = 1_000
NUM_ROUNDS = 15


class Loop:
    """A model of some layers, and one step of its training."""

    def __init__(self, device: str, width: int, num_layers: int) -> None:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(8, 128, width, device=device)
        self.is_cuda = device == "cuda"

    def step(self) -> tuple[float, float]:
        """Return the time of a step, and the time until the training thread could go on."""
        self._wait()
        started_s = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        launched_s = time.perf_counter()
        self._wait()
        return time.perf_counter() - started_s, launched_s - started_s

    def _wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=0, help="by default 256 on a CPU and 1024 on a GPU")
    parser.add_argument("--layers", type=int, default=0, help="by default 4 on a CPU and 24 on a GPU")
    arguments = parser.parse_args()
    is_cuda = arguments.device == "cuda"
    loop = Loop(
        arguments.device, arguments.width or (1024 if is_cuda else 256), arguments.layers or (24 if is_cuda else 4)
    )
    num_tensors = sum(1 for _ in loop.model.parameters())
    num_values = sum(parameter.numel() for parameter in loop.model.parameters())
    write = sys.stdout.write
    write(f"{arguments.device}: {num_tensors} tensors, {num_values / 1e6:.1f} million parameters\n")
    options = {"console": False, "code": False, "system_interval_s": 0}
    with tempfile.TemporaryDirectory() as folder, tacho.init("bench", log_dir=folder, **options) as run:
        measure(loop, run, write)


def measure(loop: Loop, run: tacho.Run, write: Any) -> None:
    """Print the cost of a step with everything sampled, beside a bare one, measured in turns."""
    for _ in range(3):
        loop.step()
    bare, sampled = [], []
    for number in range(NUM_ROUNDS + 1):
        bare.append(loop.step())
        with tacho.watch(loop.model, loop.optimizer, histograms="both", every=1):
            sampled.append(loop.step())
        run.flush(60)
        if number == 0:  # loads kernels, and starts the media thread
            bare.clear()
            sampled.clear()
    for title, part in (("step", 0), ("training thread", 1)):
        bare_s = statistics.median(times[part] for times in bare)
        ratio = statistics.median(with_[part] / without[part] for with_, without in zip(sampled, bare, strict=True))
        extra_s = statistics.median(with_[part] - without[part] for with_, without in zip(sampled, bare, strict=True))
        write(
            f"{title:16} bare {bare_s * 1e3:8.2f} ms   sampled ×{ratio:.2f} (+{extra_s * 1e3:.2f} ms)   "
            f"every {EVERY} steps: +{100 * extra_s / bare_s / EVERY:.3f} %\n"
        )


if __name__ == "__main__":
    main()
