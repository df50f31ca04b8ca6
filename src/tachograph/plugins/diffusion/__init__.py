"""Diffusion: train a language model to fill in masked tokens, and generate text with it."""

from tachograph.plugins.diffusion._plugin import DiffusionConfig, DiffusionOptions, DiffusionPlugin
from tachograph.plugins.diffusion._process import (
    DiffusionLoss,
    NoisyBatch,
    Segments,
    attention_mask_for,
    diffusion_loss,
    find_segments,
    forward_process,
    mask_probability,
    shift_logits,
)
from tachograph.plugins.diffusion._sampling import DiffusionSample, sample, unmask

__all__ = [
    "DiffusionConfig",
    "DiffusionLoss",
    "DiffusionOptions",
    "DiffusionPlugin",
    "DiffusionSample",
    "NoisyBatch",
    "Segments",
    "attention_mask_for",
    "diffusion_loss",
    "find_segments",
    "forward_process",
    "mask_probability",
    "sample",
    "shift_logits",
    "unmask",
]
