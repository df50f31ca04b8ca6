"""The W&B run of an exporter. Importing this module imports W&B."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import wandb

from tachograph.bridges.wandb.sink import client_settings

__all__ = ["WandbClient"]


class WandbClient:
    """A W&B run, beside the W&B runs that the program may have.

    Args:
        config: the fields of the exporter's config.
        pid: the training process.
    """

    def __init__(self, config: dict[str, Any], pid: int) -> None:
        connection = {"base_url": config["host"], "api_key": config["api_key"]}
        Path(config["save_dir"]).mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            entity=config["entity"] or None,
            project=config["project"],
            name=config["run_name"],
            dir=config["save_dir"],
            tags=config["tags"],
            reinit="create_new",
            settings=client_settings(pid, **{name: value for name, value in connection.items() if value}),
        )

    def log(self, metrics: dict[str, Any]) -> None:
        """Log metrics, with the time."""
        self._run.log({**metrics, "app_last_log_time": int(time.time() * 1000)}, commit=True)

    def finish(self, exit_code: int) -> None:
        """Finish the run and wait for its upload."""
        self._run.finish(exit_code=exit_code)
