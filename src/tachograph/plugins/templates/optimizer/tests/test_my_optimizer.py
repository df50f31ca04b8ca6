"""The plugin in a real training of a tiny model, on the CPU and without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tachograph.exceptions import ConfigError
from tachograph.plugins import apply

from my_optimizer import MyOptimizerPlugin


def make_trainer(folder: Path) -> Any:
    """Return a trainer of a Llama with random weights; each call returns the same."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes))
    ids = torch.randint(3, 32, (8, 6))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=2, logging_steps=1, report_to="none", save_strategy="no", use_cpu=True
    )
    rows = [{"input_ids": row, "labels": row} for row in ids]
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows)


def test_trainer_uses_the_optimizer(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    before = trainer.model.lm_head.weight.detach().clone()
    apply(trainer, [MyOptimizerPlugin], {"my_optimizer_momentum": 0.5})
    trainer.train()
    (group, *_) = trainer.optimizer.param_groups
    assert group["momentum"] == 0.5
    assert not torch.equal(trainer.model.lm_head.weight, before)


def test_wrong_option_is_an_error(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(ConfigError, match="my_optimizer_momentum"):
        apply(trainer, [MyOptimizerPlugin], {"my_optimizer_momentum": -1})
