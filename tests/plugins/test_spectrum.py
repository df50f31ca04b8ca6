"""Spectrum: the ratio against its formula, the choice of layers, files, the cache, and training with frozen layers."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
import transformers

import tachograph
from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import PluginConfig, PluginSession, apply
from tachograph.plugins.spectrum import LayerScore, score_layers, select_layers, signal_to_noise
from tests.plugins.conftest import llama, logged, weights


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep the cache out of the user's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tachograph" / "spectrum"


def reference_snr(matrix):
    """Return the ratio by its definition, with numpy in 64 bits."""
    values = np.linalg.svd(np.atleast_2d(np.asarray(matrix, dtype=np.float64)), compute_uv=False)
    sigma = (np.quantile(values, 0.75) - np.quantile(values, 0.25)) / 1.349
    sides = sorted(np.atleast_2d(matrix).shape)
    threshold = sigma * (1 + math.sqrt(sides[0] / sides[1]))
    noise = values[values <= threshold].sum() if (values <= threshold).any() else 1.0
    return values[values > threshold].sum() / noise / values[0]


def planted(shape, rank, strength=3.0):
    noise = torch.randn(shape) / math.sqrt(max(shape))
    return noise + strength * torch.randn(shape[0], rank) @ torch.randn(rank, shape[1]) / math.sqrt(math.prod(shape))


@pytest.mark.parametrize("method", ["exact", "gram"])
@pytest.mark.parametrize("shape", [(32, 32), (24, 80), (80, 24), (7,), (1, 9)])
def test_snr_equals_its_formula(shape, method):
    matrix = torch.randn(shape) * 0.02
    assert signal_to_noise(matrix, method) == pytest.approx(reference_snr(matrix.numpy()), rel=1e-5)


def test_gram_method_agrees_with_exact_one():
    for scale in (1e-4, 1.0, 1e3):
        matrix = planted((96, 160), rank=5) * scale
        assert signal_to_noise(matrix, "gram") == pytest.approx(signal_to_noise(matrix, "exact"), rel=1e-5)


def test_half_precision_weights_are_scored_in_full():
    matrix = torch.randn(40, 64).to(torch.bfloat16)
    assert signal_to_noise(matrix, "exact") == pytest.approx(reference_snr(matrix.float().numpy()), rel=1e-5)


def test_vectors_have_a_ratio_of_one():
    assert signal_to_noise(torch.randn(50)) == pytest.approx(1.0, rel=1e-6)


def test_planted_signal_ranks_above_noise():
    layers = {f"model.layers.{index}.mlp.up_proj": torch.randn(48, 64) / 8 for index in range(6)}
    for index in (1, 4):
        layers[f"model.layers.{index}.mlp.up_proj"] = planted((48, 64), rank=6) / 8
    scores = score_layers(layers)
    assert select_layers(scores, 1 / 3) == {"model.layers.1.mlp.up_proj", "model.layers.4.mlp.up_proj"}


@pytest.mark.parametrize(("fraction", "count"), [(0, 0), (0.009, 0), (0.29, 29), (0.5, 50), (0.999, 99), (1, 100)])
def test_selects_a_fraction_of_each_type(fraction, count):
    scores = {
        f"model.layers.{index}.{kind}": LayerScore(float(index), kind) for kind in ("a", "b") for index in range(100)
    }
    selected = select_layers(scores, fraction)
    expected = {f"model.layers.{index}.{kind}" for kind in ("a", "b") for index in range(100 - count, 100)}
    assert selected == expected


def test_ties_are_broken_by_name_and_nan_is_last():
    values = {0: math.nan, 10: 1.0, 2: 1.0, 3: math.inf, 1: -1.0}
    scores = {f"h.{index}.mlp": LayerScore(value, "mlp") for index, value in values.items()}
    assert select_layers(scores, 0.4) == {"h.3.mlp", "h.2.mlp"}
    assert select_layers(scores, 0.8) == {f"h.{index}.mlp" for index in (3, 2, 10, 1)}
    assert select_layers(dict(reversed(scores.items())), 0.4) == {"h.3.mlp", "h.2.mlp"}


def test_fused_experts_are_scored_one_by_one():
    experts = torch.stack([planted((24, 40), rank=rank) for rank in (1, 3, 6)])
    score = score_layers({"model.layers.0.mlp.experts.gate_up_proj": experts})[
        "model.layers.0.mlp.experts.gate_up_proj"
    ]
    assert score.experts == pytest.approx([reference_snr(expert.numpy()) for expert in experts], rel=1e-5)
    assert score.snr == pytest.approx(sum(score.experts) / 3)
    assert score.type == "mlp.experts.gate_up_proj"


def test_mixture_of_experts_model_is_ranked(make_trainer):
    torch.manual_seed(1)
    config = transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_experts=4,
        num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    trainer = make_trainer(transformers.Qwen3MoeForCausalLM(config))
    plugin = apply(trainer, ["spectrum"]).session.plugins[0]
    fused = {name: score for name, score in plugin.scores.items() if name.endswith("experts.gate_up_proj")}
    assert [len(score.experts) for score in fused.values()] == [4, 4]
    parameters = dict(trainer.model.named_parameters())
    assert sorted(parameters[name].requires_grad for name in fused) == [False, True]


def test_frozen_parameters_do_not_change(make_trainer):
    trainer = make_trainer(weight_decay=0.1)
    before = weights(trainer.model)
    apply(trainer, ["spectrum"], {"spectrum_top_fraction": 0.5})
    trainer.train()
    after = weights(trainer.model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert changed == trained
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= trained
    per_type = [sum(name.endswith(kind) for name in trained) for kind in ("q_proj.weight", "down_proj.weight")]
    assert per_type == [1, 1]
    with_state = {id(value) for value in trainer.optimizer.state}
    assert with_state == {id(value) for value in trainer.model.parameters() if value.requires_grad}
    assert logged(trainer, "plugin/spectrum/active") == [1.0] * 4
    total = sum(value.numel() for value in before.values())
    chosen = sum(before[name].numel() for name in trained)
    assert logged(trainer, "plugin/spectrum/trainable_params") == [chosen]
    assert logged(trainer, "plugin/spectrum/trainable_fraction") == pytest.approx([chosen / total])


def test_becomes_inactive_if_parameters_are_unfrozen(make_trainer):
    class Unfreeze(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **named):
            if state.global_step == 2:
                model.requires_grad_(True)

    trainer = make_trainer(callbacks=[Unfreeze()])
    apply(trainer, ["spectrum"])
    trainer.train()
    assert logged(trainer, "plugin/spectrum/active") == [1.0, 0.0, 0.0, 0.0]


def test_fraction_zero_trains_only_embeddings_and_head(make_trainer):
    trainer = make_trainer()
    apply(trainer, ["spectrum"], {"spectrum_top_fraction": 0})
    trained = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert trained == {"lm_head.weight", "model.embed_tokens.weight"}


def test_fraction_one_trains_everything_and_warns(make_trainer, caplog):
    trainer = make_trainer(max_steps=1)
    apply(trainer, ["spectrum"], {"spectrum_top_fraction": 1})
    assert all(value.requires_grad for value in trainer.model.parameters())
    assert "no parameter is frozen" in caplog.text
    trainer.train()
    assert logged(trainer, "plugin/spectrum/active") == [0.0]


def test_nothing_to_train_is_an_error(make_trainer):
    options = {"spectrum_top_fraction": 0, "spectrum_train_embeddings": False, "spectrum_train_lm_head": False}
    trainer = make_trainer()
    with pytest.raises(PluginError, match="no parameter would be trained with spectrum_top_fraction=0"):
        apply(trainer, ["spectrum"], options)
    assert all(value.requires_grad for value in trainer.model.parameters())
    apply(trainer, ["spectrum"], {**options, "spectrum_always_train": ["norm"]})
    trained = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert trained == {name for name in weights(trainer.model) if "norm" in name}


def test_tied_embeddings_are_one_parameter(make_trainer):
    trainer = make_trainer(llama(tie_word_embeddings=True))
    options = {"spectrum_top_fraction": 0, "spectrum_train_lm_head": False}
    apply(trainer, ["spectrum"], options)
    trained = [name for name, value in trainer.model.named_parameters() if value.requires_grad]
    assert trained == ["model.embed_tokens.weight"]


def test_frozen_embeddings_train_under_checkpointing(make_trainer):
    trainer = make_trainer(
        gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}, max_steps=1
    )
    before = weights(trainer.model)
    options = {"spectrum_train_embeddings": False, "spectrum_train_lm_head": False}
    apply(trainer, ["spectrum"], options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    trained = [name for name, value in trainer.model.named_parameters() if value.requires_grad]
    assert trained
    assert all(not torch.equal(before[name], weights(trainer.model)[name]) for name in trained)


def test_undo_unfreezes(make_trainer):
    trainer = make_trainer()
    trainer.model.model.norm.weight.requires_grad_(False)
    applied = apply(trainer, ["spectrum"])
    applied.undo()
    frozen = [name for name, value in trainer.model.named_parameters() if not value.requires_grad]
    assert frozen == ["model.norm.weight"]


def test_existing_optimizer_is_an_error(make_trainer):
    trainer = make_trainer()
    trainer.create_optimizer()
    with pytest.raises(PluginError, match="the optimizer exists already.*create the trainer without"):
        apply(trainer, ["spectrum"])
    assert all(value.requires_grad for value in trainer.model.parameters())


def test_adapters_are_rejected(make_trainer):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with pytest.raises(PluginError, match="has an adapter.*remove the adapter"):
        apply(make_trainer(model), ["spectrum"])
    session = PluginSession.open(["spectrum"], {})
    with pytest.raises(PluginError, match="adapter: lora"):
        session.plugins[0].plan(PluginConfig({"adapter": "lora"}), None)


def test_wrong_options_are_explained(make_trainer):
    with pytest.raises(ConfigError, match="spectrum_top_fraction=50.*50 % is 0.5"):
        apply(make_trainer(), ["spectrum"], {"spectrum_top_fraction": 50})
    with pytest.raises(ConfigError, match="not a regular expression"):
        apply(make_trainer(), ["spectrum"], {"spectrum_always_train": ["("]})
    with pytest.raises(PluginError, match="no trainable parameter matches 'bert'"):
        apply(make_trainer(), ["spectrum"], {"spectrum_always_train": ["bert"]})
    with pytest.raises(PluginError, match="there is no file.*nowhere.json"):
        apply(make_trainer(), ["spectrum"], {"spectrum_snr_file": "nowhere.json"})


# Files ---------------------------------------------------------------------------------------------------------------


def spectrum_script(content, percent):
    """Return the layers that Spectrum's own script selects from its file: a stable sort per type, in file order."""
    by_type = {}
    for name, entry in content.items():
        by_type.setdefault(entry["type"], []).append((name, entry["snr"]))
    chosen = set()
    for layers in by_type.values():
        ranked = sorted(layers, key=lambda layer: layer[1], reverse=True)
        chosen |= {name for name, _ in ranked[: int(len(layers) * percent / 100)]}
    return chosen


def file_content(num_layers, infinite=("input_layernorm", "post_attention_layernorm")):
    """Return the content of a file in Spectrum's format: sorted by type, with Infinity for norms, and a tied head."""
    generator = torch.Generator().manual_seed(4)
    kinds = ["input_layernorm", "lm_head", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "model.embed_tokens"]
    kinds += ["model.norm", "post_attention_layernorm", *(f"self_attn.{name}_proj" for name in "koqv")]
    content = {}
    for kind in kinds:
        is_single = kind in {"lm_head", "model.embed_tokens", "model.norm"}
        for index in range(1 if is_single else num_layers):
            snr = math.inf if kind in infinite else float(torch.rand((), generator=generator))
            content[kind if is_single else f"model.layers.{index}.{kind}"] = {"snr": snr, "type": kind}
    return content


@pytest.mark.parametrize("percent", [10, 25, 50, 100])
@pytest.mark.parametrize("tied", [False, True])
def test_file_of_spectrum_gives_the_list_of_its_script(make_trainer, tmp_path, percent, tied):
    content = file_content(num_layers=12)
    (tmp_path / "snr_results_Some-Org-Tiny-1.json").write_text(json.dumps(content, indent=4))
    assert "Infinity" in (tmp_path / "snr_results_Some-Org-Tiny-1.json").read_text()
    model = llama(num_hidden_layers=12, hidden_size=4, intermediate_size=4, tie_word_embeddings=tied)
    options = {"spectrum_snr_file": str(tmp_path), "spectrum_model_name": "Some_Org/Tiny-1"}
    apply(make_trainer(model), ["spectrum"], {**options, "spectrum_top_fraction": percent / 100})
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    expected = {f"{name}.weight" for name in spectrum_script(content, percent)}
    expected |= {"lm_head.weight", "model.embed_tokens.weight"}
    assert trained == expected & {name for name, _ in model.named_parameters()}


def test_sorted_file_and_odd_values_are_read(make_trainer, tmp_path):
    content = file_content(num_layers=2)
    content["model.layers.0.mlp.up_proj"]["snr"] = math.nan
    content["model.layers.1.self_attn.q_proj"]["snr"] = None
    sorted_content = {}
    for name, entry in content.items():
        sorted_content.setdefault(entry["type"], {})[name] = entry["snr"]
    trained = []
    for shape in (content, sorted_content):
        path = tmp_path / "snr.json"
        path.write_text(json.dumps(shape))
        model = llama()
        apply(make_trainer(model), ["spectrum"], {"spectrum_snr_file": str(path)})
        trained.append([name for name, value in model.named_parameters() if value.requires_grad])
    assert trained[0] == trained[1]
    assert "model.layers.1.mlp.up_proj.weight" in trained[0]
    assert "model.layers.0.self_attn.q_proj.weight" in trained[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"model.layers.0.mlp.up_proj": {"snr": "high"}}', "the SNR of 'model.layers.0.mlp.up_proj' is 'high'"),
        ("[1]", "expected an object"),
        ("{}", "it has no layers"),
        ("{", "cannot read"),
        ('{"model.layers.7.mlp.up_proj": {"snr": 1}}', "has 1 layers that the model does not have.*another model"),
    ],
)
def test_wrong_file_is_explained(make_trainer, tmp_path, text, problem):
    (tmp_path / "snr.json").write_text(text)
    with pytest.raises(PluginError, match=problem):
        apply(make_trainer(), ["spectrum"], {"spectrum_snr_file": str(tmp_path / "snr.json")})


def test_scores_are_cached_by_the_weights(make_trainer, cache, capsys, caplog, tmp_path):
    apply(make_trainer(), ["spectrum"], {"spectrum_model_name": "org/name"})
    assert "spectrum: SNR of weights: 19 layers in" in capsys.readouterr().err
    (path,) = cache.iterdir()
    assert path.name.startswith("snr_results_org-name_")
    content = json.loads(path.read_text())
    assert content["model.layers.1.mlp.up_proj"].keys() == {"snr", "type"}

    apply(make_trainer(), ["spectrum"], {"spectrum_top_fraction": 0.9})
    assert capsys.readouterr().err == ""

    model = llama()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1
    apply(make_trainer(model), ["spectrum"])
    assert "19 layers" in capsys.readouterr().err
    assert len(list(cache.iterdir())) == 2

    path.write_text("damaged")
    apply(make_trainer(), ["spectrum"])
    assert "ignored the damaged cache file" in caplog.text
    assert json.loads(path.read_text()) == content

    (tmp_path / "file").touch()
    apply(make_trainer(), ["spectrum"], {"spectrum_cache_dir": str(tmp_path / "file" / "\x1b[2J")})
    assert "cannot write the cache of SNRs" in caplog.text
    assert "\x1b" not in caplog.text


def test_cache_can_be_turned_off(make_trainer, cache, capsys):
    for _ in range(2):
        apply(make_trainer(), ["spectrum"], {"spectrum_cache_dir": ""})
        assert "19 layers" in capsys.readouterr().err
    assert not cache.exists()


def test_choice_is_saved_and_recorded(make_trainer, tmp_path):
    with tachograph.init("spectrum", log_dir=str(tmp_path), console=False) as run:
        trainer = make_trainer(max_steps=1)
        apply(trainer, ["spectrum"])
        trainer.train()
    rows = {row["layer"]: row for row in tachograph.read(run).completions()}
    saved = json.loads((tmp_path / "out" / "spectrum.json").read_text())
    assert rows.keys() == saved.keys()
    for name, entry in saved.items():
        assert rows[name]["snr"] == pytest.approx(entry["snr"])
        assert rows[name]["trained"] == entry["trained"]
    parameters = dict(trainer.model.named_parameters())
    assert all(parameters[f"{name}.weight"].requires_grad is entry["trained"] for name, entry in saved.items())
    again = llama()
    apply(make_trainer(again), ["spectrum"], {"spectrum_snr_file": str(tmp_path / "out" / "spectrum.json")})
    assert {name: value.requires_grad for name, value in again.named_parameters()} == {
        name: value.requires_grad for name, value in parameters.items()
    }


def test_plan_counts_layers_without_weights():
    with torch.device("meta"):
        model = llama()
    session = PluginSession.open(["spectrum"], {"spectrum_top_fraction": 0.5})
    lines = session.plugins[0].plan(session.cfg, model)
    assert "mlp.down_proj: trains 1 of 2" in lines
    assert lines[0] == "computes SNRs from the weights"
    with pytest.raises(PluginError, match="not in memory"):
        session.plugins[0].post_model_build(session.cfg, model)
