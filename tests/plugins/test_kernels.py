"""Kernels for mixtures of experts: their numbers, and the plugin that switches a model to them."""

from __future__ import annotations

import pytest
import torch

from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import apply
from tachograph.plugins.kernels._experts import prefers_grouped_mm
from tachograph.plugins.kernels._plugin import find_experts
from tests.plugins.conftest import logged, weights
from tests.tiny_models import tiny_moe

pytest.importorskip("triton")


def test_kernels_and_reference_equal_the_loop_of_transformers():
    from tests.plugins.triton_interpreter import run_cases

    results = run_cases("tests.plugins.scatter_moe_cases")
    half = results["half_precision"]
    assert half.pop("dtypes") == ["torch.float32"]
    assert max(half.values()) < 5e-3
    exact = {name: results[name] for name in results if name != "half_precision"}
    for name, differences in exact.items():
        values = differences.values() if isinstance(differences, dict) else differences
        assert max(values) < 1e-5, (name, differences)
    assert len(exact) == 10


def train(make_trainer, model, plugins=(), **arguments):
    trainer = make_trainer(model, **arguments)
    applied = apply(trainer, plugins, {}) if plugins else None
    trainer.train()
    return trainer, applied


def test_training_is_the_same_with_and_without(make_trainer):
    plain, _ = train(make_trainer, tiny_moe(), gradient_accumulation_steps=2)
    model = tiny_moe()
    trainer, applied = train(
        make_trainer, model, ["kernels"], gradient_accumulation_steps=2, gradient_checkpointing=True
    )
    assert model.config._experts_implementation == "scattermoe"
    assert logged(trainer, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-5)
    for name, weight in weights(plain.model).items():
        torch.testing.assert_close(weights(model)[name], weight, rtol=1e-4, atol=1e-5)

    assert logged(trainer, "plugin/kernels/active") == [1.0] * 4
    loads = logged(trainer, "plugin/kernels/max_load")
    assert len(loads) == 4 and all(1 <= load <= 4 for load in loads)  # at most all tokens to one of four experts
    assert all(0 <= share <= 0.75 for share in logged(trainer, "plugin/kernels/idle_experts"))
    assert all(ms > 0 for ms in logged(trainer, "plugin/kernels/experts_ms"))

    applied.undo()
    assert model.config._experts_implementation == plain.model.config._experts_implementation
    assert not any(experts._forward_hooks or experts._forward_pre_hooks for experts in find_experts(model).values())


def test_plain_torch_on_a_cpu_is_said(make_trainer, caplog):
    apply(make_trainer(tiny_moe()), ["kernels"], {})
    assert "runs on cpu, where ScatterMoE has no kernels" in caplog.text


def test_experts_inside_of_an_adapter_are_switched(make_trainer):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(tiny_moe(), peft.LoraConfig(target_modules=["q_proj"], r=2))
    trainer, applied = train(make_trainer, adapted, ["kernels"])
    assert {experts.config._experts_implementation for experts in find_experts(adapted).values()} == {"scattermoe"}
    assert logged(trainer, "plugin/kernels/active")
    applied.undo()


def test_two_trainings_do_not_share_the_plugin(make_trainer):
    first, second = make_trainer(tiny_moe()), make_trainer(tiny_moe())
    applied = [apply(trainer, ["kernels"], {}) for trainer in (first, second)]
    applied[0].undo()
    second.train()
    assert first.model.config._experts_implementation != "scattermoe"
    assert logged(second, "plugin/kernels/active") == [1.0] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_scattermoe": True, "use_sonicmoe": True}, "use_scattermoe and use_sonicmoe are both true: choose one"),
        ({"experts_implementation": "grouped_mm"}, "experts_implementation=grouped_mm is not a kernel of the plugin"),
        ({"use_sonicmoe": True, "experts_implementation": "scattermoe"}, "contradicts the other keys"),
        ({"use_sonicmoe": True}, "SonicMoE cannot run here: .*set `use_scattermoe: true` instead"),
        ({"experts_implementation": "sonicmoe"}, "SonicMoE cannot run here"),
    ],
)
def test_choice_that_cannot_work_is_an_error(make_trainer, options, message):
    with pytest.raises((ConfigError, PluginError), match=message):
        apply(make_trainer(tiny_moe()), ["kernels"], options)


def test_models_without_such_experts_are_errors(make_trainer):
    with pytest.raises(PluginError, match="LlamaForCausalLM has no experts that transformers can switch"):
        apply(make_trainer(), ["kernels"], {})
    with pytest.raises(
        PluginError, match="does not support the experts of model.layers.0.mlp.experts, because they have b"
    ):
        apply(make_trainer(tiny_moe("gpt_oss")), ["kernels"], {})


def test_grouped_mm_is_left_the_shapes_that_it_computes_faster():
    def prefers(hidden, intermediate):
        with torch.device("meta"):
            (experts,) = find_experts(tiny_moe(hidden_size=hidden, moe_intermediate_size=intermediate)).values()
        return prefers_grouped_mm(experts)

    assert not prefers(2048, 768)  # Qwen3 30B
    assert not prefers(7168, 2048)  # DeepSeek V3
    assert prefers(4096, 14336)  # Mixtral
    assert prefers(1600, 1000)  # not multiples of 16
