"""Liger: replace parts of a language model by faster Triton kernels that need less memory.

The kernels come from the package liger-kernel. They compute the same as the parts that they replace, except for
rounding: rotary embeddings, norms, gated layers, and the loss. See Hsu et al., 2024, https://arxiv.org/abs/2410.10989.

`_kernels.py` applies them to the model of the training, and finds out what they changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field, model_validator

from tachograph._base.patching import Patches
from tachograph.exceptions import PluginError
from tachograph.plugins._base import BasePlugin, PluginConfig, Slots, TrainingSetup
from tachograph.plugins._output_head import OutputHead, causal_model, check_arguments, check_setup
from tachograph.plugins.liger._kernels import KERNELS, KernelChange, apply_kernel, scale_tokens, supported_types

__all__ = ["LigerOptions", "LigerPlugin"]

_LOSSES = ("cross_entropy", "fused_linear_cross_entropy")
_DEVICES = ("cuda", "xpu", "npu")


class LigerOptions(BaseModel):
    """The options of Liger. A kernel that is not named is off."""

    liger_rope: bool | None = Field(None, description="Kernel of rotary position embeddings.")
    liger_rms_norm: bool | None = Field(None, description="Kernel of RMS norms.")
    liger_rms_norm_gated: bool | None = Field(
        None, description="Kernels of the gated RMS norms of hybrid models such as Qwen3-Next and Qwen3.5."
    )
    liger_layer_norm: bool | None = Field(None, description="Kernel of layer norms.")
    liger_glu_activation: bool | None = Field(None, description="Kernel of gated layers: SwiGLU or GEGLU.")
    liger_swiglu: bool | None = Field(None, description="Former name of `liger_glu_activation`.")
    liger_cross_entropy: bool | None = Field(None, description="Kernel of the cross entropy of given logits.")
    liger_fused_linear_cross_entropy: bool | None = Field(
        None, description="Kernel of output head and cross entropy together, which never has all logits in memory."
    )
    liger_use_token_scaling: bool | None = Field(
        None, description="Weight each token's loss by its probability; needs `liger_fused_linear_cross_entropy`."
    )

    @model_validator(mode="after")
    def _check(self) -> LigerOptions:
        if self.liger_swiglu is not None and self.liger_glu_activation is not None:
            raise ValueError("liger_swiglu and liger_glu_activation are the same kernel: remove liger_swiglu")
        if self.liger_cross_entropy and self.liger_fused_linear_cross_entropy:
            raise ValueError(
                "liger_cross_entropy and liger_fused_linear_cross_entropy both replace the loss: remove one of them"
            )
        if self.liger_use_token_scaling and not self.liger_fused_linear_cross_entropy:
            raise ValueError("liger_use_token_scaling needs `liger_fused_linear_cross_entropy: true`")
        if not self.model_fields_set or all(value is None for value in self.model_dump().values()):
            raise ValueError(
                "no kernel is turned on: set some of liger_rope, liger_rms_norm, liger_glu_activation and "
                "liger_fused_linear_cross_entropy to true"
            )
        return self

    def kernels(self) -> list[str]:
        """Return the kernels that are on."""
        flags = {kernel: getattr(self, f"liger_{kernel}") for kernel in KERNELS}
        flags["glu_activation"] = flags["glu_activation"] or self.liger_swiglu
        return [kernel for kernel, is_on in flags.items() if is_on]


class LigerPlugin(BasePlugin):
    """Replaces parts of the model by kernels of the package liger-kernel."""

    name = "liger"
    Options = LigerOptions
    requires = ("liger_kernel",)
    extra = "liger"
    needs = ("a GPU",)
    measured = (
        "memory: 0.37x on an H200, Llama with 372 million parameters, a vocabulary of 128,256, 8 x 1024 tokens",
        "time: 1.05x per step there, between 0.91x and 1.22x",
    )

    options: LigerOptions

    def register(self, cfg: dict[str, Any]) -> None:
        """Reject settings that replace the same parts, or that the kernels do not support."""
        if cfg.get("use_liger_kernel"):
            raise self.error("use_liger_kernel also applies the kernels: remove it")
        if cfg.get("chunked_cross_entropy") and any(cfg.get(f"liger_{loss}") for loss in _LOSSES):
            raise self.error("chunked_cross_entropy=true also replaces the loss: remove it")

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return whether the config turns all kernels off."""
        return "" if self.options.kernels() else "all its kernels are false"

    def claims(self, cfg: PluginConfig) -> Iterable[str]:
        """Return the loss, if a kernel of it is on."""
        return (Slots.LOSS,) if set(_LOSSES) & set(self.options.kernels()) else ()

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return the parts that each kernel would replace."""
        if model is None:
            return []
        with Patches() as patches:
            changes = self._apply(cfg, model, patches)
        return [_describe(kernel, change, type(causal_model(model)).__name__) for kernel, change in changes.items()]

    def check_setup(self, cfg: PluginConfig, setup: TrainingSetup) -> None:
        """Check the device, and that the trainer uses the loss of the model if a kernel computes it."""
        arguments = setup.arguments
        self._check_device(arguments.device.type)
        if arguments.n_gpu > 1:
            raise self.error(
                f"{arguments.n_gpu} GPUs in one process are not supported: start one process per GPU with torchrun"
            )
        if self.claims(cfg):
            check_setup(self, cfg, setup)

    def post_model_load(self, cfg: PluginConfig, model: Any) -> None:
        """Apply the kernels to the model."""
        import torch

        self._check_device("cuda" if torch.cuda.is_available() else next(model.parameters()).device.type)
        for kernel, change in self._apply(cfg, model, self.patches).items():
            self.report.set(kernel, float(any(change)))
            if any(change):
                self.report.changed(f"{kernel} kernel", [*change.modules, *change.functions])
        if self.options.liger_use_token_scaling:
            self.report.changed("loss of each token scaled by its probability", count=1)

    def post_trainer_create(self, cfg: PluginConfig, trainer: Any) -> None:
        """Check the trainer: it may have another device and another loss than the model."""
        self._check_device(trainer.args.device.type)
        if not self.claims(cfg):
            return
        kinds = [kind.__name__ for kind in type(trainer).__mro__ if kind.__module__.startswith("trl.")]
        if kinds and (self.options.liger_fused_linear_cross_entropy or "SFTTrainer" not in kinds):
            loss = "fused_linear_cross_entropy" if self.options.liger_fused_linear_cross_entropy else "cross_entropy"
            raise self.error(f"TRL's {kinds[0]} does not support liger_{loss}: remove the option")
        check_arguments(self, trainer.args)
        if getattr(trainer, "compute_loss_func", None):
            raise self.error(
                "the trainer has a loss of its own: remove compute_loss_func, or the loss from the options"
            )

    def _apply(self, cfg: PluginConfig, model: Any, patches: Patches) -> dict[str, KernelChange]:
        model = causal_model(model)
        kind = model.config.model_type
        if kind not in supported_types():
            raise self.error(
                f"liger-kernel has no kernels for models of the type {kind!r}, only for {', '.join(supported_types())}"
            )
        kernels = self.options.kernels()
        if set(_LOSSES) & set(kernels):
            head = OutputHead(self, model)
            if "fused_linear_cross_entropy" in kernels and head.linear().bias is not None:
                raise self.error(
                    "liger_fused_linear_cross_entropy does not support an output head with a bias: use "
                    "liger_cross_entropy"
                )
        try:
            changes = {kernel: apply_kernel(model, kernel, patches) for kernel in kernels}
        except PluginError as error:
            raise self.error(str(error)) from error
        if not any(any(change) for change in changes.values()):
            raise self.error(f"{type(model).__name__} has none of the parts that {', '.join(kernels)} replace")
        experts = [name for name in changes.get("glu_activation", KernelChange([], [])).modules if "expert" in name]
        has_expert_kernels = cfg.experts_implementation in ("scattermoe", "sonicmoe")
        if experts and (cfg.use_scattermoe or cfg.use_sonicmoe or has_expert_kernels):
            raise self.error(
                "liger_glu_activation replaces the experts of this model, and so does the plugin kernels: remove one"
            )
        if self.options.liger_use_token_scaling:
            scale_tokens(model, patches)
        return changes

    def _check_device(self, device: str) -> None:
        if device not in _DEVICES and os.environ.get("TRITON_INTERPRET") != "1":
            raise self.error(
                f"its kernels need a GPU, but the training runs on {device}: train on a GPU, or remove this plugin "
                "from `plugins`"
            )


def _describe(kernel: str, change: KernelChange, model: str) -> str:
    if not any(change):
        return f"{kernel}: no effect, {model} has no such part"
    if kernel in _LOSSES:
        return f"{kernel}: computes the loss"
    modules = [f"{len(change.modules)} modules"] if change.modules else []
    return f"{kernel}: replaces {' and '.join([*modules, *change.functions])}"
