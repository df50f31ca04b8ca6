"""Applies Liger kernels to one model, and finds the modules that each kernel really changed.

The package liger-kernel patches modules of the model, which are instances, and also replaces classes and functions of
transformers. A replaced class only matters to models that are built later, so it is restored at once. A replaced
function, such as the one that applies rotary embeddings, is called by the modules of the model, so it stays until the
training ends; so does a method of a class.

The package ignores some flags without an error, and does not look at some properties of a model that its kernels need:
a gated layer that has another activation than the kernel would be trained with the wrong one. Both are errors here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import torch

from tachograph._base.patching import Patches
from tachograph.exceptions import PluginError
from tachograph.plugins._observe import LibraryObserver, ModelObserver

__all__ = ["KERNELS", "KernelChange", "apply_kernel", "scale_tokens", "supported_types"]

KERNELS = (
    "rope",
    "rms_norm",
    "rms_norm_gated",
    "layer_norm",
    "glu_activation",
    "cross_entropy",
    "fused_linear_cross_entropy",
)
"""The kernels, by the name of their option without `liger_`."""

_MISSING = object()


class KernelChange(NamedTuple):
    """The parts that a kernel changed: modules of the model, and functions of the library."""

    modules: list[str]
    functions: list[str]


def supported_types() -> list[str]:
    """Return the types of models that the installed package has kernels for."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    return sorted(MODEL_TYPE_TO_APPLY_LIGER_FN)


def apply_kernel(model: Any, kernel: str, patches: Patches) -> KernelChange:
    """Apply one kernel to a model until the patches are undone.

    Args:
        model: the causal language model, without adapters around it; weights are not needed.
        kernel: one of `KERNELS`.
        patches: undo the change.

    Returns:
        The changes; empty if the model has no part that the kernel could replace.

    Raises:
        PluginError: if the model has such a part, but the kernel cannot replace it.
    """
    observer, library_observer = ModelObserver(model), LibraryObserver()
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    try:
        _APPLY.get(kernel, functools.partial(_apply_from_package, kernel=kernel))(model)
    except NotImplementedError as error:
        raise PluginError(f"liger_{kernel}: {error} Remove liger_{kernel}.") from error
    finally:
        functions = []
        for replacement in library_observer.replacements():
            if inspect.isclass(replacement.value):
                replacement.restore()
            else:
                patches.on_undo(replacement.restore)
                functions.append(replacement.label)
        for module, before in attributes:
            _restore_later(module, before, patches)
    change = KernelChange(observer.changes(model).get("modules patched", []), functions)
    if not any(change) and _PARTS[kernel](model):
        raise PluginError(
            f"liger_{kernel}: liger-kernel has no such kernel for models of the type {model.config.model_type!r}: "
            "remove the option"
        )
    _check_adapters(model, kernel, change)
    return change


def scale_tokens(model: Any, patches: Patches) -> None:
    """Let the fused loss weight each token by its probability, in training."""
    original = model.forward

    @functools.wraps(original)
    def forward(*arguments: Any, **kwargs: Any) -> Any:
        if model.training:
            kwargs["use_token_scaling"] = True
        return original(*arguments, **kwargs)

    patches.replace(model, "forward", forward)


def _apply_from_package(model: Any, kernel: str) -> None:
    """Call the function of the package for this type of model, with all other kernels off: by default they are on."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    function = MODEL_TYPE_TO_APPLY_LIGER_FN[model.config.model_type]
    parameters = inspect.signature(function).parameters
    flags = {name for name, value in parameters.items() if value.kind is not value.VAR_KEYWORD} - {"model"}
    if any(value.kind is value.VAR_KEYWORD for value in parameters.values()):
        flags |= {"rope", "rms_norm", "layer_norm", "swiglu", "geglu"}  # passed on to the parts of the model
    names = ("swiglu", "geglu") if kernel == "glu_activation" else (kernel,)
    function(model=model, **{flag: flag in names for flag in flags})
    if kernel == "glu_activation":
        _check_activations(model)


# Kernels that this module applies ------------------------------------------------------------------------------------


def _apply_cross_entropy(model: Any) -> None:
    """Replace the loss function of the model. The package replaces the one of torch, for all models in the process."""
    model.loss_function = _causal_loss


def _causal_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Return the cross entropy of the next token, scaled as in transformers."""
    from liger_kernel.transformers.functional import liger_cross_entropy

    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    loss = liger_cross_entropy(
        logits.reshape(-1, vocab_size).float(),
        shift_labels.reshape(-1).to(logits.device),
        ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
    )
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch


def _apply_gated_norm(model: Any) -> None:
    """Compute the gated norms of hybrid models with two kernels: the norm, and the gate with its multiplication."""
    for module in model.modules():
        if _is_gated_norm(module) and getattr(module, "activation", "silu") in ("silu", "swish"):
            module.forward = MethodType(_gated_norm, module)


def _gated_norm(self: Any, hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops import LigerRMSNormFunction, LigerSiLUMulFunction

    normed = LigerRMSNormFunction.apply(hidden_states, self.weight, self.variance_epsilon, 0.0, "llama", False)
    return LigerSiLUMulFunction.apply(gate, normed.to(gate.dtype)).to(hidden_states.dtype)


_APPLY: dict[str, Callable[[Any], None]] = {
    "cross_entropy": _apply_cross_entropy,
    "rms_norm_gated": _apply_gated_norm,
}


# Checks --------------------------------------------------------------------------------------------------------------


def _is_gated_norm(module: Any) -> bool:
    """Return whether a module normalises first and multiplies by the gate then, as in Qwen3-Next."""
    return type(module).__name__.startswith("Qwen3") and type(module).__name__.endswith("RMSNormGated")


def _has_class(*words: str) -> Callable[[Any], bool]:
    def has_class(model: Any) -> bool:
        return any(type(module).__name__.endswith(words) for module in model.modules())

    return has_class


def _has_gated_layer(model: Any) -> bool:
    return any(hasattr(module, "gate_proj") or hasattr(module, "gate_up_proj") for module in model.modules())


_PARTS: dict[str, Callable[[Any], bool]] = {
    "rope": _has_class("RotaryEmbedding"),
    "rms_norm": _has_class("RMSNorm"),
    "rms_norm_gated": _has_class("RMSNormGated"),
    "layer_norm": _has_class("LayerNorm", "LayerNorm1P"),
    "glu_activation": _has_gated_layer,
    "cross_entropy": lambda model: True,
    "fused_linear_cross_entropy": lambda model: True,
}
"""Whether a model has a part that a kernel could replace."""


def _check_activations(model: Any) -> None:
    """Compare the activation of each patched layer with the one of its kernel."""
    points = torch.linspace(-4, 4, 9)
    silu, gelu = torch.nn.functional.silu(points), torch.nn.functional.gelu(points, approximate="tanh")
    for name, module in model.named_modules():
        if "forward" not in vars(module):
            continue
        kernel = getattr(module.forward, "__func__", module.forward).__qualname__
        activation = getattr(module, "act_fn", None) or getattr(module, "activation_fn", None)
        if activation is None or not kernel.startswith("Liger") or "Norm" in kernel:
            continue
        expected = gelu if "GEGLU" in kernel else silu
        if not torch.allclose(activation(points), expected, atol=1e-4):
            raise PluginError(
                f"liger_glu_activation: the kernel computes {'GELU (tanh)' if 'GEGLU' in kernel else 'SiLU'}, but the "
                f"activation of {name} is {activation}: remove the option"
            )


def _check_adapters(model: Any, kernel: str, change: KernelChange) -> None:
    modules = dict(model.named_modules())
    for name in change.modules:
        if hasattr(modules.get(name), "base_layer"):
            raise PluginError(
                f"liger_{kernel}: {name} has an adapter, which the kernel would bypass: remove the option, or take the "
                "module out of `lora_target_modules` (target_modules)"
            )


def _restore_later(module: Any, before: dict[str, Any], patches: Patches) -> None:
    """Restore the attributes of a module that a kernel set, when the patches are undone."""
    changed = {name: value for name, value in vars(module).items() if before.get(name, _MISSING) is not value}

    def restore() -> None:
        for name, value in changed.items():
            if vars(module).get(name) is not value:
                continue  # someone else has replaced it since
            if name in before:
                vars(module)[name] = before[name]
            else:
                del vars(module)[name]

    if changed:
        patches.on_undo(restore)
