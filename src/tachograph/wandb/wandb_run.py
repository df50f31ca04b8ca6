"""The place of `Run` in older versions of W&B."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.run import WandbRun as Run

__all__ = ["Run"]
