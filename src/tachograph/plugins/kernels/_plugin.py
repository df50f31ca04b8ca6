"""The plugin `kernels`: switches the experts of a model to ScatterMoE or SonicMoE."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel, Field, model_validator

from tachograph._base.guard import warn
from tachograph.plugins._base import BasePlugin, PluginConfig, Slots, TrainingSetup
from tachograph.plugins._device_timer import DeviceTimer
from tachograph.plugins._expert_load import count_tokens
from tachograph.plugins.kernels._experts import prefers_grouped_mm, register_scattermoe, unsupported_reason

__all__ = ["KernelsOptions", "KernelsPlugin"]

_OURS = ("scattermoe", "sonicmoe")


class KernelsOptions(BaseModel):
    """The options of the plugin."""

    use_kernels: bool = Field(True, description="Turns the plugin on.")
    use_scattermoe: bool = Field(
        False, description="Compute experts with ScatterMoE, our Triton kernels; the default if nothing else is chosen."
    )
    use_sonicmoe: bool = Field(
        False, description="Compute experts with SonicMoE, which needs a Hopper or Blackwell GPU and its packages."
    )
    experts_implementation: str | None = Field(
        None, description="`scattermoe` or `sonicmoe`: another way to choose one of them."
    )
    scattermoe_auto: bool = Field(
        True, description="Leave shapes that `grouped_mm` computes faster to `grouped_mm`; false: always ScatterMoE."
    )

    @model_validator(mode="after")
    def _check(self) -> KernelsOptions:
        if not self.use_kernels:
            return self
        if self.use_scattermoe and self.use_sonicmoe:
            raise ValueError("use_scattermoe and use_sonicmoe are both true: choose one of them")
        name = self.experts_implementation
        if name is not None and name not in _OURS:
            raise ValueError(
                f"experts_implementation={name} is not a kernel of the plugin: remove the key to use its kernels, or "
                "remove the plugin"
            )
        if (self.use_sonicmoe and name == "scattermoe") or (self.use_scattermoe and name == "sonicmoe"):
            raise ValueError(f"experts_implementation={name} contradicts the other keys: choose one implementation")
        return self

    @property
    def implementation(self) -> str:
        """The chosen implementation."""
        return "sonicmoe" if self.use_sonicmoe or self.experts_implementation == "sonicmoe" else "scattermoe"


class KernelsPlugin(BasePlugin):
    """Computes the experts of a mixture-of-experts model with faster kernels."""

    name = "kernels"
    Options = KernelsOptions
    slots = (Slots.EXPERTS,)
    needs = ("a mixture-of-experts model", "a GPU for its kernels")
    measured = (
        "a layer on an H200, forward and backward in bfloat16, 64 experts, 8 per token, 4,096 tokens: 0.58x the time "
        "and 0.90x the memory of grouped_mm",
        "128 experts, 16,384 tokens: 0.51x the time; 8 experts of sizes 4096 and 14336: 1.07x, so grouped_mm is used",
    )

    options: KernelsOptions

    def __init__(self) -> None:
        self._timer = DeviceTimer(self.report, "experts_ms")
        self._sampled_layers: set[int] = set()
        self._loads: list[torch.Tensor] = []

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return whether the config turns it off."""
        return "" if self.options.use_kernels else "use_kernels is false"

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return the number of layers and their implementation."""
        self._check_sonicmoe()
        if model is None:
            return []
        layers = self._check_layers(model)
        experts = next(iter(layers.values()))
        implementation = self.options.implementation
        if implementation == "scattermoe" and self.options.scattermoe_auto and prefers_grouped_mm(experts):
            implementation = "grouped_mm, which is faster than ScatterMoE for these sizes"
        return [f"computes {experts.num_experts} experts in each of {len(layers)} layers with {implementation}"]

    def check_setup(self, cfg: PluginConfig, setup: TrainingSetup) -> None:
        """Check that the model has experts that the implementation supports, and that the device has it."""
        self._check_sonicmoe()
        self._check_layers(setup.model)
        self._check_device(setup.arguments.device)

    def post_trainer_create(self, cfg: PluginConfig, trainer: Any) -> None:
        """Switch the experts of the model."""
        self._check_sonicmoe()
        device = trainer.args.device
        self._check_device(device)
        layers = self._check_layers(trainer.model)
        implementation = self.options.implementation
        if implementation == "scattermoe":
            register_scattermoe()
        for model in _outer_models(trainer.model):
            before = model.get_experts_implementation()
            model.set_experts_implementation(implementation)
            self.patches.on_undo(partial(model.set_experts_implementation, before))
        for name, experts in layers.items():
            if experts.config._experts_implementation != implementation:
                raise self.error(f"transformers did not switch the experts of {name} to {implementation}")
            if implementation == "scattermoe":
                self.patches.replace(experts, "scattermoe_auto", self.options.scattermoe_auto)
            self._observe(experts)
        self.report.changed(f"experts computed by {implementation}", layers)
        if implementation == "scattermoe" and device.type != "cuda":
            warn(
                f"plugin kernels: the training runs on {device.type}, where ScatterMoE has no kernels: experts are "
                "computed in plain torch"
            )
        elif implementation == "scattermoe" and self.options.scattermoe_auto and trainer.args.torch_compile:
            warn(
                "plugin kernels: torch_compile is on, and grouped_mm is faster in compiled models, so it is used; set "
                "`scattermoe_auto: false` to use ScatterMoE, which needs less memory"
            )

    # Checks ----------------------------------------------------------------------------------------------------------

    def _check_layers(self, model: Any) -> dict[str, Any]:
        layers = find_experts(model)
        if not layers:
            raise self.error(
                f"{type(model).__name__} has no experts that transformers can switch: use a mixture-of-experts model, "
                "such as qwen3_moe, olmoe or mixtral, or remove the plugin"
            )
        if self.options.implementation == "scattermoe":
            for name, experts in layers.items():
                reason = unsupported_reason(experts)
                if reason:
                    raise self.error(
                        f"ScatterMoE does not support the experts of {name}, because {reason}: remove the plugin, "
                        "transformers then uses `grouped_mm`"
                    )
        return layers

    def _check_device(self, device: torch.device) -> None:
        needs_triton = self.options.implementation == "scattermoe" and device.type == "cuda"
        if needs_triton and importlib.util.find_spec("triton") is None:
            raise self.error("ScatterMoE needs the package triton: pip install triton")

    def _check_sonicmoe(self) -> None:
        if self.options.implementation != "sonicmoe":
            return
        remedy = "or set `use_scattermoe: true` instead of `use_sonicmoe: true`"
        try:
            from transformers.integrations.sonicmoe import is_sonicmoe_loadable
        except ImportError:
            raise self.error(f"SonicMoE needs a newer version of transformers: update it, {remedy}") from None
        try:
            is_sonicmoe_loadable(raise_error=True)
        except ImportError as error:
            raise self.error(f"SonicMoE cannot run here: {error} Install what it needs, {remedy}") from None

    # Training --------------------------------------------------------------------------------------------------------

    def _observe(self, experts: Any) -> None:
        """Measure the first call of a layer after each log: its time, and how many tokens each expert receives."""
        started: list[Any] = []

        def before(experts: Any, arguments: tuple[Any, ...]) -> None:
            if torch.compiler.is_compiling():
                return
            self.report.effect()
            if not experts.training or id(experts) in self._sampled_layers or len(arguments) < 2:
                return
            self._sampled_layers.add(id(experts))
            self._loads.append(count_tokens(arguments[1], experts.num_experts))
            measurement = self._timer.measure(arguments[0].device)
            measurement.__enter__()
            started.append(measurement)

        def after(experts: Any, arguments: tuple[Any, ...], output: Any) -> None:
            if started:
                started.pop().__exit__(None, None, None)

        self.patches.on_undo(experts.register_forward_pre_hook(before).remove)
        self.patches.on_undo(experts.register_forward_hook(after, always_call=True).remove)

    def is_active(self) -> bool:
        """Report the loads of experts, and read the times of a GPU."""
        self._timer.flush()
        loads, self._loads = self._loads, []
        self._sampled_layers.clear()
        for load in loads:
            relative = load / load.mean().clamp(min=1e-9)
            self.report.add("max_load", float(relative.max()))
            self.report.add("load_cv", float(relative.std(correction=0)))
            self.report.add("idle_experts", float((load == 0).float().mean()))
        return super().is_active()


def find_experts(model: Any) -> dict[str, Any]:
    """Return the modules, by name, whose implementation transformers can switch."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "has_gate") and hasattr(module, "is_transposed") and hasattr(module, "num_experts")
    }


def _outer_models(model: Any) -> list[Any]:
    """Return the models of transformers that are not part of another one; an adapter may be around them."""
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return [model]
    return [outer for child in model.children() for outer in _outer_models(child)]
