"""Cut Cross Entropy: compute the loss of a language model without its logits.

The logits of a batch, [tokens, vocabulary], are often the largest tensor of a training, and the usual loss makes
several copies of them. `_chunked.py` computes the same loss chunk by chunk, on any device and in any type. The package
`cut_cross_entropy` has a GPU kernel that keeps them out of memory altogether. See Wijmans et al., 2024,
https://arxiv.org/abs/2411.09009.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator

from tachograph.plugins._base import BasePlugin, LossResult, PluginConfig, Slots, TrainingSetup
from tachograph.plugins._device_timer import DeviceTimer
from tachograph.plugins._output_head import IGNORE_INDEX, HeadInput, OutputHead, check_setup
from tachograph.plugins.cut_cross_entropy._chunked import has_kernel, linear_cross_entropy, plan_chunks

__all__ = ["CutCrossEntropyOptions", "CutCrossEntropyPlugin", "linear_cross_entropy"]

_PACKAGE = "cut_cross_entropy"
_INSTALL = "pip install cut-cross-entropy==25.1.1"
_HALF = (torch.bfloat16, torch.float16)


class CutCrossEntropyOptions(BaseModel):
    """The options of Cut Cross Entropy."""

    cut_cross_entropy: bool = Field(True, description="`false` turns the plugin off.")
    cut_cross_entropy_impl: Literal["auto", "chunked", "cce", "torch_compile"] = Field(
        "auto",
        description="`chunked` is exact and works everywhere; `cce` and `torch_compile` come from the package "
        "cut-cross-entropy. `auto` is `chunked`; on a GPU without Triton it is `cce` if that can be used.",
    )
    cut_cross_entropy_chunk_size: int | None = Field(
        None, ge=1, description="Tokens per chunk of `chunked`; by default chosen from the sizes of the model."
    )

    @model_validator(mode="after")
    def _check(self) -> CutCrossEntropyOptions:
        if self.cut_cross_entropy_chunk_size is not None and self.cut_cross_entropy_impl not in ("auto", "chunked"):
            raise ValueError(
                f"cut_cross_entropy_chunk_size={self.cut_cross_entropy_chunk_size} has no effect with "
                f"cut_cross_entropy_impl={self.cut_cross_entropy_impl}: remove one of them"
            )
        return self


class CutCrossEntropyPlugin(BasePlugin):
    """Computes the cross entropy of the next token without the logits."""

    name = "cut_cross_entropy"
    needs = ("a GPU and the package cut-cross-entropy, only for its kernel",)
    Options = CutCrossEntropyOptions
    slots = (Slots.LOSS,)
    measured = (
        "H200, 8,192 tokens, vocabulary of 128,256, bfloat16: a step of a Llama with 1.2 billion parameters takes "
        "0.95x the time and 0.57x the memory above the weights",
        "the loss alone, hidden size 2048: 0.67x the time, 0.087x the memory; hidden size 4096: 1.01x and 0.100x",
    )

    options: CutCrossEntropyOptions
    _head: OutputHead

    def __init__(self) -> None:
        self._num_labels = 0
        self._has_package = importlib.util.find_spec(_PACKAGE) is not None  # too slow for every step
        self._timer = DeviceTimer(self.report, "ms")

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return whether the config turns it off."""
        return "" if self.options.cut_cross_entropy else "cut_cross_entropy is false"

    def register(self, cfg: dict[str, Any]) -> None:
        """Reject a second way to compute the loss in chunks."""
        if cfg.get("chunked_cross_entropy") and cfg.get("cut_cross_entropy") is not False:
            raise self.error(
                "chunked_cross_entropy=true also replaces the loss: remove it, or remove this plugin from `plugins`"
            )

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return the head and the memory that its logits would need."""
        options = self.options
        if options.cut_cross_entropy_impl in ("cce", "torch_compile"):
            self._require_package()
        if model is None:
            return []
        head = OutputHead(self, model)
        vocabulary, size = head.linear().weight.shape
        chunk = plan_chunks(8192, vocabulary, size, torch.bfloat16, chunk_size=options.cut_cross_entropy_chunk_size)
        return [
            f"computes the loss of {vocabulary} logits per token ({options.cut_cross_entropy_impl}); for 8192 tokens "
            f"in 16 bits, logits of {8192 * vocabulary * 2 / 2**20:.0f} MiB are not kept, "
            f"`chunked` keeps {chunk.rows * vocabulary * 2 / 2**20:.0f} MiB"
        ]

    def check_setup(self, cfg: PluginConfig, setup: TrainingSetup) -> None:
        """Check that the trainer uses the loss of the model, and that the implementation can compute it."""
        check_setup(self, cfg, setup)
        self._check_impl(setup.arguments, OutputHead(self, setup.model))

    def post_trainer_create(self, cfg: PluginConfig, trainer: Any) -> None:
        """Check that the trainer uses the loss of the model, and patch the head."""
        head = OutputHead(self, trainer.model)
        self._check_impl(trainer.args, head)
        head.attach(trainer)
        self._head = head

    def _check_impl(self, args: Any, head: OutputHead) -> None:
        impl = self.options.cut_cross_entropy_impl
        if impl in ("cce", "torch_compile"):
            self._require_package()
            if head.linear().bias is not None:
                raise self.error(f"{impl} does not support an output head with a bias: use `chunked`")
        if impl == "cce":
            if args.device.type != "cuda":
                raise self.error(
                    f"cut_cross_entropy_impl=cce needs a CUDA GPU, but the training runs on {args.device}: "
                    f"use `auto` or `chunked`"
                )
            dtype = head.linear().weight.dtype
            if dtype not in _HALF and not (args.bf16 or args.fp16):
                raise self.error(f"cut_cross_entropy_impl=cce needs 16 bits, got {dtype}: set bf16, or use `chunked`")

    def _require_package(self) -> None:
        if not self._has_package:
            raise self.error(
                f"cut_cross_entropy_impl={self.options.cut_cross_entropy_impl} needs the package cut-cross-entropy: "
                f"{_INSTALL}, or use `chunked`"
            )

    # Training --------------------------------------------------------------------------------------------------------

    def compute_loss(self, trainer: Any, model: Any, inputs: dict[str, Any]) -> LossResult:
        """Return the loss of a batch."""
        labels = self._head.labels_of(inputs)
        if not model.training and self._head.needs_logits:
            outputs = model(**inputs)
            count = int((labels != IGNORE_INDEX).sum())
            return LossResult(outputs.loss * count, count, outputs)
        outputs = self._head.run(model, inputs, self._loss)
        mean = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        return LossResult(mean * self._num_labels, self._num_labels, {"loss": mean})

    def _loss(self, head: HeadInput) -> torch.Tensor:
        """Return the mean loss of the label tokens, and report how it was computed."""
        impl = self._choose(head)
        with self._timer.measure(head.hidden_states.device):
            if impl == "chunked":
                total, self._num_labels = linear_cross_entropy(
                    head.hidden_states,
                    head.weight,
                    head.labels,
                    bias=head.bias,
                    ignore_index=head.ignore_index,
                    scale=head.scale,
                    softcap=head.softcap,
                    chunk_size=self.options.cut_cross_entropy_chunk_size,
                )
            else:
                total, self._num_labels = package_cross_entropy(head, impl)
        self.report.set("kernel", float(impl == "cce"))
        self.report.add("tokens", float(self._num_labels))
        self.report.add("logit_bytes_avoided", float(len(head.labels) * head.weight.shape[0] * head.weight.itemsize))
        return total / max(self._num_labels, 1)

    def _choose(self, head: HeadInput) -> str:
        impl = self.options.cut_cross_entropy_impl
        if impl != "auto":
            return impl
        fits = head.hidden_states.is_cuda and head.weight.dtype in _HALF and head.bias is None
        # With its own kernel, `chunked` is faster than the package.
        return "cce" if fits and self._has_package and not has_kernel(head.weight) else "chunked"

    def is_active(self) -> bool:
        """Return whether a loss was computed since the last call, and read the times of a GPU."""
        self._timer.flush()
        return super().is_active()


def package_cross_entropy(head: HeadInput, impl: str) -> tuple[torch.Tensor, int]:
    """Return the summed loss, computed by the package cut-cross-entropy, and the number of labels."""
    from cut_cross_entropy import linear_cross_entropy as package_loss

    rows = (head.labels != head.ignore_index).nonzero().squeeze(1)
    if not len(rows):
        return head.hidden_states.sum() * 0.0 + head.weight.sum() * 0.0, 0
    hidden_states = head.hidden_states if head.scale == 1.0 else head.hidden_states * head.scale
    total = package_loss(
        hidden_states.index_select(0, rows),
        head.weight,
        head.labels.index_select(0, rows),
        softcap=head.softcap,
        reduction="sum",
        impl=impl,
    )
    return total.float(), len(rows)
