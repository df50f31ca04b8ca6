"""Places of W&B's classes that code imports from."""

from __future__ import annotations

from tachograph.wandb.sdk import data_types, lib, wandb_run

__all__ = ["data_types", "lib", "wandb_run"]
