"""Parts of W&B's library that code imports."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.disabled_run import DisabledWandbRun as RunDisabled
from tachograph.wandb.sdk.lib import disabled, runid

__all__ = ["RunDisabled", "disabled", "runid"]
