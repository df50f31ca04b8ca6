"""The place of the disabled run in W&B."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.disabled_run import DisabledWandbRun as RunDisabled

__all__ = ["RunDisabled"]
