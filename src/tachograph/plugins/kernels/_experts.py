"""ScatterMoE as an implementation of the experts of transformers: forward, backward, and a plain reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from tachograph.plugins.kernels._routing import Routing

if TYPE_CHECKING:
    from tachograph.plugins.kernels._triton import Tiles

__all__ = [
    "prefers_grouped_mm",
    "reference_experts_forward",
    "register_scattermoe",
    "scatter_experts_forward",
    "unsupported_reason",
]

_MAX_INTENSITY = 2700
"""Above this ratio of arithmetic to memory, `grouped_mm` was faster on an H200: its products are, the rest is not."""


def register_scattermoe() -> None:
    """Let transformers find ScatterMoE by its name. Other models do not change."""
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register("scattermoe", _dispatch)


def _dispatch(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the experts of a layer with the best implementation for its device and sizes."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    forward = scatter_experts_forward
    if not hidden_states.is_cuda:
        forward = reference_experts_forward
    elif getattr(self, "scattermoe_auto", True) and (torch.compiler.is_compiling() or prefers_grouped_mm(self)):
        # A compiled model does not copy tokens and results either, and the kernels would split its graph.
        forward = grouped_mm_experts_forward
    return forward(self, hidden_states, top_k_index, top_k_weights)


def prefers_grouped_mm(experts: torch.nn.Module) -> bool:
    """Return whether the `grouped_mm` of transformers was measured to be faster for experts of this size.

    The products of `grouped_mm` are up to a fifth faster, but it copies tokens and results; large experts have more
    arithmetic for each copied value. Kernels cannot load 16 bytes at once if a size is not a multiple of 16.
    """
    _, intermediate, hidden = _weights_of(experts)[1].shape
    return bool(hidden % 16 or intermediate % 16 or hidden * intermediate / (hidden + intermediate) > _MAX_INTENSITY)


def unsupported_reason(experts: torch.nn.Module) -> str:
    """Return why ScatterMoE cannot compute these experts, or an empty text."""
    if getattr(experts, "has_bias", False):
        return "they have biases"
    if getattr(experts, "has_post_expert_norm", False):
        return "they have a norm after each expert"
    return ""


def scatter_experts_forward(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the experts of a layer with Triton kernels, which gather and scatter tokens in their products."""
    from tachograph.plugins.kernels._triton import cut_tiles

    up_weights, down_weights = _weights_of(self)
    compute_dtype = _compute_dtype(hidden_states, up_weights)
    tokens = hidden_states.to(compute_dtype)
    routing = Routing.sort(top_k_index, self.num_experts, getattr(self, "_is_expert_parallel", False))
    tiles = cut_tiles(routing, compute_dtype)
    projected = _GatherProduct.apply(tokens, up_weights.to(compute_dtype), routing, tiles)
    activated = _activate(self, projected).to(compute_dtype)
    weighted = _WeightedProduct.apply(activated, down_weights.to(compute_dtype), top_k_weights, routing, tiles)
    return weighted.to(hidden_states.dtype)


def reference_experts_forward(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the experts of a layer in plain torch, one expert after the other, on rows sorted by expert."""
    up_weights, down_weights = _weights_of(self)
    compute_dtype = _compute_dtype(hidden_states, up_weights)
    routing = Routing.sort(top_k_index, self.num_experts)
    order = routing.order
    rows = hidden_states.to(compute_dtype)[order // routing.top_k]
    scale = top_k_weights.reshape(-1)[order]
    pieces = []
    start = 0
    for expert, end in enumerate(routing.ends.tolist()):
        if end > start:
            projected = rows[start:end] @ up_weights[expert].to(compute_dtype)
            activated = self._apply_gate(projected) if self.has_gate else self.act_fn(projected)
            product = activated @ down_weights[expert].to(compute_dtype)
            pieces.append(product.float() * scale[start:end, None].float())
        start = end
    sums = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    if pieces:
        sums = sums.index_add(0, order[:start] // routing.top_k, torch.cat(pieces))
    return sums.to(hidden_states.dtype)


def _weights_of(experts: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights as (experts, inputs, outputs); transformers stores most models' the other way round."""
    up = experts.gate_up_proj if experts.has_gate else experts.up_proj
    down = experts.down_proj
    if not experts.is_transposed:
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    return up, down


def _compute_dtype(hidden_states: torch.Tensor, weights: torch.Tensor) -> torch.dtype:
    device_type = hidden_states.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return weights.dtype


def _activate(experts: Any, projected: torch.Tensor) -> torch.Tensor:
    from transformers.integrations import moe

    if not experts.has_gate:
        return experts.act_fn(projected)
    is_silu = isinstance(experts.act_fn, torch.nn.SiLU) or type(experts.act_fn).__name__ == "SiLUActivation"
    if is_silu and type(experts)._apply_gate is moe._default_apply_gate:
        return _SiluGate.apply(projected)
    return experts._apply_gate(projected)


class _GatherProduct(torch.autograd.Function):
    """Sorted products of tokens with the weights of their experts."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weights: torch.Tensor, routing: Routing, tiles: Tiles) -> torch.Tensor:
        from tachograph.plugins.kernels._triton import grouped_matmul

        ctx.save_for_backward(tokens, weights)
        ctx.routing, ctx.tiles = routing, tiles
        return grouped_matmul(tokens, weights, routing, tiles, gather=True)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from tachograph.plugins.kernels._triton import grouped_matmul, grouped_weight_gradient

        tokens, weights = ctx.saved_tensors
        gradient = gradient.to(tokens.dtype).contiguous()
        token_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            pairs = grouped_matmul(gradient, weights.transpose(1, 2), ctx.routing, ctx.tiles, scatter=True)
            token_gradient = _sum_pairs(pairs, ctx.routing.top_k)
        if ctx.needs_input_grad[1]:
            weight_gradient = grouped_weight_gradient(gradient, tokens, weights, ctx.routing, gather_rows=True)
        return token_gradient, weight_gradient, None, None


class _WeightedProduct(torch.autograd.Function):
    """The sum of each token over its experts: sorted rows times their expert's weights, times the router's factor."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor, routing: Routing, tiles: Tiles
    ) -> torch.Tensor:
        from tachograph.plugins.kernels._triton import grouped_matmul

        ctx.save_for_backward(rows, weights, scale)
        ctx.routing, ctx.tiles = routing, tiles
        pairs = grouped_matmul(rows, weights, routing, tiles, scatter=True, scale=scale.contiguous())
        return _sum_pairs(pairs, routing.top_k)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from tachograph.plugins.kernels._triton import grouped_matmul, grouped_weight_gradient, weigh_rows

        rows, weights, scale = ctx.saved_tensors
        gradient = gradient.to(rows.dtype).contiguous()
        # The gradient of a factor is the product of a row with its gradient before the factor, so that the products
        # of the forward pass need not be kept.
        row_gradient = grouped_matmul(gradient, weights.transpose(1, 2), ctx.routing, ctx.tiles, gather=True)
        scale_gradient, weighted = weigh_rows(row_gradient, rows.contiguous(), scale.contiguous(), ctx.routing)
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = grouped_weight_gradient(gradient, weighted, weights, ctx.routing, gather_gradients=True)
        return row_gradient, weight_gradient, scale_gradient, None, None


class _SiluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: torch.Tensor) -> torch.Tensor:
        from tachograph.plugins.kernels._triton import gate_and_up

        ctx.save_for_backward(projected)
        return gate_and_up(projected)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        from tachograph.plugins.kernels._triton import gate_and_up_backward

        (projected,) = ctx.saved_tensors
        return gate_and_up_backward(gradient.contiguous(), projected)


def _sum_pairs(pairs: torch.Tensor, top_k: int) -> torch.Tensor:
    return pairs.view(-1, top_k, pairs.shape[1]).sum(1, dtype=pairs.dtype)  # autocast would return 32 bits
