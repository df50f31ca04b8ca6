"""The cross entropy of a linear layer, computed in chunks of tokens: logits of all tokens never exist at once.

The usual way needs memory for logits of every token, their log-softmax in 32 bits and the gradients of both. Here, a
chunk of tokens goes through the layer, its loss is added up, and its gradients with respect to hidden states and
weight are computed at once, in the forward pass: the gradient of a summed loss is known up to one factor, which the
backward pass multiplies in. So nothing is computed twice: there are the same three matrix products as usual.

In memory at any time are:

- the logits of one chunk, in the type of the weight; they are overwritten by their gradient;
- the log-softmax of a block of that chunk in 32 bits; on CUDA, a kernel (`_fused.py`) does without;
- the gradients of hidden states and weight, which the optimizer needs anyway.

Matrix products of 16-bit values are accumulated in 32 bits by the hardware. Across chunks, the gradient of a 16-bit
weight is accumulated in 32 bits if that buffer is small next to the logits that are avoided. Otherwise it is
accumulated in the weight's own type; there are few chunks then, so this adds about as much error as the final rounding
to 16 bits.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from tachograph.plugins._chunked_loss import ChunkedLoss, HeadGradients, wide_dtype

__all__ = ["ChunkPlan", "has_kernel", "linear_cross_entropy", "plan_chunks"]

_BLOCK_BYTES = 16 << 20
"""The size of a block of log-probabilities."""
_MIN_ROWS = 256
"""Shorter chunks would make the matrix products inefficient."""
_MAX_ROWS = 2048
"""Longer chunks would not make them faster."""


class ChunkPlan(NamedTuple):
    """How a loss is divided.

    Args:
        rows: the tokens per chunk.
        block: the tokens per block of log-probabilities.
        accumulate_fp32: whether the gradient of the weight is summed in 32 bits across chunks.
    """

    rows: int
    block: int
    accumulate_fp32: bool


def plan_chunks(
    tokens: int,
    vocabulary: int,
    hidden_size: int,
    dtype: torch.dtype,
    *,
    chunk_size: int | None = None,
    is_fused: bool = False,
) -> ChunkPlan:
    """Return how to divide a loss so that it needs about a tenth of the usual memory, gradients included.

    Args:
        tokens: the number of tokens.
        vocabulary: the number of logits per token.
        hidden_size: the size of the hidden states.
        dtype: the type of the weight.
        chunk_size: the tokens per chunk, if it is given.
        is_fused: whether the kernel for CUDA is used, which needs no block in 32 bits.
    """
    size = dtype.itemsize
    gradients = (vocabulary + tokens) * hidden_size * size
    goal = 12 * tokens * vocabulary / 10  # usually log-softmax, its gradient and the logits' gradient, all in 32 bits
    if chunk_size is None:
        block_bytes = 0 if is_fused else _BLOCK_BYTES
        rows = int((0.995 * goal - gradients - block_bytes) / (vocabulary * size))
        rows = min(max(rows // 64 * 64, _MIN_ROWS), _MAX_ROWS)
    else:
        rows = chunk_size
    rows = max(min(rows, tokens), 1)
    block = min(max(_BLOCK_BYTES // (vocabulary * 4), 1), rows)
    is_split = rows < tokens and size < 4
    fits = gradients + vocabulary * (hidden_size * 4 + rows * size) <= goal
    return ChunkPlan(rows, block, is_split and (fits or dtype is torch.float16))


def linear_cross_entropy(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    ignore_index: int = -100,
    scale: float = 1.0,
    softcap: float | None = None,
    chunk_size: int | None = None,
) -> tuple[torch.Tensor, int]:
    """Return the summed cross entropy of a linear layer, and the number of labels in it.

    Args:
        hidden_states: the hidden states, [tokens, size].
        weight: the weight of the layer, [vocabulary, size].
        labels: the class of each token, [tokens].
        bias: the bias of the layer, [vocabulary].
        ignore_index: the label of tokens that are left out.
        scale: a factor of the logits.
        softcap: the bound of the scaled logits: ``softcap * tanh(logits / softcap)``.
        chunk_size: the tokens per chunk; chosen if None.
    """
    rows = (labels != ignore_index).nonzero().squeeze(1)
    is_fused = has_kernel(weight)
    vocabulary, size = weight.shape
    plan = plan_chunks(len(rows), vocabulary, size, weight.dtype, chunk_size=chunk_size, is_fused=is_fused)
    total = _LinearCrossEntropy.apply(hidden_states, weight, bias, labels, rows, scale, softcap, plan)
    return total, len(rows)


class _LinearCrossEntropy(ChunkedLoss):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        rows: torch.Tensor,
        scale: float,
        softcap: float | None,
        plan: ChunkPlan,
    ) -> torch.Tensor:
        sum_dtype = torch.float32 if plan.accumulate_fp32 else weight.dtype
        gradients = HeadGradients(hidden_states, weight, bias, ctx.needs_input_grad[:3], sum_dtype=sum_dtype)
        needs_gradient = bool(gradients)
        fused_loss = _load_fused(weight)
        total = torch.zeros((), dtype=wide_dtype(weight.dtype), device=hidden_states.device)
        buffer = torch.empty(
            (min(plan.rows, len(rows)), weight.shape[0]), dtype=weight.dtype, device=hidden_states.device
        )
        for start in range(0, len(rows), plan.rows):
            chunk_rows = rows[start : start + plan.rows]
            chunk = hidden_states.index_select(0, chunk_rows)
            logits = buffer[: len(chunk_rows)]
            torch.mm(chunk, weight.t(), out=logits)
            if bias is not None:
                logits += bias
            targets = labels.index_select(0, chunk_rows)
            if fused_loss is not None:
                total += fused_loss(logits, targets, scale, softcap, needs_gradient)
            else:
                for first in range(0, len(chunk_rows), plan.block):
                    block = slice(first, first + plan.block)
                    total += _block_loss(logits[block], targets[block, None], scale, softcap, needs_gradient)
            gradients.add(chunk, chunk_rows, weight, logits)
        ctx.gradients = gradients
        return total


def _block_loss(
    logits: torch.Tensor, targets: torch.Tensor, scale: float, softcap: float | None, needs_gradient: bool
) -> torch.Tensor:
    """Return the summed loss of a block, and overwrite its logits by their gradient if it is needed."""
    if scale == 1.0 and softcap is None:
        log_probs = torch.log_softmax(logits, dim=1, dtype=wide_dtype(logits.dtype))
        slope = None
    else:
        wide = logits.to(wide_dtype(logits.dtype)) * scale
        slope = torch.full((), scale, dtype=wide.dtype, device=wide.device)
        if softcap is not None:
            tanh = torch.tanh(wide / softcap)
            wide = softcap * tanh
            slope = scale * (1 - tanh * tanh)
        log_probs = torch.log_softmax(wide, dim=1)
    target_log_probs = log_probs.gather(1, targets)
    if needs_gradient:
        if slope is None:
            torch.exp(log_probs, out=logits)
            logits.scatter_(1, targets, torch.expm1(target_log_probs).to(logits.dtype))
        else:
            probs = log_probs.exp_().scatter_(1, targets, torch.expm1(target_log_probs))
            logits.copy_(probs * slope)
    return -target_log_probs.sum()


def has_kernel(weight: torch.Tensor) -> bool:
    """Return whether the kernel for CUDA is used with a weight."""
    return _load_fused(weight) is not None


def _load_fused(weight: torch.Tensor) -> Any:
    """Return the kernel for CUDA, or None if it cannot be used."""
    if not weight.is_cuda or weight.dtype.itemsize > 4:
        return None
    return _import_fused()


@functools.cache
def _import_fused() -> Any:
    try:
        from tachograph.plugins.cut_cross_entropy._fused import fused_loss
    except ImportError:  # PyTorch without Triton
        return None
    return fused_loss
