"""Grokfast: the time that the filter adds to a training step, and its memory.

    python -m benchmarks.plugins.grokfast [--device cuda] [--rounds 30]

Steps with and without the filter alternate in one process; ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.plugins._models import small_llama
from tachograph.plugins.grokfast import GrokfastOptions, GrokfastPlugin

SIZES = {  # hidden size, layers, batch, tokens
    "cpu": (256, 4, 4, 64),
    "cuda": (2048, 16, 8, 1024),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SIZES), default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    hidden, layers, batch, tokens = SIZES[options.device]
    model = small_llama(hidden, layers).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 1024, (batch, tokens), device=options.device)
    plugin = GrokfastPlugin()
    plugin.options = GrokfastOptions()

    def step(is_filtered: bool) -> float:
        if options.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.device == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if is_filtered:
            plugin.filter(model)
        optimizer.step()
        optimizer.zero_grad()
        if options.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(3):
        step(True)
        step(False)
    pairs = [(step(False), step(True)) for _ in range(options.rounds)]
    low, ratio, high = statistics.quantiles([after / before for before, after in pairs], n=4)
    bare_ms = statistics.median(before for before, _ in pairs) * 1e3
    parameters = sum(value.numel() for value in model.parameters())
    size = sum(value.numel() * value.element_size() for value in plugin.state_dict()["averages"].values())
    print(f"training step, {parameters / 1e6:.0f} M parameters, {batch * tokens} tokens, AdamW, {options.device}")
    print(f"  without {bare_ms:.1f} ms; with the filter {ratio:.3f}x   [{low:.3f}, {high:.3f}]")
    print(f"  averages: {size / 2**20:.0f} MiB, {size / (4 * parameters):.2f}x of the 32-bit parameters")


if __name__ == "__main__":
    main()
