"""The implementation of `tachograph.wandb`, the interface of W&B that records to runs."""
