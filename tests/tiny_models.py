"""Tiny language models for the tests of plugins and training, built in code: nothing is downloaded."""

from __future__ import annotations

import pytest
import torch
import transformers

__all__ = ["one_thread", "tiny_llama"]


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
