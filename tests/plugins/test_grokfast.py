"""Grokfast: the filter against its formula, resuming, and invalid options."""

from __future__ import annotations

import pytest
import torch
from transformers import TrainerCallback

from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import PluginSession, apply
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
    assert logged(trainer, "plugin/grokfast/active") == [0.0, 0.0, 1.0, 1.0]


def test_window_longer_than_the_training_is_an_error(make_trainer):
    options = {"grokfast_filter": "ma", "grokfast_window": 5}
    trainer = make_trainer()
    apply(trainer, ["grokfast"], options)
    with pytest.raises(PluginError, match="grokfast_window=5 is longer than the training of 4 steps"):
        trainer.train()
    trainer = make_trainer()
    apply(trainer, ["grokfast"], {**options, "grokfast_warmup": False})
    trainer.train()
    assert logged(trainer, "plugin/grokfast/active") == [1.0] * 4


def test_no_average_is_added_with_a_factor_of_zero(make_trainer):
    trainer = make_trainer()
    applied = apply(trainer, ["grokfast"], {"grokfast_lamb": 0})
    assert applied.session.off == {"grokfast": "grokfast_lamb is 0"}
    trainer.train()
    assert not logged(trainer, "plugin/grokfast/active")


@pytest.mark.parametrize("options", [{}, {"grokfast_filter": "ma", "grokfast_window": 2}])
def test_step_with_an_infinite_gradient_leaves_no_trace(options):
    """A gradient scaler skips the step; a training without it must give the same weights."""
    inputs = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1))
    results = []
    for overflow in (2, None):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
        plugin = PluginSession.open(["grokfast"], options).plugins[0]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for number, batch in enumerate(inputs):
            if overflow is None and number == 2:
                continue
            optimizer.zero_grad()
            scaler.scale(model(batch).square().mean()).backward()
            if number == overflow:
                model[0].weight.grad[1, 1] = float("inf")
            scaler.unscale_(optimizer)
            plugin.filter(model)
            scaler.step(optimizer)
            scaler.update()
        results.append((weights(model), plugin.report.drain().get("steps_skipped")))
    (after_overflow, num_skipped), (expected, _) = results
    assert num_skipped == 1
    for name, value in expected.items():
        torch.testing.assert_close(after_overflow[name], value, rtol=1e-5, atol=1e-7)


class Overflow:
    """Makes one gradient infinite, once, before it is unscaled and clipped."""

    def __init__(self, model):
        self.num_calls = 0
        model.lm_head.weight.register_post_accumulate_grad_hook(self._spoil)

    def _spoil(self, parameter):
        self.num_calls += 1
        if self.num_calls == 2:
            parameter.grad[0, 0] = float("inf")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU available")
@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_overflow_of_16_bit_training_leaves_the_model_finite(make_trainer, max_grad_norm):
    trainer = make_trainer(use_cpu=False, fp16=True, max_steps=8, max_grad_norm=max_grad_norm)
    overflow = Overflow(trainer.model)
    apply(trainer, ["grokfast"])
    trainer.train()
    assert overflow.num_calls == 8
    assert sum(logged(trainer, "plugin/grokfast/steps_skipped")) >= 1
    assert all(value.isfinite().all() for value in weights(trainer.model).values())


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
