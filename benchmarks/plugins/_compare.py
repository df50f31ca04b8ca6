"""Compares losses: time and peak memory of each, forward and backward, in turn, as ratios to the first one.

Memory is the peak of a loss above its inputs, so it includes the gradients. A ratio is the median over rounds of a loss
to the first one in the same round.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch

__all__ = ["Loss", "Measurement", "add_arguments", "compare", "complete", "describe_ratios", "time_step"]

Loss = Callable[[], torch.Tensor]


class Measurement(NamedTuple):
    """One run of a loss."""

    ms: float
    peak_mib: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all benchmarks of losses have."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--hidden", type=int, nargs="+")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--chunk-size", type=int, nargs="*", default=[], help="further chunk sizes to measure")
    parser.add_argument("--rounds", type=int, default=15)


def complete(arguments: argparse.Namespace) -> None:
    """Fill in the sizes that were not given, and print where the benchmark runs."""
    is_cuda = arguments.device.startswith("cuda")
    arguments.tokens = arguments.tokens or (8192 if is_cuda else 512)
    arguments.vocabulary = arguments.vocabulary or (128256 if is_cuda else 8192)
    arguments.hidden = arguments.hidden or ([2048, 4096] if is_cuda else [256])
    arguments.dtype = getattr(torch, arguments.dtype or ("bfloat16" if is_cuda else "float32"))
    print(f"torch {torch.__version__}" + (f", {torch.cuda.get_device_name()}" if is_cuda else ""))


def time_step(trainer: Any, model: Any, batch: Mapping[str, torch.Tensor]) -> Measurement:
    """Run a training step and return its time and peak memory above the weights; the gradients stay."""
    is_cuda = batch["input_ids"].is_cuda
    num_items = torch.tensor(batch["input_ids"].numel() - 1)
    before = 0
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start_s = perf_counter()
    trainer.training_step(model, dict(batch), num_items_in_batch=num_items)
    if is_cuda:
        torch.cuda.synchronize()
    ms = (perf_counter() - start_s) * 1e3
    return Measurement(ms, (torch.cuda.max_memory_allocated() - before) / 2**20 if is_cuda else float("nan"))


def describe_ratios(measurements: Sequence[Measurement], base: Sequence[Measurement]) -> str:
    """Return time, its quartiles, memory, and both beside the measurements of the same rounds; not the first round."""
    rounds, base_rounds = measurements[1:], base[1:]
    times = [entry.ms for entry in rounds]
    low, _, high = statistics.quantiles(times, n=4)
    ratio = statistics.median(entry.ms / other.ms for entry, other in zip(rounds, base_rounds, strict=True))
    memory = statistics.median(entry.peak_mib for entry in rounds)
    memory_ratio = memory / statistics.median(entry.peak_mib for entry in base_rounds)
    return f"{statistics.median(times):8.2f} {low:8.2f}-{high:8.2f} {ratio:6.3f}x {memory:8.0f} {memory_ratio:6.3f}x"


def _run(loss: Loss, leaves: Sequence[torch.Tensor]) -> Measurement:
    for leaf in leaves:
        leaf.grad = None
    if not leaves[0].is_cuda:
        start_s = perf_counter()
        loss().backward()
        return Measurement((perf_counter() - start_s) * 1e3, float("nan"))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    loss().backward()
    end.record()
    torch.cuda.synchronize()
    return Measurement(start.elapsed_time(end), (torch.cuda.max_memory_allocated() - before) / 2**20)


def _errors(loss: Loss, leaves: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> list[float]:
    """Return the error of a loss, and the largest of each gradient relative to its largest value."""
    for leaf in leaves:
        leaf.grad = None
    value = loss()
    value.backward()
    found = [abs(float(value.detach()) - float(expected[0]))]
    for leaf, wanted in zip(leaves, expected[1:], strict=True):
        worst = max(
            float((leaf.grad[first : first + 8192].float() - wanted[first : first + 8192]).abs().max())
            for first in range(0, len(wanted), 8192)
        )
        found.append(worst / float(wanted.abs().max()))
        leaf.grad = None
    return found


def compare(
    losses: Mapping[str, Loss],
    leaves: Sequence[torch.Tensor],
    reference: Callable[[], Sequence[torch.Tensor]],
    rounds: int,
) -> None:
    """Measure losses and print a table.

    Args:
        losses: the losses by name, the usual one first.
        leaves: the tensors that get gradients.
        reference: returns the loss and its gradients in 32 bits.
        rounds: how often each loss runs, after one run to warm up.
    """
    failed: dict[str, str] = {}
    errors: dict[str, list[float]] = {}
    expected = reference()
    for name, loss in losses.items():
        try:
            errors[name] = _errors(loss, leaves, expected)
        except Exception as error:  # another loss may work
            failed[name] = f"{type(error).__name__}: {error}"
    del expected
    results: dict[str, list[Measurement]] = {name: [] for name in errors}
    for _ in range(rounds + 1):
        for name, measured in results.items():
            measured.append(_run(losses[name], leaves))
    gradients = sum(leaf.numel() * leaf.itemsize for leaf in leaves) / 2**20
    print(f"gradients: {gradients:.0f} MiB")
    print(f"{'':24}{'ms':>8} {'quartiles':>17} {'ratio':>7} {'MiB':>8} {'ratio':>7}   errors: loss, gradients")
    base = next(iter(results.values()))
    for name, measured in results.items():
        accuracy = ", ".join(f"{value:.1e}" for value in errors[name])
        print(f"{name:24}{describe_ratios(measured, base)}   {accuracy}")
    for name, problem in failed.items():
        print(f"{name}: failed: {problem}")
