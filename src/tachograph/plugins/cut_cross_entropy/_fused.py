"""A GPU kernel for the loss of a chunk of logits and its gradient: two passes over each row, in place.

Written in Triton, which comes with PyTorch for CUDA. PyTorch's own operations need a copy of the logits in 32 bits and
read it several times; this kernel keeps 32-bit values in registers only. The first pass computes the largest logit and
the sum of exponentials of a row in one go: when a larger logit appears, the sum so far is scaled down.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["fused_loss"]

_BLOCK = 4096
"""The logits that a program has in registers at once."""
_NUM_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _loss_kernel(  # type: ignore[no-untyped-def]
    logits,
    stride,
    targets,
    losses,
    vocabulary,
    scale,
    softcap,
    IS_CAPPED: tl.constexpr,  # noqa: N803
    NEEDS_GRADIENT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    largest = float("-inf")
    total = 0.0
    target_logit = 0.0
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        is_inside = columns < vocabulary
        values = tl.load(logits + columns, mask=is_inside, other=0.0).to(tl.float32) * scale
        if IS_CAPPED:
            values = softcap * (2.0 * tl.sigmoid(2.0 * values / softcap) - 1.0)
        values = tl.where(is_inside, values, float("-inf"))
        target_logit += tl.sum(tl.where(columns == target, values, 0.0))
        new_largest = tl.maximum(largest, tl.max(values))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(values - new_largest))
        largest = new_largest
    log_total = largest + tl.log(total)
    tl.store(losses + row, log_total - target_logit)
    if NEEDS_GRADIENT:
        for start in range(0, vocabulary, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            is_inside = columns < vocabulary
            values = tl.load(logits + columns, mask=is_inside, other=0.0).to(tl.float32) * scale
            slope = scale
            if IS_CAPPED:
                tanh = 2.0 * tl.sigmoid(2.0 * values / softcap) - 1.0
                slope = scale * (1.0 - tanh * tanh)
                values = softcap * tanh
            gradient = (tl.exp(values - log_total) - tl.where(columns == target, 1.0, 0.0)) * slope
            tl.store(logits + columns, gradient.to(logits.dtype.element_ty), mask=is_inside)


def fused_loss(
    logits: torch.Tensor, targets: torch.Tensor, scale: float, softcap: float | None, needs_gradient: bool
) -> Any:
    """Return the summed loss of a chunk, and overwrite its logits by their gradient if it is needed.

    Args:
        logits: the logits before `scale` and `softcap`, [tokens, vocabulary], contiguous in the last dimension.
        targets: the class of each token, [tokens].
        scale: a factor of the logits.
        softcap: the bound of the scaled logits.
        needs_gradient: whether to compute the gradient.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _loss_kernel[(len(logits),)](
        logits,
        logits.stride(0),
        targets,
        losses,
        logits.shape[1],
        float(scale),
        float(softcap or 1.0),
        IS_CAPPED=softcap is not None,
        NEEDS_GRADIENT=needs_gradient,
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
    )
    return losses.sum()
