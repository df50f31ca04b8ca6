"""Loss and gradients of two trainings at equal weights."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import TrainerCallback

from tachograph.plugins import BasePlugin, EqualWeightsProbe, LossResult, apply
from tachograph.plugins._equal_weights import gradient_difference
from tests.plugins.conftest import llama, logged, rows

HELD, FREE = 2, 2


class ScaledLossPlugin(BasePlugin):
    """Computes a loss that is four times too large."""

    def compute_loss(self, trainer, model, inputs):
        return LossResult(4 * model(**inputs).loss)


class SGDPlugin(BasePlugin):
    def create_optimizer(self, cfg, trainer):
        return torch.optim.SGD(trainer.model.parameters(), lr=0.1)


class ShiftPlugin(BasePlugin):
    """Trains on other tokens."""

    def get_collator_cls_and_kwargs(self, cfg, is_eval=False):
        return None

    def post_trainer_create(self, cfg, trainer):
        collate = trainer.data_collator

        def shifted(features):
            return {**collate(features), "input_ids": collate(features)["input_ids"].flip(0)}

        self.patches.replace(trainer, "data_collator", shifted)
        self.report.changed("collator", ["data_collator"])


class FreezePlugin(BasePlugin):
    def post_model_load(self, cfg, model):
        model.lm_head.weight.requires_grad_(False)


class Shuffler(TrainerCallback):
    """Uses random numbers."""

    def on_train_begin(self, args, state, control, **kwargs):
        torch.rand(7)


class RandomPlugin(BasePlugin):
    def post_model_load(self, cfg, model):
        torch.rand(3)
        self.report.changed("random numbers", ["3"])

    def add_callbacks_post_trainer(self, cfg, trainer):
        return [Shuffler()]


@pytest.fixture
def probe_with(make_trainer, tmp_path):
    """Return a function that measures a training without and with plugins."""

    def measure(*plugins, options=None, dropout=0.0, **arguments):
        probe = None
        for is_reference in (True, False):
            trainer = make_trainer(llama(attention_dropout=dropout), rows(32), max_steps=50, **arguments)
            if not is_reference:
                apply(trainer, list(plugins), options or {})
            probe = EqualWeightsProbe(tmp_path, is_reference=is_reference, num_held=HELD, num_free=FREE)
            probe.attach(trainer)
            trainer.train()
            assert trainer.state.global_step == 2 * HELD + FREE
            assert probe.differences == [] or not is_reference
        probe.logged = logged(trainer, "loss")
        return probe

    return measure


def test_equal_trainings_are_identical_at_both_weights(probe_with, tmp_path):
    probe = probe_with("cut_cross_entropy", dropout=0.3, gradient_accumulation_steps=2)
    assert [step.is_start for step in probe.differences] == [True, True, False, False]
    assert [step.step for step in probe.differences] == [0, 1, HELD + FREE, HELD + FREE + 1]
    for step in probe.differences:
        assert step.loss < 1e-6 and step.gradient < 1e-5 and step.worst
    assert probe.differences[0].losses[1] == pytest.approx(probe.logged[0], rel=1e-6)  # of both accumulated batches
    start, later = (torch.load(tmp_path / f"{name}.pt") for name in ("start", "later"))
    assert not any(torch.equal(start[name], later[name]) for name in start)  # the steps in between have trained
    assert probe.notes == []


def test_optimizer_of_plugin_changes_neither_loss_nor_gradient(probe_with):
    probe = probe_with(SGDPlugin)
    assert [(step.loss, step.gradient) for step in probe.differences] == [(0, 0)] * 4


def test_filtered_gradient_is_compared_as_the_optimizer_sees_it(probe_with):
    first, *_ = probe_with("grokfast", options={"grokfast_lamb": 2.0}).differences
    assert first.loss == 0
    assert first.gradient == pytest.approx(2.0, rel=1e-4)
    assert first.norms[1] / first.norms[0] == pytest.approx(3.0, rel=1e-4)


def test_wrong_scale_of_a_loss_is_found(probe_with):
    for step in probe_with(ScaledLossPlugin).differences:
        assert step.loss == pytest.approx(3.0, rel=1e-3)
        assert step.gradient == pytest.approx(3.0, rel=1e-2)


def test_other_data_and_frozen_parameters_are_noted(probe_with):
    assert probe_with(ShiftPlugin).notes == ["the batches of the trainings differ"]
    probe = probe_with(FreezePlugin)
    assert probe.notes == ["1 of 21 parameters get a gradient only without the plugin"]
    assert probe.differences[0].gradient == 0


def test_random_numbers_of_a_plugin_change_nothing(probe_with):
    probe = probe_with(RandomPlugin, dropout=0.3)
    assert [(step.loss, step.gradient) for step in probe.differences] == [(0, 0)] * 4
    assert probe.notes == []


def test_gradient_difference_is_relative_to_each_parameter():
    expected = {"large": torch.tensor([1.0, -4.0]), "small": torch.tensor([0.01, 0.0]), "noise": torch.tensor([1e-9])}
    for name, change, difference in (
        ("large", torch.tensor([0.0, 1.0]), 0.25),
        ("small", torch.tensor([0.005, 0.0]), 0.5),
        ("noise", torch.tensor([1e-8]), 1e-8 / 4e-3),  # a rounding error of a gradient that is zero in theory
        ("large", torch.tensor([math.nan, 0.0]), math.inf),
    ):
        changed = {**expected, name: expected[name] + change}
        assert gradient_difference(expected, changed) == (pytest.approx(difference, rel=1e-3), name)
    assert gradient_difference(expected, {}) == (None, "")
    zero = {"a": torch.zeros(2)}
    assert gradient_difference(zero, zero) == (0.0, "a")
    assert gradient_difference(zero, {"a": torch.ones(2)}) == (math.inf, "a")
