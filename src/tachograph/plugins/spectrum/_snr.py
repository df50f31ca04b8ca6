"""The signal-to-noise ratio (SNR) of weight matrices, and the choice of layers by it.

The singular values of a random matrix lie below a bound that follows from the spread of its entries. Those above it are
the signal. With S the singular values in descending order::

    sigma     = (75 % quantile of S - 25 % quantile of S) / 1.349      the spread, robust against outliers
    threshold = sigma * (1 + sqrt(short side / long side))
    snr       = sum(S > threshold) / sum(S <= threshold) / S[0]        the noise is 1 if there is none

The threshold has no factor for the size of the matrix, unlike the Marchenko-Pastur bound that it resembles. That is how
Spectrum defines it, and the ratios must be comparable with published ones. See Hartford et al., 2024,
https://arxiv.org/abs/2406.06623.

Layers are compared with layers of the same type: the name without the index of the layer, such as `mlp.down_proj`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

__all__ = ["LayerScore", "layer_of", "layer_type", "score_layers", "select_layers", "signal_to_noise"]

_GRAM_FROM = 1024
"""With the method `auto` on a CPU, matrices whose short side is longer are decomposed by their Gram matrix."""


class LayerScore(NamedTuple):
    """The SNR of a layer.

    Args:
        snr: the ratio; the mean over the experts if one tensor holds the matrices of several.
        type: the layers that this one is compared with have the same type.
        experts: the ratio of each expert.
    """

    snr: float
    type: str
    experts: tuple[float, ...] = ()


def signal_to_noise(weight: torch.Tensor, method: str = "auto") -> float:
    """Return the SNR of a matrix. A vector counts as a matrix with one row, whose SNR is 1.

    Args:
        weight: the matrix, on any device.
        method: `exact` (singular values in 32 bits), `gram` (from the eigenvalues of the Gram matrix, in 64 bits), or
            `auto` (`gram` on a GPU and for large matrices).
    """
    matrix = weight.detach()
    matrix = matrix.reshape(1, -1) if matrix.ndim < 2 else matrix.reshape(matrix.shape[0], -1)
    short, long = sorted(matrix.shape)
    if short == 0:
        return math.nan
    if method == "auto":
        method = "gram" if matrix.is_cuda or short > _GRAM_FROM else "exact"
    values = _singular_values(matrix, method == "gram")
    largest = values[-1]
    quartiles = _quantile(values, 0.25), _quantile(values, 0.75)
    sigma = (quartiles[1] - quartiles[0]) / 1.349
    is_signal = values > sigma * (1 + math.sqrt(short / long))
    noise = torch.where(is_signal, 0, values).sum()
    noise = torch.where(is_signal.all(), torch.ones_like(noise), noise)
    return float(torch.where(is_signal, values, 0).sum() / noise / largest)


def _singular_values(matrix: torch.Tensor, by_gram: bool) -> torch.Tensor:
    """Return the singular values in ascending order, in 64 bits."""
    if matrix.shape[0] < matrix.shape[1]:
        matrix = matrix.T  # LAPACK takes three times as long for a wide matrix as for a tall one
    if not by_gram:
        # The default driver of CUDA is slower, and its SNRs differ by 0.2 % from the CPU's.
        driver = "gesvd" if matrix.is_cuda else None
        return torch.linalg.svdvals(matrix.float(), driver=driver).double().flip(0)
    # The eigenvalues are the squares of the singular values. In 32 bits, all singular values below 1/4000 of the
    # largest one would be lost to rounding; in 64 bits, those below 1e-8.
    matrix = matrix.double()
    return torch.linalg.eigvalsh(matrix.T @ matrix).clamp(min=0).sqrt()


def _quantile(ascending: torch.Tensor, fraction: float) -> torch.Tensor:
    """Return a quantile with linear interpolation. `torch.quantile` rejects more than 16 million values."""
    position = fraction * (len(ascending) - 1)
    below, above = ascending[math.floor(position)], ascending[math.ceil(position)]
    return below + (above - below) * (position - math.floor(position))


# The layers of a model -----------------------------------------------------------------------------------------------


def layer_of(parameter: str, layers: Iterable[str] | Mapping[str, Any]) -> str | None:
    """Return the layer that a parameter belongs to: a weight has the name of its module, and a bias follows it."""
    module = parameter.rpartition(".")[0]
    return next((name for name in (parameter, module, parameter.removesuffix("_bias")) if name in layers), None)


def layer_type(layer: str) -> str:
    """Return the name after the index of the layer, or the whole name if there is no index."""
    parts = layer.split(".")
    index = next((position for position, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[index + 1 :])


def layer_weights(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weight of each layer by the name of the layer. Biases have no score of their own."""
    weights = {}
    for name, value in parameters.items():
        module, _, last = name.rpartition(".")
        is_bias = last == "bias" and f"{module}.weight" in parameters
        is_bias = is_bias or (name.endswith("_bias") and name.removesuffix("_bias") in parameters)
        if not is_bias and value.is_floating_point():
            weights[module if last == "weight" and module else name] = value
    return weights


def score_layers(
    weights: Mapping[str, torch.Tensor],
    *,
    method: str = "auto",
    device: torch.device | str | None = None,
    progress: Callable[[int, float], None] = lambda num_done, fraction: None,
) -> dict[str, LayerScore]:
    """Return the score of each layer.

    Args:
        weights: the weight of each layer. A tensor with three dimensions whose name contains `expert` holds one matrix
            per expert; any other tensor with more than two dimensions is flattened to a matrix.
        method: see `signal_to_noise`.
        device: where to compute; the device of each weight by default.
        progress: called after each layer with the number of layers done, and the fraction of the work.
    """
    scores = {}
    total_work = sum(map(_work, weights.values())) or 1.0
    work_done = 0.0
    for name, weight in weights.items():
        matrices = list(weight) if _holds_experts(name, weight) else [weight]
        ratios = [signal_to_noise(matrix.detach().to(device or matrix.device), method) for matrix in matrices]
        experts = tuple(ratios) if _holds_experts(name, weight) else ()
        scores[name] = LayerScore(sum(ratios) / max(len(ratios), 1), layer_type(name), experts)
        work_done += _work(weight)
        progress(len(scores), work_done / total_work)
    return scores


def _holds_experts(name: str, weight: torch.Tensor) -> bool:
    return weight.ndim == 3 and "expert" in name.lower()


def _work(weight: torch.Tensor) -> float:
    """Return the relative cost of scoring a weight."""
    if weight.ndim < 2:
        return 1.0
    sides = sorted(weight.shape[-2:])
    return float(math.prod(weight.shape[:-2]) * sides[0] ** 2 * (sides[0] + sides[1]))


def select_layers(scores: Mapping[str, LayerScore], fraction: float) -> set[str]:
    """Return the layers with the highest SNR: of n layers of a type, the first ``int(n * fraction)``.

    Equal layers are taken in the order of their names, with layer 2 before layer 10. NaN is lower than any number.
    """
    by_type: dict[str, list[str]] = {}
    for name, score in scores.items():
        by_type.setdefault(score.type, []).append(name)
    selected_layers: set[str] = set()
    for names in by_type.values():
        ordered_names = sorted(names, key=lambda name: (_descending(scores[name].snr), _natural(name)))
        num_selected = math.floor(len(names) * fraction + 1e-9)  # 100 * 0.29 is 28.999999999999996
        selected_layers.update(ordered_names[:num_selected])
    return selected_layers


def _descending(snr: float) -> float:
    return math.inf if math.isnan(snr) else -snr


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
