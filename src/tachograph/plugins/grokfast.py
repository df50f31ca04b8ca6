"""Grokfast: amplify the slow part of the gradient, to generalise earlier.

With `ema`, the filter keeps an exponential moving average of each gradient and adds it to the gradient before the
optimizer step: ``average = alpha * average + (1 - alpha) * gradient``, then ``gradient += lamb * average``. With `ma`,
the average covers the last `grokfast_window` gradients. See Lee et al., 2024, https://arxiv.org/abs/2405.20233.

A step whose gradients are not finite, as when the scale of 16-bit gradients is too large, is left out: the optimizer
skips it, and one infinite value would stay in the averages for ever.

The trainer clips gradients before callbacks see them, so the norm that the optimizer sees is up to ``1 + lamb`` times
`max_grad_norm`. Both norms are reported; `grokfast_clip_after` clips again.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph.plugins._base import BasePlugin, PluginConfig, Slots, TrainingSetup

__all__ = ["GrokfastOptions", "GrokfastPlugin"]


class GrokfastOptions(BaseModel):
    """The options of Grokfast."""

    grokfast_filter: Literal["ema", "ma"] = Field("ema", description="The average: exponential, or of a window.")
    grokfast_alpha: float = Field(0.98, description="How much of the average is kept in each step, below 1.")
    grokfast_lamb: float = Field(
        2.0, ge=0, description="How much of the average is added to the gradient; 0 turns the plugin off."
    )
    grokfast_window: int = Field(100, ge=1, description="Number of gradients in the average of the filter `ma`.")
    grokfast_warmup: bool = Field(True, description="With `ma`, add nothing until the window is full.")
    grokfast_clip_after: bool = Field(False, description="Clip the filtered gradient to `max_grad_norm` again.")

    @model_validator(mode="after")
    def _check(self) -> GrokfastOptions:
        alpha, lamb = self.grokfast_alpha, self.grokfast_lamb
        if not 0 <= alpha < 1:
            hint = f" Perhaps alpha and lamb ({lamb:g}) are swapped." if 0 <= lamb < 1 else ""
            raise ValueError(
                f"grokfast_alpha={alpha:g} must be at least 0 and below 1: with alpha >= 1 the average never forgets, "
                f"and above 1 it grows with every step.{hint}"
            )
        return self


class GrokfastPlugin(BasePlugin):
    """Adds the slow part of the gradient to the gradient."""

    name = "grokfast"
    Options = GrokfastOptions
    slots = (Slots.GRADIENT_FILTER,)
    measured = (
        "time: 1.07x per step on an H200, 877 M parameters, 8,192 tokens",
        "memory: the averages take 1.0x of the trainable parameters in 32 bits",
    )

    options: GrokfastOptions

    def __init__(self) -> None:
        self._averages: dict[str, torch.Tensor] = {}
        self._windows: dict[str, deque[torch.Tensor]] = {}

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return whether nothing would be added."""
        return "" if self.options.grokfast_lamb else "grokfast_lamb is 0"

    def check_setup(self, cfg: PluginConfig, setup: TrainingSetup) -> None:
        """Check that the window is full before the training ends."""
        self.check_window(setup.num_steps)

    def check_window(self, num_steps: int) -> None:
        """Raise an error if the average of `ma` is never added."""
        options = self.options
        if options.grokfast_filter == "ma" and options.grokfast_warmup and options.grokfast_window > num_steps:
            raise self.error(
                f"grokfast_window={options.grokfast_window} is longer than the training of {num_steps} steps, so "
                "nothing would be added: lower it, or set `grokfast_warmup: false`"
            )

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return the number of filtered gradients and their memory."""
        if model is None:
            return []
        parameters = [value for value in model.parameters() if value.requires_grad]
        size = sum(value.numel() for value in parameters) * 4
        copies = self.options.grokfast_window if self.options.grokfast_filter == "ma" else 1
        return [f"filters the gradients of {len(parameters)} parameters; {size * copies / 2**20:.1f} MiB of averages"]

    def add_callbacks_post_trainer(self, cfg: PluginConfig, trainer: Any) -> list[Any]:
        """Return the callback that filters before each optimizer step."""
        names = [name for name, value in trainer.model.named_parameters() if value.requires_grad]
        if not names:
            raise self.error("no parameter of the model is trained")
        self.report.changed("gradients filtered", names)
        return [_FilterCallback(self, trainer)]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def filter(self, model: Any) -> None:
        """Filter the gradients of a model in place."""
        gradient_by_name = {
            name: parameter.grad
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and parameter.requires_grad
        }
        if not gradient_by_name:
            return
        lamb = self.options.grokfast_lamb
        names, gradients = list(gradient_by_name), list(gradient_by_name.values())
        before = _norm(gradients)
        if not torch.isfinite(before):
            self.report.count("steps_skipped", 1)
            return
        averages = self._add_to_averages(names, [gradient.float() for gradient in gradients])
        self.report.set("grad_norm_before", before)
        if averages is None:
            self.report.set("grad_norm_after", before)
            return
        corrections = [average.to(gradient.dtype) for average, gradient in zip(averages, gradients, strict=True)]
        torch._foreach_add_(gradients, corrections, alpha=lamb)
        self.report.effect()
        after, average_norm = _norm(gradients), _norm(averages)
        self.report.set("grad_norm_after", after)
        self.report.set("average_norm", average_norm)
        # |g + l a|² = |g|² + 2 l g·a + l² |a|²: the product follows from the norms, without another pass.
        product = (after**2 - before**2 - (lamb * average_norm) ** 2) / (2 * lamb)
        self.report.set("cosine", product / (before * average_norm).clamp(min=1e-30))

    def is_active(self) -> bool:
        """Return whether an average was added since the last log; not while the window of `ma` fills."""
        return self.report.had_effect()

    def _add_to_averages(self, names: list[str], gradients: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """Add gradients in 32 bits to their averages, and return the averages; None while the filter warms up."""
        options = self.options
        if options.grokfast_filter == "ma":
            return self._add_to_windows(names, gradients)
        pairs = [
            (self._averages[name], entry)
            for name, entry in zip(names, gradients, strict=True)
            if name in self._averages
        ]
        if pairs:
            averages = [average for average, _ in pairs]
            torch._foreach_mul_(averages, options.grokfast_alpha)
            torch._foreach_add_(averages, [entry for _, entry in pairs], alpha=1 - options.grokfast_alpha)
        for name, entry in zip(names, gradients, strict=True):  # a parameter may get its first gradient in any step
            if name not in self._averages:
                self._averages[name] = entry.clone()
        return [self._averages[name] for name in names]

    def _add_to_windows(self, names: list[str], gradients: list[torch.Tensor]) -> list[torch.Tensor] | None:
        size = self.options.grokfast_window
        for name, entry in zip(names, gradients, strict=True):
            self._windows.setdefault(name, deque(maxlen=size)).append(entry.clone())
        windows = [self._windows[name] for name in names]
        if self.options.grokfast_warmup and any(len(window) < size for window in windows):
            return None
        means = [window[0].clone() for window in windows]
        for window, mean in zip(windows, means, strict=True):
            for entry in list(window)[1:]:
                mean.add_(entry)
            mean.div_(len(window))
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return the averages."""
        return {"averages": self._averages, "windows": {name: list(window) for name, window in self._windows.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the averages; each moves to the device of its gradient when it is first used."""
        self._averages = dict(state["averages"])
        size = self.options.grokfast_window
        self._windows = {name: deque(window, maxlen=size) for name, window in state["windows"].items()}

    def move_to(self, model: Any) -> None:
        """Move the averages to the devices of the parameters."""
        devices = {name: parameter.device for name, parameter in model.named_parameters()}
        for name, average in self._averages.items():
            self._averages[name] = average.to(devices.get(name, average.device))
        for name, window in self._windows.items():
            entries = [entry.to(devices.get(name, entry.device)) for entry in window]
            self._windows[name] = deque(entries, maxlen=window.maxlen)


class _FilterCallback(TrainerCallback):
    """Filters the gradients before each optimizer step, that is, once per accumulated step."""

    def __init__(self, plugin: GrokfastPlugin, trainer: Any) -> None:
        self._plugin = plugin
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Check the window, and move a restored state to the devices of the model."""
        self._plugin.check_window(state.max_steps)
        self._plugin.move_to(model)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Filter the gradients."""
        _unscale_gradients(self._trainer.accelerator)
        self._plugin.filter(model)
        if self._plugin.options.grokfast_clip_after and args.max_grad_norm:
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], args.max_grad_norm)


def _unscale_gradients(accelerator: Any) -> None:
    """Divide the gradients of 16-bit training by the loss scale, unless the trainer did so to clip or measure them."""
    if getattr(accelerator, "scaler", None) is None:
        return
    try:
        accelerator.unscale_gradients()
    except RuntimeError as error:
        if "already been called" not in str(error):
            raise


def _norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all tensors together, on the device of the first."""
    norms = torch._foreach_norm([tensor.float() for tensor in tensors])
    return torch.stack([norm.to(norms[0].device) for norm in norms]).norm()
