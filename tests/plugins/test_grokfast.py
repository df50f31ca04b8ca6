"""Grokfast: the filter against its formula, resuming, and invalid options."""

from __future__ import annotations

import pytest
import torch
from transformers import TrainerCallback

from tachograph.exceptions import ConfigError
from tachograph.plugins import apply
from tests.plugins.conftest import logged, weights


class Gradients(TrainerCallback):
    """Keeps the gradients of one parameter before each optimizer step."""

    def __init__(self):
        self.seen = []
        self.norms = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **named):
        self.seen.append(model.lm_head.weight.grad.clone())
        self.norms.append(float(torch.stack([value.grad.norm() for value in model.parameters()]).norm()))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_ema_filter_follows_its_recursion(make_trainer, accumulation):
    before, after = Gradients(), Gradients()
    trainer = make_trainer(callbacks=[before], gradient_accumulation_steps=accumulation)
    apply(trainer, ["grokfast"], {"grokfast_alpha": 0.9, "grokfast_lamb": 3.0})
    trainer.add_callback(after)
    trainer.train()
    assert len(before.seen) == 4
    average = before.seen[0]
    for raw, filtered in zip(before.seen, after.seen, strict=True):
        average = 0.9 * average + 0.1 * raw
        torch.testing.assert_close(filtered, raw + 3.0 * average, rtol=1e-5, atol=1e-6)
    assert logged(trainer, "plugin/grokfast/active") == [1.0] * 4
    raw_norm = logged(trainer, "plugin/grokfast/grad_norm_before")
    assert raw_norm == pytest.approx([min(norm, 1.0) for norm in logged(trainer, "grad_norm")], rel=1e-3)
    assert logged(trainer, "plugin/grokfast/grad_norm_after")[0] == pytest.approx(4 * raw_norm[0], rel=1e-4)


def test_ma_filter_adds_mean_once_window_is_full(make_trainer):
    before, after = Gradients(), Gradients()
    trainer = make_trainer(callbacks=[before])
    apply(trainer, ["grokfast"], {"grokfast_filter": "ma", "grokfast_window": 3, "grokfast_lamb": 5.0})
    trainer.add_callback(after)
    trainer.train()
    for step in (0, 1):
        torch.testing.assert_close(after.seen[step], before.seen[step])
    expected = before.seen[3] + 5.0 * torch.stack(before.seen[1:4]).mean(dim=0)
    torch.testing.assert_close(after.seen[3], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"grokfast_filter": "ma", "grokfast_window": 2}])
def test_resumed_training_equals_uninterrupted_one(make_trainer, tmp_path, options):
    whole = make_trainer(max_steps=6, output_dir=str(tmp_path / "whole"))
    apply(whole, ["grokfast"], options)
    whole.train()
    first = make_trainer(max_steps=6, save_strategy="steps", save_steps=3, output_dir=str(tmp_path / "parts"))
    apply(first, ["grokfast"], options)
    first.train()
    second = make_trainer(max_steps=6, output_dir=str(tmp_path / "parts"))
    apply(second, ["grokfast"], options)
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"))
    for name, value in weights(whole.model).items():
        torch.testing.assert_close(weights(second.model)[name], value, rtol=1e-6, atol=1e-7)


def test_clip_after_bounds_the_filtered_norm(make_trainer):
    after = Gradients()
    trainer = make_trainer()
    apply(trainer, ["grokfast"], {"grokfast_clip_after": True})
    trainer.add_callback(after)
    trainer.train()
    assert logged(trainer, "plugin/grokfast/grad_norm_after")[-1] > 1.0
    assert after.norms == pytest.approx([1.0] * 4, rel=1e-3)


def test_swapped_values_are_rejected(make_trainer):
    with pytest.raises(ConfigError, match="grokfast_alpha=2 must be at least 0 and below 1.*swapped"):
        apply(make_trainer(), ["grokfast"], {"grokfast_alpha": 2.0, "grokfast_lamb": 0.98})
