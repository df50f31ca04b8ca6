"""How many tokens each expert of a mixture-of-experts layer gets."""

from __future__ import annotations

import torch

__all__ = ["count_tokens"]


@torch.no_grad()  # type: ignore[untyped-decorator]
def count_tokens(expert_ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Return the number of tokens of each expert; experts of other devices are left out."""
    ids = expert_ids.reshape(-1).clamp(max=num_experts)
    counts = torch.zeros(num_experts + 1, dtype=torch.float32, device=ids.device)
    return counts.scatter_add_(0, ids, torch.ones_like(ids, dtype=torch.float32))[:-1]
