"""Sparse fine-tuning: the time that restoring zeros adds to a training step, and the size of compressed models.

Run `python -m benchmarks.plugins.llm_compressor`, with `--device cuda` on a GPU. The variants alternate in one process,
so that ratios hold on a machine whose speed changes; each is the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import transformers

from benchmarks.plugins._models import small_llama
from tachograph.plugins.llm_compressor import compress, load_compressed
from tachograph.plugins.llm_compressor._masks import count_violations, fill_zeros

SIZES = {  # hidden size, layers, batch, tokens
    "cpu": (256, 4, 4, 64),
    "cuda": (2048, 8, 8, 1024),
}


def sparse_model(hidden: int, layers: int, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    model = small_llama(hidden, layers).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_proj" in name:
                groups = weight.reshape(-1, 4)
                smallest = groups.abs().argsort(dim=1)[:, :2]
                weight.copy_(groups.scatter(1, smallest, 0.0).reshape(weight.shape))
    return model


def step_time(device: str, rounds: int) -> None:
    hidden, layers, batch, tokens = SIZES[device]
    model = sparse_model(hidden, layers).to(device)
    weights = {name: weight for name, weight in model.named_parameters() if "_proj" in name}
    masks = {name: weight.detach() == 0 for name, weight in weights.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    ids = torch.randint(0, 1024, (batch, tokens), device=device)

    def train() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def masked() -> None:
        train()
        fill_zeros(weights, masks)

    def measured() -> None:
        train()
        count_violations(weights, masks)
        fill_zeros(weights, masks)
        for weight in weights.values():
            (weight.detach() == 0).sum()

    variants = {"without": train, "zeros restored": masked, "and measured (when the trainer logs)": measured}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 3):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            if device == "cuda":
                torch.cuda.synchronize()
            if number >= 3:
                times[name].append(time.perf_counter() - start)
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"training step, {parameters / 1e6:.0f} M parameters, {batch * tokens} tokens, AdamW, {device}")
    for name in variants:
        ratios = [own / base for own, base in zip(times[name], times["without"], strict=True)]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [1.0] * 3
        median_ms = statistics.median(times[name]) * 1e3
        print(f"  {name:40} {median_ms:8.1f} ms   {quartiles[1]:.3f}x   [{quartiles[0]:.3f}, {quartiles[2]:.3f}]")
    size = sum(mask.numel() for mask in masks.values())
    print(f"  memory of the masks: {size / 2**20:.1f} MiB, {size / (4 * parameters):.3f}x of the 32-bit parameters")


def saved_size() -> None:
    hidden, layers, *_ = SIZES["cpu"]
    print("compressed size, half of all matrices zero, embeddings dense")
    for dtype in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory() as folder:
            dense, small = Path(folder, "dense"), Path(folder, "small")
            sparse_model(hidden, layers, dtype).save_pretrained(dense)
            start = time.perf_counter()
            ratio = compress(dense, small)
            middle = time.perf_counter()
            load_compressed(small)
            end = time.perf_counter()
            num_mib = (dense / "model.safetensors").stat().st_size / 2**20
            print(
                f"  {str(dtype).removeprefix('torch.'):10} {ratio:.3f}x of {num_mib:.0f} MiB; "
                f"written with {num_mib / (middle - start):.0f} MiB/s, read with {num_mib / (end - middle):.0f} MiB/s"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=list(SIZES), default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    step_time(options.device, options.rounds)
    saved_size()


if __name__ == "__main__":
    main()
