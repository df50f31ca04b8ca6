"""Liger kernels: which parts of which model they replace, what they compute, and what is an error."""

from __future__ import annotations

import sys

import peft
import pytest
import torch
import transformers

from tachograph._base.patching import Patches
from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import PluginConfig, PluginSession, TrainingSetup
from tachograph.plugins._observe import LibraryObserver, ModelObserver
from tests.plugins.conftest import llama
from tests.plugins.triton_interpreter import run_cases

pytest.importorskip("liger_kernel")

from tachograph.plugins.liger import LigerPlugin
from tachograph.plugins.liger._kernels import KERNELS, apply_kernel, supported_types

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
USUAL = {"rope", "rms_norm", "glu_activation", "cross_entropy", "fused_linear_cross_entropy"}
NO_ROPE = USUAL - {"rope"}
TEXT_MODELS = {
    **dict.fromkeys(("exaone4", "falcon_h1", "gemma", "gemma2", "gemma3_text", "hunyuan_v1_dense", "llama"), USUAL),
    **dict.fromkeys(("ministral", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3"), USUAL),
    **dict.fromkeys(("hunyuan_v1_moe", "llama4_text", "mixtral", "qwen3_moe"), USUAL),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "gemma4_text", "glm4"), NO_ROPE),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), NO_ROPE | {"rms_norm_gated"}),
    "deepseek_v4": NO_ROPE - {"glu_activation"},
    "gpt_oss": USUAL - {"glu_activation"},
    "granite": USUAL - {"fused_linear_cross_entropy"},
    "nemotron": {"cross_entropy", "fused_linear_cross_entropy"},
    "qwen3_next": USUAL | {"rms_norm_gated"},
}
"""The kernels that change each type of text model, experts included."""
NO_EFFECT = {"nemotron": {"rms_norm", "rms_norm_gated", "glu_activation"}}
"""Kernels for parts that a model does not have; by default layer norms, and gated norms."""
SOME_KINDS = ("llama", "phi3", "mixtral", "deepseek_v3", "qwen3_5_text", "gpt_oss", "granite", "nemotron", "qwen3_next")
"""One for almost each set of kernels; `make test-long` checks all: importing the models takes long."""


def meta_model(kind, **options):
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[kind](**{**SIZES, **options}))


def classes_of(model):
    names = vars(sys.modules[type(model).__module__])
    return {name: value for name, value in names.items() if isinstance(value, type)} | {"nn": torch.nn.LayerNorm}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kinds", [SOME_KINDS, pytest.param(tuple(TEXT_MODELS), marks=pytest.mark.long)], ids=["some", "all"]
)
def test_each_type_of_model_gets_its_kernels_and_is_restored(kinds):
    assert set(TEXT_MODELS) <= set(supported_types())
    for kind in kinds:
        kernels = TEXT_MODELS[kind]
        model = meta_model(kind)
        observer, library_observer = ModelObserver(model), LibraryObserver()
        changed, ignored = set(), set()
        classes = classes_of(model)
        for kernel in KERNELS:
            with Patches() as patches:
                try:
                    change = apply_kernel(model, kernel, patches)
                except PluginError as error:
                    assert "emove" in str(error), error
                    continue
                (changed if any(change) else ignored).add(kernel)
                assert classes_of(model) == classes, f"{kind}: other models would get the kernel {kernel}"
        assert changed == kernels, kind
        assert ignored == NO_EFFECT.get(kind, {"layer_norm", "rms_norm_gated"} - kernels), kind
        assert not observer.changes(model) and not library_observer.replacements(), kind


@pytest.fixture(scope="module")
def results():
    return run_cases("tests.plugins.liger_cases")


def test_loss_and_gradients_equal_the_usual_ones(results):
    for kind, difference in {**results["models"], "cross_entropy": results["cross_entropy"]}.items():
        assert difference["loss"] < 1e-4, kind
        assert difference["gradients"] < 1e-3, kind
        assert difference["undone"] == 0, kind


def test_every_kernel_runs_in_a_step(results):
    assert results["kernels_are_called"] == {
        "rope": 1,
        "rms_norm": 3,
        "glu_activation": 1,
        "fused_linear_cross_entropy": 1,
    }


def test_tokens_are_scaled_by_their_probability(results):
    scaling = results["token_scaling"]
    assert scaling["loss"] < 1e-5
    assert scaling["gradients"] < 1e-5
    assert scaling["evaluated"] < 1e-5  # an evaluation has the usual loss


def test_gated_norm_equals_the_usual_one(results):
    assert results["gated_norm"]["modules"] == ["norm"]
    assert max(results["gated_norm"]["differences"]) < 1e-4


def test_training_equals_the_usual_one_and_reports_changes(results):
    for name, training in results["trainers"].items():
        usual, ours = training["losses"]
        assert ours == pytest.approx(usual, abs=1e-4), name
        assert training["slots"] == ["loss"]
        assert training["is_restored"], name
        kernels = ["rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy"]
        assert training["metrics"] == {f"plugin/liger/{metric}": 1.0 for metric in ("active", *kernels)}
        assert {f"{kernel} kernel" for kernel in kernels} < set(training["changes"])
    changes = results["trainers"]["plain"]["changes"]
    assert changes["glu_activation kernel"] == {"count": 2, "names": ["model.layers.0.mlp", "model.layers.1.mlp"]}
    assert changes["classes and functions patched"]["names"] == [
        "transformers.models.llama.modeling_llama.apply_rotary_pos_emb"
    ]


def test_options_of_axolotls_page_train(results):
    for name, run in results["tacho_train"].items():
        assert run["state"] == "finished", name
        assert set(run["active"]) == {1.0}, name
        assert run["event"]["changes"]["rms_norm kernel"]["count"] == 5, name
    plan = results["tacho_train"]["page"]["plan"]["liger"]
    assert "layer_norm: no effect, LlamaForCausalLM has no such part" in plan
    assert "fused_linear_cross_entropy: computes the loss" in plan


# Errors --------------------------------------------------------------------------------------------------------------


def plan(model, **options):
    session = PluginSession.open(["liger"], options)
    try:
        return session.plan(model)["liger"]
    finally:
        session.close()


def test_invalid_options_are_rejected():
    cases = [
        ({}, "no kernel is turned on"),
        ({"liger_rope": None}, "no kernel is turned on"),
        ({"liger_swiglu": True, "liger_glu_activation": True}, "are the same kernel"),
        ({"liger_cross_entropy": True, "liger_fused_linear_cross_entropy": True}, "both replace the loss"),
        ({"liger_rope": True, "liger_use_token_scaling": True}, "needs `liger_fused_linear_cross_entropy: true`"),
        ({"liger_rops": True}, "liger_rope"),
        ({"liger_rope": True, "use_liger_kernel": True}, "use_liger_kernel also applies the kernels"),
    ]
    for options, message in cases:
        with pytest.raises(ConfigError, match=message):
            PluginSession.open(["liger"], options)


def test_kernels_that_are_not_named_are_off():
    assert plan(meta_model("llama"), liger_swiglu=True) == ["glu_activation: replaces 2 modules"]
    assert plan(None, liger_rope=False) == ["off: all its kernels are false"]


def test_losses_conflict_with_other_plugins():
    for options in ({"liger_cross_entropy": True}, {"liger_fused_linear_cross_entropy": True}):
        for other in ("cut_cross_entropy", "diffusion"):
            with pytest.raises(PluginError, match="both replace the loss"):
                PluginSession.open(["liger", other], options)
    PluginSession.open(["liger", "cut_cross_entropy"], {"liger_rope": True}).close()


def test_models_that_do_not_fit_are_an_error():
    fused = {"liger_fused_linear_cross_entropy": True}
    adapter = peft.LoraConfig(r=2, target_modules=["lm_head"])
    biased_model = meta_model("llama")
    with torch.device("meta"):
        biased_model.lm_head = torch.nn.Linear(32, 64)
    gpt2 = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16)
    with torch.device("meta"):
        unknown_model = transformers.GPT2LMHeadModel(gpt2)
    cases = [
        (unknown_model, {"liger_rope": True}, "no kernels for models of the type 'gpt2', only for .*llama"),
        (meta_model("glm4"), {"liger_rope": True}, "liger_rope: .* not available for Glm4"),
        (meta_model("deepseek_v3"), {"liger_rope": True}, "no such kernel for models of the type 'deepseek_v3'"),
        (meta_model("granite"), fused, "not available for Granite"),
        (meta_model("llama"), {"liger_layer_norm": True}, "has none of the parts that layer_norm replace"),
        (meta_model("llama", hidden_act="gelu"), {"liger_glu_activation": True}, "computes SiLU, but the activation"),
        (meta_model("gemma2", hidden_activation="silu"), {"liger_glu_activation": True}, "computes GELU"),
        (peft.get_peft_model(meta_model("llama"), adapter), fused, "the output head has an adapter"),
        (biased_model, fused, "does not support an output head with a bias"),
    ]
    for model, options, message in cases:
        with pytest.raises(PluginError, match=f"plugin liger: .*{message}"):
            plan(model, **options)


def test_training_without_gpu_is_an_error_before_the_model_is_loaded(make_trainer):
    from tachograph.plugins import apply

    trainer = make_trainer()
    message = "its kernels need a GPU, but the training runs on cpu"
    with pytest.raises(PluginError, match=message):
        apply(trainer, ["liger"], {"liger_rms_norm": True})
    assert not any("forward" in vars(module) for module in trainer.model.modules())
    session = PluginSession.open(["liger"], {"liger_rms_norm": True})
    (problem,) = session.check_setup(TrainingSetup(trainer.model, None, [], 1, trainer.args))
    assert message in problem
    session.close()


def test_losses_of_trl_trainers_are_refused():
    from trl import DPOTrainer, SFTTrainer

    arguments = transformers.TrainingArguments(use_cpu=True, report_to="none")
    for kind, option, is_refused in (
        (SFTTrainer, "fused_linear_cross_entropy", True),
        (SFTTrainer, "cross_entropy", False),
        (DPOTrainer, "cross_entropy", True),
        (DPOTrainer, "rms_norm", False),
    ):
        plugin = LigerPlugin()
        plugin.options = LigerPlugin.Options(**{f"liger_{option}": True})
        plugin._check_device = lambda device: None
        trainer = kind.__new__(kind)
        trainer.args = arguments
        if is_refused:
            with pytest.raises(PluginError, match=f"TRL's {kind.__name__} does not support liger_{option}"):
                plugin.post_trainer_create(PluginConfig(), trainer)
        else:
            plugin.post_trainer_create(PluginConfig(), trainer)


def test_undo_leaves_later_patches_of_others_alone():
    model = llama()
    with Patches() as patches:
        apply_kernel(model, "rms_norm", patches)
        model.model.norm.forward = replacement = lambda hidden_states: hidden_states
    assert model.model.norm.forward is replacement
    assert "forward" not in vars(model.model.layers[0].input_layernorm)
