"""The place of `generate_id` in W&B."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.util import (
    generate_id,
)

__all__ = [
    "generate_id",
]
