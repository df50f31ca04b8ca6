"""Which tokens go to which expert, sorted by expert."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Routing"]


class Routing(NamedTuple):
    """Pairs of a token and an expert, sorted by expert. Row `r` of a sorted tensor belongs to pair `order[r]`.

    Pair `p` is choice `p % top_k` of token `p // top_k`. Pairs whose expert is on another device come last.

    Args:
        order: the pair of each row.
        ends: the row after the last row of each expert.
        top_k: the number of experts of a token.
        has_remote: whether there may be pairs whose expert is on another device.
    """

    order: torch.Tensor
    ends: torch.Tensor
    top_k: int
    has_remote: bool = False

    @classmethod
    def sort(cls, expert_ids: torch.Tensor, num_experts: int, has_remote: bool = False) -> Routing:
        """Sort the choices of all tokens, of shape (tokens, top_k), by expert."""
        sorted_ids, order = torch.sort(expert_ids.reshape(-1), stable=True)
        experts = torch.arange(num_experts, device=sorted_ids.device, dtype=sorted_ids.dtype)
        ends = torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
        return cls(order, ends, expert_ids.shape[-1], has_remote)

    @property
    def num_experts(self) -> int:
        return int(self.ends.numel())

    @property
    def num_pairs(self) -> int:
        return int(self.order.numel())
