"""The place of the error in W&B that a change of a config value raises."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.config import ConfigChangeError as ConfigError

__all__ = ["ConfigError"]
