"""W&B's glue for frameworks, which has no counterpart here: `tachograph.integrations` does the same."""

raise ModuleNotFoundError(
    "wandb.integration is not part of tachograph.wandb: use tachograph.integrations, or log values with wandb.log",
    name="wandb.integration",
)
