"""The place of `Video` in W&B."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.data_types import Video

__all__ = ["Video"]
