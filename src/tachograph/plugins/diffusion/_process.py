"""Masked diffusion: mask random tokens, and learn to predict them from both sides.

Each sample draws a time t and masks each of its tokens with a probability p that grows with t (`forward_process`). The
model sees the masked sequence with attention in both directions, and the loss is the cross-entropy of the masked tokens
(`diffusion_loss`), weighted with 1/p: then its mean is a bound of the likelihood, as in LLaDA (Nie et al., 2025,
https://arxiv.org/abs/2502.09992).

A row of a batch holds one sample, or several if it is packed; `Segments` says which token belongs to which. The token
at a position is predicted from the position before it, because the output layer of a pre-trained causal model
has learned this. The first token of a sample is predicted from its own position.

Only `diffusion_loss` waits for a GPU, to select the masked positions: the logits of all positions in 32 bits would need
several times the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

__all__ = [
    "DiffusionLoss",
    "NoisyBatch",
    "Segments",
    "attention_mask_for",
    "diffusion_loss",
    "draw_noise",
    "find_segments",
    "forward_process",
    "mask_probability",
    "shift_logits",
]


class Segments(NamedTuple):
    """Where the samples of each row are; all of the shape of the input ids.

    Args:
        ids: a number per sample, equal for its tokens; 0 for padding.
        first: the position of the first token of the sample.
    """

    ids: torch.Tensor
    first: torch.Tensor

    @property
    def is_first(self) -> torch.Tensor:
        """Whether a position has the first token of a sample."""
        positions = torch.arange(self.ids.shape[1], device=self.ids.device)
        return (self.first == positions) & (self.ids > 0)

    @property
    def num_samples(self) -> torch.Tensor:
        """The number of samples in the batch."""
        return self.is_first.sum()


class NoisyBatch(NamedTuple):
    """A batch with masked tokens.

    Args:
        input_ids: the ids with the mask token in place of masked ones.
        mask: which tokens are masked.
        probability: the probability with which each token was masked; 0 for padding.
        t: the time of the sample of each token.
    """

    input_ids: torch.Tensor
    mask: torch.Tensor
    probability: torch.Tensor
    t: torch.Tensor


class DiffusionLoss(NamedTuple):
    """The loss of a batch, and its metrics. Everything is a sum, so that batches can be added up.

    Args:
        total: the sum of the loss; the mean is ``total / num_items``.
        num_items: the divisor of the mean: samples with labels, positions without, masked tokens without weights.
        cross_entropy: the unweighted cross-entropy of the masked tokens.
        num_correct: masked tokens that are predicted correctly.
        num_masked: the masked tokens.
        weight: the weights of the masked tokens.
    """

    total: torch.Tensor
    num_items: torch.Tensor | int
    cross_entropy: torch.Tensor
    num_correct: torch.Tensor
    num_masked: int
    weight: torch.Tensor


def find_segments(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
) -> Segments:
    """Return where the samples of a batch are.

    With labels, a segment without any is padding: a packed row has no attention mask, and its padding looks like one
    more sample.

    Args:
        input_ids: token ids of the shape (rows, positions).
        attention_mask: 0 for padding, and 1 for tokens or the number of the sample in a packed row.
        position_ids: positions in the sample; a packed row counts from 0 again where a sample begins.
        labels: labels, -100 for tokens without a loss.
    """
    ids = torch.ones_like(input_ids) if attention_mask is None else attention_mask.to(input_ids.dtype)
    starts = torch.ones_like(input_ids, dtype=torch.bool)
    starts[:, 1:] = ids[:, 1:] != ids[:, :-1]
    if position_ids is not None and position_ids.ndim == 2:
        position_ids = position_ids.expand_as(input_ids)
        starts[:, 1:] |= position_ids[:, 1:] <= position_ids[:, :-1]
    positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    first = torch.where(starts, positions, 0).cummax(dim=1).values
    is_token = ids > 0
    if labels is not None:
        num_labels = torch.zeros_like(first).scatter_add_(1, first, (is_token & (labels != -100)).to(first.dtype))
        is_token = is_token & (num_labels.gather(1, first) > 0)
    return Segments(torch.where(is_token, starts.cumsum(dim=1), 0), first)


def mask_probability(
    t: torch.Tensor,
    *,
    eps: float = 1e-3,
    schedule: str = "linear",
    min_ratio: float | None = None,
    max_ratio: float | None = None,
) -> torch.Tensor:
    """Return the probability with which a token is masked at time t.

    Args:
        t: times from 0 to 1.
        eps: the probability at time 0; without it, the weight 1/p is unbounded.
        schedule: `linear`, ``(1 - eps) * t + eps``; or `cosine`, with ``1 - cos(t * pi / 2)`` instead of t, which masks
            less in the middle.
        min_ratio: a lower limit of the probability, if any.
        max_ratio: an upper limit of the probability, if any.
    """
    progress = 1 - torch.cos(t * (math.pi / 2)) if schedule == "cosine" else t
    probability = (1 - eps) * progress + eps
    if min_ratio is not None or max_ratio is not None:
        probability = probability.clamp(min=min_ratio, max=max_ratio)
    return probability


def draw_noise(shape: torch.Size | Sequence[int], generator: torch.Generator | None = None) -> torch.Tensor:
    """Return two uniform random numbers per position, on the CPU: for the time, and for masking.

    They are drawn row by row. So the noise of a row does not depend on how a step is divided into batches.
    """
    return torch.rand((*shape, 2), generator=generator)


def forward_process(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    *,
    mask_token_id: int,
    special_ids: Sequence[int] = (),
    position_ids: torch.Tensor | None = None,
    eps: float = 1e-3,
    schedule: str = "linear",
    min_ratio: float | None = None,
    max_ratio: float | None = None,
    num_steps: int | None = None,
    t: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    generator: torch.Generator | None = None,
) -> NoisyBatch:
    """Mask random tokens of a batch.

    Padding and special tokens are never masked, nor tokens whose label is -100.

    Args:
        input_ids: token ids of the shape (rows, positions).
        attention_mask: see `find_segments`, as well as `position_ids`.
        labels: labels; only tokens with a label other than -100 are masked.
        mask_token_id: the token that takes the place of masked ones.
        special_ids: tokens that are never masked.
        position_ids: see `find_segments`.
        eps: see `mask_probability`, as well as `schedule`, `min_ratio` and `max_ratio`.
        schedule: see there.
        min_ratio: see there.
        max_ratio: see there.
        num_steps: draw t from this many equidistant times in (0, 1]; from all of [0, 1) by default.
        t: the time of each row, or of each position, instead of random ones.
        mask: which tokens to mask, instead of random ones; padding and special tokens still are not.
        generator: the source of random numbers, on the CPU.
    """
    segments = find_segments(input_ids, attention_mask, position_ids, labels)
    noise = draw_noise(input_ids.shape, generator).to(input_ids.device, non_blocking=True)
    if t is None:
        t = noise[..., 0].gather(1, segments.first)  # one number per sample
        if num_steps is not None:
            t = ((t * num_steps).floor() + 1) / num_steps
    elif t.ndim == 1:
        t = t[:, None].expand_as(input_ids)
    is_token = segments.ids > 0
    probability = mask_probability(t, eps=eps, schedule=schedule, min_ratio=min_ratio, max_ratio=max_ratio)
    probability = torch.where(is_token, probability, 0.0)
    may_mask = is_token
    for special in {*special_ids, mask_token_id}:
        may_mask = may_mask & (input_ids != special)
    if labels is not None:
        may_mask = may_mask & (labels != -100)
    mask = may_mask & (noise[..., 1] < probability if mask is None else mask)
    return NoisyBatch(torch.where(mask, mask_token_id, input_ids), mask, probability, t)


def attention_mask_for(segments: Segments, implementation: str, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask with four dimensions: every token sees all tokens of its sample, in both directions.

    Padding sees itself, because a row without anything to see is NaN in some kernels.

    Args:
        segments: where the samples are.
        implementation: `sdpa` takes booleans. `eager` adds the mask to the scores, so booleans would hide nothing.
        dtype: the type of the scores, for `eager`.
    """
    ids = segments.ids
    visible = (ids[:, None, :] == ids[:, :, None]) & (ids > 0)[:, None, :]
    visible = visible | torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
    visible = visible[:, None]
    if implementation == "sdpa":
        return visible
    lowest_score = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=ids.device)
    return torch.where(visible, torch.zeros_like(lowest_score), lowest_score)


def _source(segments: Segments) -> torch.Tensor:
    """Return the position whose logits predict each position: the one before it in the sample, if there is one."""
    positions = torch.arange(segments.ids.shape[1], device=segments.ids.device)
    return torch.maximum(positions - 1, segments.first)


def shift_logits(logits: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Return logits shifted so that the logits at a position predict the token at this position."""
    source = _source(segments)
    return logits.gather(1, source[..., None].expand(-1, -1, logits.shape[-1]))


def diffusion_loss(
    logits: torch.Tensor,
    input_ids: torch.Tensor,
    mask: torch.Tensor,
    probability: torch.Tensor,
    segments: Segments,
    labels: torch.Tensor | None = None,
    *,
    importance_weighting: bool = True,
) -> DiffusionLoss:
    """Return the loss of the masked tokens, with w = 1/p, or w = 1 without importance weighting.

    - With labels: the sum of w * cross-entropy of a sample, divided by the number of its tokens with a label; the mean
      over samples.
    - Without labels, weighted: the sum of w * cross-entropy divided by the number of all positions, also of padding.
    - Without labels and weights: the mean over the masked tokens.

    Args:
        logits: the outputs of the model, not shifted.
        input_ids: the ids before masking.
        mask: see `NoisyBatch`, as well as `probability`.
        probability: see there.
        segments: where the samples are.
        labels: labels, -100 for tokens without a loss.
        importance_weighting: whether tokens are weighted with 1/p.
    """
    row, position = mask.nonzero(as_tuple=True)
    predictions = logits[row, _source(segments)[row, position]].float()
    targets = input_ids[row, position]
    losses = functional.cross_entropy(predictions, targets, reduction="none")
    weights = 1 / probability[row, position] if importance_weighting else torch.ones_like(losses)
    weighted_losses = losses * weights
    num_items: Any
    if labels is not None:
        has_label = ((labels != -100) & (segments.ids > 0)).to(losses.dtype)
        lengths = torch.zeros_like(has_label).scatter_add_(1, segments.first, has_label)
        weighted_losses = weighted_losses / lengths[row, segments.first[row, position]]
        num_items = segments.num_samples
    elif importance_weighting:
        num_items = input_ids.numel()
    else:
        num_items = len(targets)
    return DiffusionLoss(
        weighted_losses.sum(),  # without masked tokens this is 0, with a gradient of 0
        num_items,
        losses.detach().sum(),
        (predictions.detach().argmax(dim=-1) == targets).sum(),
        len(targets),
        weights.sum(),
    )
