"""The place of `Video` in W&B."""

from __future__ import annotations

from tachograph.wandb.data_types import Video

__all__ = ["Video"]
