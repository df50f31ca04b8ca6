"""The place of `Run` in W&B."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.run import WandbRun as Run

__all__ = ["Run"]
