"""W&B: a sink, an importer, and the module `tachograph.wandb`."""
