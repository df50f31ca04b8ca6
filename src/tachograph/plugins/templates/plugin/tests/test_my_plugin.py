"""The plugin in a real training of a tiny model, on the CPU and without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tachograph.exceptions import ConfigError
from tachograph.plugins import apply

from my_plugin import MyPlugin


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


def train(folder: Path, **options: Any) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Train with the plugin; return the trained weights of the output layer, and what was logged."""
    trainer = make_trainer(folder)
    apply(trainer, [MyPlugin], options)
    trainer.train()
    return trainer.model.lm_head.weight.detach(), trainer.state.log_history


def test_noise_changes_the_weights_and_is_recorded(tmp_path: Path) -> None:
    small, logs = train(tmp_path, my_plugin_noise=0.01)
    large, _ = train(tmp_path, my_plugin_noise=2.0)
    assert not torch.equal(small, large)
    assert logs[0]["plugin/my_plugin/noise_norm"] > 0
    assert logs[0]["plugin/my_plugin/active"] == 1


def test_wrong_option_is_an_error(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(ConfigError, match="my_plugin_noise"):
        apply(trainer, [MyPlugin], {"my_plugin_noise": -1})
