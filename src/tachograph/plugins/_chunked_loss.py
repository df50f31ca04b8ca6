"""What losses of an output head have in common that are computed in chunks of tokens.

The gradient of a summed loss is known up to one factor, which the backward pass multiplies in. So the gradients of a
chunk are computed in the forward pass, while its logits exist, and logits of all tokens never exist at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

__all__ = ["ChunkedLoss", "HeadGradients", "wide_dtype"]

_VOCABULARY_SLICE = 16384
"""The rows of the weight whose gradient is added to a 32-bit sum at once."""


class HeadGradients:
    """The gradients of hidden states, weight and bias of an output head; None where none is needed."""

    def __init__(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        needs_grad: Sequence[bool],
        *,
        sum_dtype: torch.dtype,
    ) -> None:
        """Create them.

        Args:
            hidden_states: the hidden states.
            weight: the weight.
            bias: the bias, if there is one.
            needs_grad: which of the three need a gradient.
            sum_dtype: the type in which the gradient of the weight is summed.
        """
        self._dtypes = (hidden_states.dtype, weight.dtype, bias.dtype if bias is not None else None)
        self._hidden_grad = torch.zeros_like(hidden_states) if needs_grad[0] else None
        self._weight_grad = torch.empty_like(weight, dtype=sum_dtype) if needs_grad[1] else None
        self._bias_grad = (
            torch.zeros_like(bias, dtype=wide_dtype(bias.dtype)) if bias is not None and needs_grad[2] else None
        )
        self._is_empty = True

    def __bool__(self) -> bool:
        """Return whether any gradient is needed."""
        return any(entry is not None for entry in (self._hidden_grad, self._weight_grad, self._bias_grad))

    def add(self, chunk: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, slopes: torch.Tensor) -> None:
        """Add the gradients of a chunk.

        Args:
            chunk: its hidden states.
            rows: their rows among all hidden states.
            weight: the weight of the output head.
            slopes: the gradients of the chunk's logits, in the type of the weight.
        """
        if self._hidden_grad is not None:
            self._hidden_grad.index_copy_(0, rows, torch.mm(slopes, weight))
        if self._bias_grad is not None:
            self._bias_grad.add_(slopes.sum(0, dtype=self._bias_grad.dtype))
        if self._weight_grad is None:
            return
        if self._weight_grad.dtype == slopes.dtype:
            if self._is_empty:
                torch.mm(slopes.t(), chunk, out=self._weight_grad)
            else:
                self._weight_grad.addmm_(slopes.t(), chunk)
        else:
            if self._is_empty:
                self._weight_grad.zero_()
            for first in range(0, len(self._weight_grad), _VOCABULARY_SLICE):
                part = slice(first, first + _VOCABULARY_SLICE)
                self._weight_grad[part] += torch.mm(slopes[:, part].t(), chunk)
        self._is_empty = False

    def take(self, factor: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradients times a factor. They are multiplied in place, so this works once."""
        if self._weight_grad is not None and self._is_empty:
            self._weight_grad.zero_()
        return [
            entry.mul_(factor).to(dtype) if entry is not None else None
            for entry, dtype in zip((self._hidden_grad, self._weight_grad, self._bias_grad), self._dtypes, strict=True)
        ]


class ChunkedLoss(torch.autograd.Function):
    """The base of losses whose first result is the sum, and whose first inputs are hidden states, weight and bias.

    The forward pass leaves `HeadGradients` in ``ctx.gradients``.
    """

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, factor: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the forward pass times the gradient of the loss."""
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("a loss that is computed in chunks does not support a second backward pass")
        return (*gradients.take(factor), *[None] * (len(ctx.needs_input_grad) - 3))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that a loss is computed in: at least 32 bits."""
    return torch.float32 if dtype.itemsize < 4 else dtype
