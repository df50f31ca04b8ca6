"""`OutputHead`: run a causal language model without computing its logits.

A loss that works on hidden states and the weight of the output head needs memory for neither the logits nor their
gradient. To get there without knowing how each model computes its loss, two parts of the model are patched, on the
instance: its head returns `DeferredLogits` in place of a tensor, and its loss function receives them. In between, the
model's own `forward` runs, so that everything else it does stays: it scales or caps the logits (which the deferred
logits remember), adds the auxiliary loss of a mixture of experts, and so on.

The patches do nothing unless `run` is on the stack, so generation is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from tachograph.plugins._base import BasePlugin, PluginConfig, TrainingSetup

__all__ = [
    "IGNORE_INDEX",
    "DeferredLogits",
    "HeadInput",
    "OutputHead",
    "causal_model",
    "check_arguments",
    "check_setup",
]

IGNORE_INDEX = -100


class HeadInput(NamedTuple):
    """The inputs of a loss.

    The logits are ``softcap * tanh(scale * (hidden_states @ weight.T + bias) / softcap)``.

    Args:
        hidden_states: the hidden states, one row per token.
        weight: the weight of the output head, one row per entry of the vocabulary.
        bias: its bias, if it has one.
        labels: the token that each row predicts; `ignore_index` if there is none.
        scale: the factor that the model multiplies its logits by.
        softcap: the bound of the logits, or None if the model does not cap them.
        ignore_index: the label of rows that are left out.
    """

    hidden_states: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    labels: torch.Tensor
    scale: float = 1.0
    softcap: float | None = None
    ignore_index: int = IGNORE_INDEX


class DeferredLogits:
    """Stands for logits that are not computed. Supports the operations of models between head and loss."""

    def __init__(
        self, hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, owner: OutputHead
    ) -> None:
        self.hidden_states = hidden_states
        self.weight = weight
        self.bias = bias
        self.scale = 1.0
        self.softcap: float | None = None
        """The factor of the result of `tanh`, once it was called; `scale` is then the factor of its argument."""
        self._owner = owner

    def __mul__(self, factor: Any) -> DeferredLogits:
        if not isinstance(factor, (int, float)):
            raise self._owner.error(f"the model multiplies its logits by a {type(factor).__name__}")
        result = self._copy()
        if result.softcap is None:
            result.scale *= factor
        else:
            result.softcap *= factor
        return result

    __rmul__ = __mul__

    def __truediv__(self, factor: Any) -> DeferredLogits:
        if not isinstance(factor, (int, float)):
            raise self._owner.error(f"the model divides its logits by a {type(factor).__name__}")
        return self * (1.0 / factor)

    def tanh(self) -> DeferredLogits:
        """Return the hyperbolic tangent of the logits."""
        if self.softcap is not None:
            raise self._owner.error("the model caps its logits twice")
        result = self._copy()
        result.softcap = 1.0
        return result

    def float(self) -> DeferredLogits:
        """Return the logits: a loss computes with 32 bits anyway."""
        return self

    def to(self, *arguments: Any, **kwargs: Any) -> DeferredLogits:
        """Return the logits: the loss is computed on the device of the head."""
        return self

    def contiguous(self) -> DeferredLogits:
        """Return the logits."""
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The type that the logits would have."""
        return self.hidden_states.dtype

    @property
    def device(self) -> torch.device:
        """The device of the head."""
        return self.weight.device

    @property
    def shape(self) -> torch.Size:
        """The shape that the logits would have."""
        return torch.Size((*self.hidden_states.shape[:-1], self.weight.shape[0]))

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, arguments: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        logits = next((entry for entry in arguments if isinstance(entry, cls)), None)
        if logits is None:
            return NotImplemented
        if function is torch.tanh:
            return logits.tanh()
        raise logits._owner.error(f"the model calls {getattr(function, '__name__', function)} on its logits")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(str(self._owner.error(f"the model uses `{name}` of its logits")))

    def __getitem__(self, index: Any) -> Any:
        raise self._owner.error("the model slices its logits")

    def _copy(self) -> DeferredLogits:
        copy = DeferredLogits(self.hidden_states, self.weight, self.bias, self._owner)
        copy.scale, copy.softcap = self.scale, self.softcap
        return copy


class OutputHead:
    """The output head of a causal language model.

    Args:
        plugin: the plugin that computes the loss; it owns the patches and the errors.
        model: the model, possibly with adapters.

    Attributes:
        model: the causal language model, without adapters and wrappers.
        module: its output head.
        needs_logits: whether the evaluation that is running needs logits. Outside of `Trainer.evaluate` and `predict`,
            that is unknown, and so it is true.

    Raises:
        PluginError: if the model has no head that can be deferred.
    """

    def __init__(self, plugin: BasePlugin, model: Any) -> None:
        self._plugin = plugin
        self._loss: Callable[[HeadInput], torch.Tensor] | None = None
        self._was_used = False
        self._extra_inputs: dict[str, Any] = {}
        self.needs_logits = True
        self.model = causal_model(model)
        self.module = self._find()
        self.linear()  # raises an error if it is not supported

    @property
    def vocabulary(self) -> int:
        """The number of logits."""
        return int(self.linear().weight.shape[0])

    def _find(self) -> Any:
        from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

        model = self.model
        kind = type(model).__name__
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        if head is None or not hasattr(model, "loss_function"):
            raise self._plugin.error(f"{kind} has no output head: this plugin trains causal language models")
        if "_loss_function" in vars(model):
            raise self._plugin.error(
                f"the loss function of {kind} was replaced already: set `loss_function` of the model back, "
                f"or remove this plugin"
            )
        if LOSS_MAPPING.get(getattr(model, "loss_type", None) or "ForCausalLM") is not ForCausalLMLoss:
            raise self._plugin.error(
                f"{kind} is trained with the loss {model.loss_type}, not with the cross entropy of the next token"
            )
        return head

    def linear(self) -> Any:
        """Return the linear layer of the head; the active adapter may have a copy of it."""
        head = self.module
        if hasattr(head, "modules_to_save"):
            if getattr(head, "disable_adapters", False):
                head = head.original_module
            else:
                copies = dict(head.modules_to_save.items())
                head = next((copies[name] for name in head.active_adapters if name in copies), head.original_module)
        if hasattr(head, "lora_A") or hasattr(head, "token_adapter"):
            raise self._plugin.error(
                "the output head has an adapter: take it out of `lora_target_modules` (target_modules), "
                "or train it as a whole with `lora_modules_to_save` (modules_to_save)"
            )
        weight = getattr(head, "weight", None)
        if not isinstance(head, torch.nn.Linear) or weight is None or not weight.is_floating_point():
            raise self._plugin.error(
                f"the output head is a {type(head).__name__}, expected a linear layer that is not quantized"
            )
        return head

    def attach(self, trainer: Any) -> None:
        """Check that a trainer uses the loss of its model, and patch both.

        Raises:
            PluginError: if something else replaces the loss, or needs logits.
        """
        check_arguments(self._plugin, trainer.args)
        parallelism = getattr(trainer.accelerator, "parallelism_config", None)
        _reject(
            self._plugin,
            {
                "the trainer has a loss of its own: remove compute_loss_func": getattr(
                    trainer, "compute_loss_func", None
                ),
                "sequence parallelism is not supported: turn it off": getattr(parallelism, "sp_enabled", False),
            },
        )
        if self.linear().weight.is_meta:
            raise self._plugin.error("the weight of the output head is offloaded: load the head to a device")
        if getattr(trainer, "aux_loss_enabled", False):
            self._extra_inputs = {"output_router_logits": True}  # TRL passes it in the method that a plugin replaces
        self.patch()
        self._plugin.patches.wrap(trainer, "prediction_step", self._wrap_prediction_step)

    def _wrap_prediction_step(self, original: Any) -> Any:
        def prediction_step(model: Any, inputs: Any, prediction_loss_only: bool, *arguments: Any, **kwargs: Any) -> Any:
            self.needs_logits = not prediction_loss_only
            try:
                return original(model, inputs, prediction_loss_only, *arguments, **kwargs)
            finally:
                self.needs_logits = True

        return prediction_step

    def patch(self) -> None:
        """Patch the head and the loss function of the model."""
        original_forward = self.module.forward
        original_loss = self.model.loss_function

        def forward(hidden_states: Any, *arguments: Any, **kwargs: Any) -> Any:
            if self._loss is None:
                return original_forward(hidden_states, *arguments, **kwargs)
            linear = self.linear()
            weight, bias = _gather(linear.weight), _gather(linear.bias)
            return DeferredLogits(hidden_states.to(weight.device), weight, bias, self)

        def loss_function(logits: Any, labels: Any, *arguments: Any, **kwargs: Any) -> Any:
            if not isinstance(logits, DeferredLogits):
                return original_loss(logits, labels, *arguments, **kwargs)
            return self._deferred_loss(logits, labels, **kwargs)

        self._plugin.patches.replace(self.module, "forward", forward)
        self._plugin.patches.replace(self.model, "_loss_function", loss_function)
        self._plugin.report.changed("modules patched", [_name_of(self.model, self.module), "loss_function"])

    def labels_of(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the token that each position of a batch predicts.

        Raises:
            PluginError: if the batch has no labels.
        """
        shift_labels: torch.Tensor | None = inputs.get("shift_labels")
        if shift_labels is not None:
            return shift_labels
        labels = inputs.get("labels")
        if labels is None:
            raise self._plugin.error(
                f"the batch has no labels, only {', '.join(sorted(inputs))}: "
                f"use a data collator that adds them, such as DataCollatorForLanguageModeling(tokenizer, mlm=False)"
            )
        return _shift_labels(labels, IGNORE_INDEX)

    def run(self, model: Any, inputs: Mapping[str, Any], loss: Callable[[HeadInput], torch.Tensor]) -> Any:
        """Run the model on a batch with labels, and return its outputs, without logits.

        Args:
            model: the model as the trainer wrapped it.
            inputs: the batch.
            loss: called in place of the loss function of the model; returns the mean over the label tokens.
        """
        self._loss, self._was_used = loss, False
        try:
            outputs = model(**inputs, **self._extra_inputs)
        finally:
            self._loss = None
        if not self._was_used:
            raise self.error("the model did not pass its logits to `loss_function`")
        return outputs

    # A compiled model calls it as it is: the number of labels decides about the loops of a loss.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _deferred_loss(
        self,
        logits: DeferredLogits,
        labels: Any,
        *,
        ignore_index: int = IGNORE_INDEX,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if self._loss is None:
            raise self.error("the model computed its loss after its forward pass")
        if shift_labels is None:
            shift_labels = _shift_labels(labels, ignore_index)
        hidden_states = logits.hidden_states
        device_type = hidden_states.device.type
        weight, bias = logits.weight, logits.bias
        if torch.is_autocast_enabled(device_type):  # the head would have run in this type
            dtype = torch.get_autocast_dtype(device_type)
            hidden_states, weight = hidden_states.to(dtype), weight.to(dtype)
            bias = bias.to(dtype) if bias is not None else None
        else:
            hidden_states = hidden_states.to(weight.dtype)
        self._was_used = True
        softcap = logits.softcap
        return self._loss(
            HeadInput(
                hidden_states=hidden_states.reshape(-1, hidden_states.shape[-1]),
                weight=weight,
                bias=bias,
                labels=shift_labels.reshape(-1).to(hidden_states.device),
                scale=logits.scale if softcap is None else logits.scale * softcap,
                softcap=softcap,
                ignore_index=ignore_index,
            )
        )

    def error(self, problem: str) -> Exception:
        """Return an error about a model that does not allow its logits to be deferred."""
        return self._plugin.error(
            f"{type(self.model).__name__} is not supported: {problem}, so the loss cannot do without them. "
            f"Remove the plugin, or report this model."
        )


def check_setup(plugin: BasePlugin, cfg: PluginConfig, setup: TrainingSetup) -> None:
    """Check a training before its model is loaded.

    Raises:
        PluginError: if it has another loss, or needs logits.
    """
    if cfg.rl:
        raise plugin.error(f"it computes the loss of pre-training and SFT, not of rl: {cfg.rl}: remove one of them")
    check_arguments(plugin, setup.arguments)


def check_arguments(plugin: BasePlugin, args: Any) -> None:
    """Check training arguments.

    Raises:
        PluginError: if something else replaces the loss, or needs logits.
    """
    loss_type = getattr(args, "loss_type", "nll")
    _reject(
        plugin,
        {
            "label_smoothing_factor needs logits: set it to 0": getattr(args, "label_smoothing_factor", 0),
            f"loss_type={loss_type!r} of the trainer is another loss: set it to 'nll'": (
                loss_type not in ("nll", "chunked_nll")
            ),
            "use_liger_kernel also replaces the loss: turn it off": getattr(args, "use_liger_kernel", False),
            f"{args.n_gpu} GPUs in one process are not supported: start one process per GPU with torchrun": (
                args.n_gpu > 1
            ),
        },
    )


def _reject(plugin: BasePlugin, reasons: Mapping[str, Any]) -> None:
    for reason, applies in reasons.items():
        if applies:
            raise plugin.error(f"{reason}, or remove this plugin from `plugins`")


def causal_model(model: Any) -> Any:
    """Return the model without adapters, compilation and wrappers for several devices."""
    from accelerate.utils import extract_model_from_parallel

    inner_model = extract_model_from_parallel(model)
    return inner_model.get_base_model() if hasattr(inner_model, "get_base_model") else inner_model


def _shift_labels(labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Return the label of the next position, for each position."""
    return torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]


def _gather(parameter: Any) -> Any:
    """Return the full tensor of a parameter that may be sharded over devices."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def _name_of(model: Any, module: Any) -> str:
    return next((name for name, entry in model.named_modules() if entry is module), type(module).__name__)
