"""Experts of mixture-of-experts models: ScatterMoE beside the implementations of transformers, forward and backward.

    python -m benchmarks.plugins.kernels                  # on a GPU, in bfloat16
    python -m benchmarks.plugins.kernels --rounds 30 --shape 64,8,4096,2048,1024

A shape is experts, experts per token, tokens, hidden size, intermediate size. Implementations run in turn; a ratio is
the median over rounds of the time beside `grouped_mm` in the same round, with the quartiles. Errors compare with the
loop of transformers in 32 bits: the largest difference of the output and of each gradient, relative to its maximum.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Qwen3MoeConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from tachograph.plugins.kernels._experts import scatter_experts_forward

_SHAPES = (
    (64, 8, 4096, 2048, 1024),  # OLMoE
    (64, 8, 512, 2048, 1024),
    (64, 8, 16384, 2048, 1024),
    (128, 8, 4096, 2048, 768),  # Qwen3 30B
    (128, 8, 16384, 2048, 768),
    (60, 4, 4096, 2048, 1408),  # Qwen1.5
    (8, 2, 4096, 4096, 14336),  # Mixtral
    (256, 8, 4096, 2048, 512),
    (32, 8, 4096, 7168, 2048),  # a part of DeepSeek V3
    (32, 4, 4096, 2880, 2880),  # gpt-oss
    (8, 2, 4096, 4096, 4096),
    (8, 2, 4096, 4096, 8192),
    (32, 4, 4096, 1600, 1000),  # not multiples of 16
)
_NAMES = ("eager", "grouped_mm", "scattermoe")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per shape and implementation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--shape", action="append", help="E,K,T,H,I; may be repeated")
    options = parser.parse_args(arguments)
    shapes = [tuple(map(int, text.split(","))) for text in options.shape or ()] or _SHAPES
    ALL_EXPERTS_FUNCTIONS.register("scattermoe", scatter_experts_forward)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {options.rounds} rounds")
    print(
        "experts top_k tokens hidden intermediate | implementation: ms, beside grouped_mm [quartiles], peak MiB, errors"
    )
    for shape in shapes:
        _measure_shape(shape, options.rounds)


def _measure_shape(shape: Sequence[int], rounds: int) -> None:
    torch.manual_seed(0)
    num_experts, top_k, num_tokens, hidden, intermediate = shape
    config = Qwen3MoeConfig(num_experts=num_experts, hidden_size=hidden, moe_intermediate_size=intermediate)
    config._experts_implementation = "eager"
    with torch.device("cuda"):
        experts = Qwen3MoeExperts(config)
        for parameter in experts.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        experts.bfloat16()
        tokens = torch.randn(num_tokens, hidden).bfloat16().requires_grad_()
        weights, index = torch.randn(num_tokens, num_experts).softmax(-1).topk(top_k)
        weights = weights.bfloat16().requires_grad_()
        direction = torch.randn(num_tokens, hidden).bfloat16()
    leaves = [tokens, experts.gate_up_proj, experts.down_proj, weights]
    expected = _results(experts.float(), [leaf.float() for leaf in leaves], index, direction, "eager")
    experts.bfloat16()
    leaves = [tokens, experts.gate_up_proj, experts.down_proj, weights]
    errors = {}
    for name in _NAMES:
        actual = _results(experts, leaves, index, direction, name)
        errors[name] = [
            ((got.float() - want).abs().max() / want.abs().max()).item()
            for want, got in zip(expected, actual, strict=True)
        ]
        del actual
    del expected
    times: dict[str, list[float]] = {name: [] for name in _NAMES}
    peaks = {}
    for _ in range(rounds):
        for name in _NAMES:
            ms, peaks[name] = _time(experts, leaves, index, direction, name)
            times[name].append(ms)
    print(*shape)
    for name in _NAMES:
        ratios = [ms / base for ms, base in zip(times[name], times["grouped_mm"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"    {name:12} {statistics.median(times[name]):8.3f} ms  {middle:6.2f} [{low:.2f}, {high:.2f}]"
            f"  {peaks[name]:7.0f} MiB  " + " ".join(f"{error:.1e}" for error in errors[name]),
            flush=True,
        )


def _forward(experts: Any, tokens: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, name: str) -> torch.Tensor:
    experts.config._experts_implementation = name
    output: torch.Tensor = experts(tokens, index, weights)
    return output


def _results(
    experts: Any, leaves: Sequence[torch.Tensor], index: torch.Tensor, direction: torch.Tensor, name: str
) -> list[torch.Tensor]:
    tokens, weights = leaves[0].detach().requires_grad_(), leaves[3].detach().requires_grad_()
    output = _forward(experts, tokens, index, weights, name)
    gradients = torch.autograd.grad(
        output, [tokens, experts.gate_up_proj, experts.down_proj, weights], direction.to(output.dtype)
    )
    return [output.detach(), *gradients]


def _time(
    experts: Any, leaves: Sequence[torch.Tensor], index: torch.Tensor, direction: torch.Tensor, name: str
) -> tuple[float, float]:
    """Return the time in ms of a pass forward and backward, and the peak of its memory in MiB."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(3):
        output = _forward(experts, leaves[0], index, leaves[3], name)
        torch.autograd.grad(output, leaves, direction)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 3, (torch.cuda.max_memory_allocated() - before) / 2**20


if __name__ == "__main__":
    main()
