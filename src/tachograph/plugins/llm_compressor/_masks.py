"""Masks: the positions of the zeros in weights, found once and filled with zero again after every optimizer step.

A mask is true where a weight is zero. It is filled, not multiplied: 0 * inf would be NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from tachograph.plugins.llm_compressor._recipe import ConstantPruning, Target

__all__ = ["count_violations", "find_weights", "fill_zeros", "layer_type", "pack_bits", "unpack_bits"]


def find_weights(model: Any, modifier: ConstantPruning) -> dict[str, Any]:
    """Return the matrices of a model that a modifier selects, by name.

    A target selects a matrix by its own name, or by the name or the class of the module that it belongs to. Biases and
    the weights of norms are never selected: they are not pruned.

    Raises:
        ValueError: if a target selects nothing.
    """
    weights: dict[str, Any] = {}
    names: dict[int, str] = {}
    for target in modifier.targets:
        num_matched = 0
        for name, parameter, module_name, module in _matrices(model):
            if not _matches(target, name, module_name, module):
                continue
            num_matched += 1
            if not any(_matches(other, name, module_name, module) for other in modifier.ignore):
                weights[names.setdefault(id(parameter), name)] = parameter  # tied weights have two names
        if not num_matched:
            kinds = sorted({layer_type(name) for name, *_ in _matrices(model)})
            raise ValueError(
                f"target {target.text!r} matches no matrix of {type(model).__name__}; the names of its matrices end "
                f"with {', '.join(kinds)}. Correct the target, or remove it from the recipe."
            )
    return weights


def _matrices(model: Any) -> Iterable[tuple[str, Any, str, Any]]:
    """Yield each parameter with two or more dimensions: its name, itself, and the name of its module and the module."""
    for module_name, module in model.named_modules(remove_duplicate=False):
        for own_name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim >= 2:
                yield f"{module_name}.{own_name}" if module_name else own_name, parameter, module_name, module


def _matches(target: Target, name: str, module_name: str, module: Any) -> bool:
    return target.matches_name(name) or target.matches_name(module_name) or target.matches_class(type(module))


def layer_type(name: str) -> str:
    """Return the last part of the name of a weight that is not `weight`: `q_proj` for `layers.0.q_proj.weight`."""
    parts = [part for part in name.split(".") if part != "weight"]
    return parts[-1] if parts else name


@torch.no_grad()  # type: ignore[untyped-decorator]
def fill_zeros(weights: Mapping[str, Any], masks: Mapping[str, torch.Tensor]) -> None:
    """Set the masked positions of weights to zero."""
    for name, weight in weights.items():
        weight.masked_fill_(masks[name], 0)


@torch.no_grad()  # type: ignore[untyped-decorator]
def count_violations(weights: Mapping[str, Any], masks: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the number of masked positions that are not zero, as a tensor, without waiting for the device."""
    counts = [((weight != 0) & masks[name]).sum() for name, weight in weights.items()]
    return torch.stack(counts).sum()


def pack_bits(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask as bytes: position i is bit i % 8 of byte i // 8, the lowest bit first."""
    bits = np.packbits(mask.detach().cpu().reshape(-1).numpy(), bitorder="little")
    return torch.from_numpy(bits)


def unpack_bits(mask_bytes: torch.Tensor, shape: Iterable[int]) -> torch.Tensor:
    """Return the mask that `pack_bits` packed.

    Raises:
        ValueError: if the number of bytes does not fit the shape.
    """
    shape = tuple(shape)
    count = int(np.prod(shape))
    if mask_bytes.numel() != (count + 7) // 8:
        raise ValueError(f"{mask_bytes.numel()} bytes of bits do not fit the shape {list(shape)}")
    bits = np.unpackbits(mask_bytes.numpy(), count=count, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_)).reshape(shape)
