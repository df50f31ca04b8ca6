"""Cases of `test_kernels`, which run with Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from tachograph.plugins.kernels._experts import reference_experts_forward, scatter_experts_forward

NAMES = ("output", "tokens", "gate_up", "down", "router")


def _experts(num_experts: int, hidden: int, intermediate: int, activation: str = "silu") -> Any:
    config = Qwen3MoeConfig(
        num_experts=num_experts, hidden_size=hidden, moe_intermediate_size=intermediate, hidden_act=activation
    )
    config._experts_implementation = "eager"
    experts = Qwen3MoeExperts(config)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return experts


def _results(forward: Any, experts: Any, tokens: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> Any:
    """Return the output and all gradients."""
    tokens, weights = tokens.detach().requires_grad_(), weights.detach().requires_grad_()
    output = forward(experts, tokens, index, weights)
    direction = torch.linspace(-1, 1, output.numel()).view_as(output)
    return output.detach(), *torch.autograd.grad(
        (output * direction).sum(), [tokens, experts.gate_up_proj, experts.down_proj, weights]
    )


def _eager(experts: Any, tokens: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The loop of transformers."""
    return experts(tokens, index, weights)


def _differences(experts: Any, tokens: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> dict[str, float]:
    """Return the largest differences from the loop of transformers, relative to the largest value."""
    expected = _results(_eager, experts, tokens, index, weights)
    differences = {}
    for label, forward in (("kernels", scatter_experts_forward), ("reference", reference_experts_forward)):
        actual = _results(forward, experts, tokens, index, weights)
        for name, want, got in zip(NAMES, expected, actual, strict=True):
            scale = want.abs().max().item() or 1.0
            differences[f"{label} {name}"] = ((want - got).abs().max() / scale).item()
    return differences


def _route(num_tokens: int, num_experts: int, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    weights, index = torch.rand(num_tokens, num_experts).topk(top_k)
    return index, weights


def case_even():
    return _differences(_experts(4, 64, 32), torch.randn(48, 64), *_route(48, 4, 2))


def case_sizes_that_are_no_powers_of_two():
    return _differences(_experts(5, 44, 27), torch.randn(37, 44), *_route(37, 5, 3))


def case_empty_experts():
    index, weights = _route(20, 8, 2)
    return _differences(_experts(8, 32, 16), torch.randn(20, 32), index % 3 * 2 + 1, weights)


def case_one_expert_takes_all():
    return _differences(_experts(4, 32, 16), torch.randn(150, 32), torch.full((150, 1), 2), torch.rand(150, 1))


def case_one_token():
    return _differences(_experts(4, 32, 16), torch.randn(1, 32), *_route(1, 4, 2))


def case_tokens_that_are_not_contiguous():
    return _differences(_experts(4, 32, 16), torch.randn(32, 24).T, *_route(24, 4, 2))


def case_another_activation():
    return _differences(_experts(4, 32, 16, "gelu_pytorch_tanh"), torch.randn(24, 32), *_route(24, 4, 2))


def case_experts_of_other_devices():
    """Choices of experts of other devices have the number of experts as their index, and a weight of 0."""
    experts = _experts(4, 32, 16)
    experts._is_expert_parallel = True
    index, weights = _route(24, 6, 3)
    remote = index >= 4
    return _differences(experts, torch.randn(24, 32), index.masked_fill(remote, 4), weights.masked_fill(remote, 0.0))


def case_transposed_weights():
    """GPT-OSS stores weights as (inputs, outputs)."""
    stored, transposed = _experts(4, 32, 24), _experts(4, 32, 24)
    transposed.is_transposed = True
    transposed.gate_up_proj = torch.nn.Parameter(stored.gate_up_proj.detach().transpose(1, 2).contiguous())
    transposed.down_proj = torch.nn.Parameter(stored.down_proj.detach().transpose(1, 2).contiguous())
    tokens, (index, weights) = torch.randn(24, 32), _route(24, 4, 2)
    expected = _results(_eager, stored, tokens, index, weights)
    actual = _results(scatter_experts_forward, transposed, tokens, index, weights)
    pairs = zip(expected, (actual[0], actual[1], actual[2].mT, actual[3].mT, actual[4]), strict=True)
    return {name: (a - b).abs().max().item() for name, (a, b) in zip(NAMES, pairs, strict=True)}


def case_frozen_weights():
    """Only the tokens and the router need gradients if an adapter trains something else."""
    experts = _experts(4, 32, 16).requires_grad_(False)
    index, weights = _route(24, 4, 2)
    gradients = []
    for forward in (_eager, scatter_experts_forward):
        tokens, scale = torch.ones(24, 32).requires_grad_(), weights.clone().requires_grad_()
        gradients.append(torch.autograd.grad(forward(experts, tokens, index, scale).square().sum(), [tokens, scale]))
    return [(a - b).abs().max().item() for a, b in zip(*gradients, strict=True)]


def case_half_precision():
    """Autocast to fp16, where transformers' loop computes its products in fp16 too."""
    experts = _experts(4, 32, 16)
    tokens, (index, weights) = torch.randn(24, 32), _route(24, 4, 2)
    exact = _results(_eager, experts, tokens, index, weights)
    with torch.autocast("cpu", torch.float16):
        actual = _results(scatter_experts_forward, experts, tokens, index, weights)
    return {
        name: ((a - b).abs().max() / a.abs().max()).item() for name, a, b in zip(NAMES, exact, actual, strict=True)
    } | {"dtypes": sorted({str(result.dtype) for result in actual})}
