"""Models for benchmarks of training steps."""

from __future__ import annotations

import torch
import transformers

__all__ = ["small_llama"]


def small_llama(hidden: int, layers: int) -> transformers.PreTrainedModel:
    """Return a Llama with random weights and a small vocabulary; the same in every call."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
    )
    return transformers.LlamaForCausalLM(config)
