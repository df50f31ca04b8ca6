"""Adds noise to the gradients of a training: a start for a plugin of your own."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import BaseModel, Field
from tachograph.plugins import BasePlugin, PluginConfig, Slots
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["MyPlugin", "MyOptions"]


class MyOptions(BaseModel):
    """The config keys of the plugin. The prefix keeps them apart from the keys of others."""

    my_plugin_noise: float = Field(
        0.01, ge=0, description="Standard deviation of the noise, as a share of the gradient's; 0 turns it off."
    )


class MyPlugin(BasePlugin):
    """Adds noise to the gradients."""

    name = "my_plugin"
    Options = MyOptions
    slots = (Slots.GRADIENT_FILTER,)  # two plugins that filter gradients are an error

    options: MyOptions

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return which option turns the plugin off, if one does."""
        return "" if self.options.my_plugin_noise else "my_plugin_noise is 0"

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return what the plugin would do, for `tacho train --dry-run`."""
        return [f"adds noise of {self.options.my_plugin_noise:.1%} to all gradients"]

    def add_callbacks_post_trainer(self, cfg: PluginConfig, trainer: Any) -> list[Any]:
        """Return the callback that adds the noise."""
        return [_NoiseCallback(self)]


class _NoiseCallback(TrainerCallback):
    def __init__(self, plugin: MyPlugin) -> None:
        self._plugin = plugin

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Change the gradients; `plugin/my_plugin/noise_norm` records by how much."""
        size = self._plugin.options.my_plugin_noise
        squares = 0.0
        for parameter in kwargs["model"].parameters():
            if parameter.grad is not None and parameter.grad.numel() > 1:
                noise = torch.randn_like(parameter.grad) * parameter.grad.std() * size
                parameter.grad += noise
                squares += float(noise.square().sum())
        self._plugin.report.set("noise_norm", squares**0.5)
