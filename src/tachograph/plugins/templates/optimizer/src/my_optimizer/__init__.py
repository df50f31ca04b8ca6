"""Trains with another optimizer: a start for a plugin that only creates one."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import BaseModel, Field
from tachograph.plugins import BasePlugin, PluginConfig, Slots

__all__ = ["MyOptimizerOptions", "MyOptimizerPlugin"]


class MyOptimizerOptions(BaseModel):
    """The config keys of the plugin. The prefix keeps them apart from the keys of others."""

    my_optimizer_momentum: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="How much of the last update is kept.",
    )


class MyOptimizerPlugin(BasePlugin):
    """Trains with Nesterov's momentum; the learning rate and the weight decay are those of the config."""

    name = "my_optimizer"
    Options = MyOptimizerOptions
    slots = (Slots.OPTIMIZER,)  # two plugins that create an optimizer are an error

    options: MyOptimizerOptions

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return what the plugin would do, for `tacho train --dry-run`."""
        return [f"trains with SGD and a momentum of {self.options.my_optimizer_momentum:g}"]

    def create_optimizer(self, cfg: PluginConfig, trainer: Any) -> torch.optim.Optimizer:
        """Return the optimizer; the trainer adds the schedule of the learning rate."""
        momentum = self.options.my_optimizer_momentum
        return torch.optim.SGD(
            [parameter for parameter in trainer.model.parameters() if parameter.requires_grad],
            lr=trainer.args.learning_rate,
            weight_decay=trainer.args.weight_decay,
            momentum=momentum,
            nesterov=momentum > 0,
        )
