"""DenseMixer: train the routers of a mixture of experts with the gradient of all experts.

A router weights the experts by ``w = softmax(logits)``. Only the k experts with the largest weights are computed, so
the usual gradient of the other weights is zero. Here each weight gets the gradient that it would have if all experts
were mixed: the inner product of the gradient of the block's output with the output of the expert. The output itself,
and the gradients of the experts, stay as they are. See Yao et al., 2025, https://fengyao.notion.site/moe-posttraining.

With `norm_topk_prob`, the weights of the k experts are divided by their sum r. The others are divided by r as well, but
r is a constant for them.

How it works: a hook on the experts of each block adds an identity whose second input is the weights of the experts that
were not chosen. Its backward pass computes these experts, a few at a time, and returns the inner products. Nothing is
computed in the forward pass, and no output of an expert is kept.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, Field
from torch.autograd.function import once_differentiable
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph.plugins._base import BasePlugin, PluginConfig, Slots
from tachograph.plugins._expert_load import count_tokens

__all__ = ["DenseMixerOptions", "DenseMixerPlugin"]

_BLOCKS = {
    "OlmoeSparseMoeBlock": "olmoe",
    "Qwen2MoeSparseMoeBlock": "qwen2_moe",
    "Qwen3MoeSparseMoeBlock": "qwen3_moe",
}
"""The blocks whose router is a softmax over all experts, and the types of their models."""
_CHUNK_BYTES = 64 * 2**20
"""Memory for the intermediate values of the experts that the backward pass computes at once."""


class DenseMixerOptions(BaseModel):
    """The options of DenseMixer."""

    dense_mixer: bool = Field(True, description="`false` turns the plugin off.")


class DenseMixerPlugin(BasePlugin):
    """Gives routers the gradient of all experts."""

    name = "densemixer"
    Options = DenseMixerOptions
    slots = (Slots.EXPERTS,)
    measured = (
        "time: 1.66x per step on an H200, Qwen3-MoE with 2.5 billion parameters, 64 experts, 8 per token, 4,096 tokens",
        "memory: 1.00x",
    )

    options: DenseMixerOptions

    def __init__(self) -> None:
        self._blocks: list[_ExpertBlock] = []
        self._loads: dict[str, torch.Tensor] = {}
        """How many tokens each expert of a block got since the last log."""

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return whether the config turns it off."""
        return "" if self.options.dense_mixer else "dense_mixer is false"

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return the number of blocks and the cost of the backward pass."""
        if model is None:
            return []
        blocks = self._find_blocks(model)
        first = blocks[0]
        lines = [
            f"the router of {len(blocks)} block{'s' if len(blocks) > 1 else ''} gets the gradient of all "
            f"{first.num_experts} experts, not only of {first.top_k}; the backward pass computes all of them"
        ]
        if not any(block.gate.weight.requires_grad for block in blocks):
            lines.append("the routers are frozen: the gradient only reaches the layers before them")
        return lines

    def post_model_load(self, cfg: PluginConfig, model: Any) -> None:
        """Add the gradient to each block."""
        self._blocks = self._find_blocks(model)
        for block in self._blocks:
            hook = block.experts.register_forward_hook(self._make_hook(block), with_kwargs=True)
            self.patches.on_undo(hook.remove)
        self.report.changed("routers with the gradient of all experts", [block.name for block in self._blocks])

    def add_callbacks_post_trainer(self, cfg: PluginConfig, trainer: Any) -> list[Any]:
        """Return the callback that measures the gradients of the routers."""
        return [_RouterCallback(self)]

    def is_active(self) -> bool:
        """Return whether a router got the gradient since the last call, and report the load of the experts."""
        if self._blocks:
            self.report.set("flops_ratio", self._blocks[0].num_experts / self._blocks[0].top_k)
        if self._loads:
            entropies = [_relative_entropy(load) for load in self._loads.values()]
            self.report.set("expert_load_entropy", torch.stack([value.cpu() for value in entropies]).mean())
            self._loads.clear()
        return self.report.had_effect()

    def router_gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the routers."""
        return [block.gate.weight.grad for block in self._blocks if block.gate.weight.grad is not None]

    def _find_blocks(self, model: Any) -> list[_ExpertBlock]:
        blocks = [
            _ExpertBlock(name, module.gate, module.experts, module.gate.num_experts, module.gate.top_k)
            for name, module in model.named_modules()
            if type(module).__name__ in _BLOCKS
        ]
        if not blocks:
            raise self.error(
                f"{type(model).__name__} has no block of experts that is supported: expected a model of the type "
                f"{', '.join(_BLOCKS.values())}"
            )
        for block in blocks:
            self._check(block)
        return blocks

    def _check(self, block: _ExpertBlock) -> None:
        experts = block.experts
        if hasattr(experts, "base_layer"):
            raise self.error(
                f"{block.name}.experts has an adapter, which is not supported: remove the experts from "
                "`lora_target_parameters` (target_parameters)"
            )
        if hasattr(block.gate, "base_layer"):
            raise self.error(f"{block.name}.gate has an adapter, which is not supported: train it as a whole, or not")
        weights = [getattr(experts, name, None) for name in ("gate_up_proj", "down_proj")]
        if any(weight is None or weight.dim() != 3 or not weight.is_floating_point() for weight in weights):
            raise self.error(
                f"the weights of {block.name}.experts are not supported: expected one tensor per projection"
            )
        if getattr(experts, "_is_expert_parallel", False):
            raise self.error("expert parallelism is not supported: turn it off")

    def _make_hook(self, block: _ExpertBlock) -> Any:
        def add_gradient(
            experts: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
        ) -> torch.Tensor | None:
            if not (experts.training and torch.is_grad_enabled()):
                return None
            values = dict(zip(("hidden_states", "top_k_index", "top_k_weights"), arguments, strict=False)) | kwargs
            hidden_states, top_k_index = values["hidden_states"], values["top_k_index"]
            weights = _unchosen_weights(block, hidden_states, top_k_index)
            self._count_load(block, top_k_index)
            if not weights.requires_grad:
                return None
            return _DenseGradient.apply(output, weights, hidden_states.detach(), experts, self)

        return add_gradient

    def _count_load(self, block: _ExpertBlock, top_k_index: torch.Tensor) -> None:
        load = count_tokens(top_k_index, block.num_experts)
        self._loads[block.name] = load + self._loads[block.name] if block.name in self._loads else load


class _ExpertBlock(NamedTuple):
    """A block of experts: its name, its router, its experts, their number, and how many a token gets."""

    name: str
    gate: Any
    experts: Any
    num_experts: int
    top_k: int


def _unchosen_weights(block: _ExpertBlock, hidden_states: torch.Tensor, top_k_index: torch.Tensor) -> torch.Tensor:
    """Return the weights of all experts for each token, with zeros for the chosen ones, whose gradient is as usual."""
    # Computed again, because not every version of transformers returns the logits from the router.
    logits = torch.nn.functional.linear(hidden_states, block.gate.weight)
    probabilities = torch.nn.functional.softmax(logits, dtype=torch.float, dim=-1)
    weights = probabilities.scatter(1, top_k_index, 0.0)
    if block.gate.norm_topk_prob:
        weights = weights / probabilities.detach().gather(1, top_k_index).sum(dim=-1, keepdim=True)
    return weights


class _DenseGradient(torch.autograd.Function):
    """The identity of a block's output, whose backward pass also returns the gradient of unchosen experts' weights."""

    @staticmethod
    def forward(
        ctx: Any,
        output: torch.Tensor,
        weights: torch.Tensor,
        hidden_states: torch.Tensor,
        experts: Any,
        plugin: DenseMixerPlugin,
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden_states)
        ctx.experts = experts
        ctx.plugin = plugin
        device = output.device.type
        ctx.autocast_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return output.view_as(output)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        (hidden_states,) = ctx.saved_tensors
        dtype = ctx.autocast_dtype
        with torch.autocast(gradient.device.type, dtype=dtype) if dtype is not None else contextlib.nullcontext():
            products = _products(ctx.experts, hidden_states, gradient)
        ctx.plugin.report.effect()
        return gradient, products, None, None, None


def _products(experts: Any, hidden_states: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the inner product of the gradient with the output of each expert, for each token, in 32 bits.

    It is ``g · (D h) = (g D) · h``, where h are the inner values of an expert and D is its second projection.
    """
    num_experts, size = experts.gate_up_proj.shape[0], experts.down_proj.shape[2]
    products = hidden_states.new_empty((len(hidden_states), num_experts), dtype=torch.float32)
    pairs_per_chunk = max(1, _CHUNK_BYTES // (4 * size * hidden_states.element_size()))
    rows = max(1, min(len(hidden_states), pairs_per_chunk))
    experts_per_chunk = max(1, pairs_per_chunk // rows)
    for start in range(0, len(hidden_states), rows):
        tokens = slice(start, start + rows)
        for first in range(0, num_experts, experts_per_chunk):
            part = slice(first, first + experts_per_chunk)
            gate, up = torch.matmul(hidden_states[tokens], experts.gate_up_proj[part].transpose(1, 2)).chunk(2, dim=-1)
            inner = experts.act_fn(gate) * up
            outer = torch.matmul(gradient[tokens].to(inner.dtype), experts.down_proj[part])
            products[tokens, part] = (inner * outer).sum(dim=-1, dtype=torch.float32).t()
    return products


class _RouterCallback(TrainerCallback):
    """Measures the gradients of the routers before each optimizer step, as the optimizer sees them."""

    def __init__(self, plugin: DenseMixerPlugin) -> None:
        self._plugin = plugin

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report their norm."""
        gradients = self._plugin.router_gradients()
        if gradients:
            norms = torch._foreach_norm([gradient.detach().float() for gradient in gradients])
            self._plugin.report.set(
                "router_grad_norm", torch.stack([norm.to(norms[0].device) for norm in norms]).norm()
            )


def _relative_entropy(load: torch.Tensor) -> torch.Tensor:
    """Return the entropy of the load of experts: 1 if all get as many tokens, 0 if one gets all."""
    shares = load / load.sum().clamp(min=1)
    return -(shares * shares.clamp(min=1e-30).log()).sum() / math.log(max(2, len(load)))
