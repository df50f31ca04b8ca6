"""Weights & Biases: metrics, config and state of a run, in the project that `WANDB_PROJECT` names.

`WANDB_MODE=offline` keeps everything on this machine. Steps are sent as the metric `global_step`, which the charts use
as their axis: W&B's own step may not go back, and a resumed run does.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import wandb

from tachograph.journal import RunFolder
from tachograph.sinks._follower import metrics_of

__all__ = ["WandbSink"]


class WandbSink:
    """Hands a run on to W&B."""

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None
        self._status = "finished"

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Begin or resume the W&B run with the same id."""
        with contextlib.suppress(Exception):  # what a failure left
            self.close()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "tachograph"),
            id=start.get("run_id"),
            name=folder.name,
            config=start.get("config") or {},
            tags=start.get("tags") or [],
            dir=str(folder.path),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def write(self, records: list[dict[str, Any]]) -> None:
        """Log each record's numbers."""
        for record in records:
            if record["event"] == "end":
                self._status = str(record.get("status", "finished"))
            metrics: dict[str, Any] = metrics_of(record)
            if metrics:
                if isinstance(record.get("global_step"), int):
                    metrics["global_step"] = record["global_step"]
                self._run.log(metrics)

    def close(self) -> None:
        """End the W&B run as the run ended."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish(exit_code=0 if self._status == "finished" else 1)
