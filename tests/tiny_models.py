"""Tiny language models for the tests of plugins and training, built in code: nothing is downloaded."""

from __future__ import annotations

import pytest
import torch
import transformers

__all__ = ["one_thread", "tiny_llama", "tiny_moe"]


@pytest.fixture(autouse=True)
def one_thread():
    """Compute with one thread, from the same random numbers in every test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def tiny_llama(seed=7, **options):
    """Return a Llama with two layers; the same weights in every call with the same seed."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        **{
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **options,
        }
    )
    return transformers.LlamaForCausalLM(config)


def tiny_moe(model_type="qwen3_moe", seed=7, **options):
    """Return a model with one layer of four experts, two of them for each token; the same weights in every call."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(
        model_type,
        **{
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 256,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **options,
        },
    )
    return transformers.AutoModelForCausalLM.from_config(config)
