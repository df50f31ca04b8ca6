"""Sparse fine-tuning: zeros survive training and resuming, recipes are checked, compressed models are exact."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, TrainerCallback

import tachograph
from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import PluginSession, apply
from tachograph.plugins.llm_compressor import compress, decompress, load_compressed, load_compressed_model
from tests.plugins.conftest import llama, logged, weights

PAGE_TARGETS = [f"re:.*{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down")]
NUM_MATRICES = 14


def recipe(targets=PAGE_TARGETS, modifier="ConstantPruningModifier", **arguments):
    return {"finetuning_stage": {"finetuning_modifiers": {modifier: {"targets": targets, "start": 0, **arguments}}}}


def config(chosen=None, **options):
    return {"llmcompressor": {"recipe": chosen if chosen is not None else recipe(), **options}}


def two_of_four(weight):
    """Set the two smallest of each four neighbours to zero."""
    groups = weight.data.reshape(-1, 4)
    smallest = groups.abs().argsort(dim=1)[:, :2]
    weight.data = groups.scatter(1, smallest, 0.0).reshape(weight.shape)


def sparse_llama(**options):
    model = llama(**options)
    for name, weight in model.named_parameters():
        if "_proj" in name:
            two_of_four(weight)
    return model


def matrices(model):
    return {name: weight for name, weight in weights(model).items() if "_proj" in name}


def zeros(model):
    return {name: weight == 0 for name, weight in matrices(model).items()}


def assert_same_zeros(model, before):
    after = zeros(model)
    assert len(after) == NUM_MATRICES
    for name, mask in before.items():
        assert torch.equal(after[name], mask), name


# Zeros stay zero ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw_torch", "sgd"])
def test_two_of_four_pattern_is_exact_after_training(make_trainer, optimizer):
    model = sparse_llama()
    before = zeros(model)
    rate, arguments = (1e-2, None) if optimizer == "adamw_torch" else (0.1, "momentum=0.9")
    options = {"optim": optimizer, "optim_args": arguments, "weight_decay": 0.1, "learning_rate": rate}
    trainer = make_trainer(model, max_steps=12, gradient_accumulation_steps=2, **options)
    apply(trainer, ["axolotl.integrations.llm_compressor.LLMCompressorPlugin"], config())
    trainer.train()
    assert_same_zeros(trainer.model, before)
    for weight in matrices(trainer.model).values():
        assert torch.equal((weight.reshape(-1, 4) == 0).sum(dim=1), torch.full((weight.numel() // 4,), 2))
    losses = logged(trainer, "loss")
    assert losses[-1] < 0.8 * losses[0]
    assert logged(trainer, "plugin/llm_compressor/active") == [1.0] * 12
    assert logged(trainer, "plugin/llm_compressor/sparsity/global") == pytest.approx([0.5] * 12)
    assert logged(trainer, "plugin/llm_compressor/sparsity/q_proj") == pytest.approx([0.5] * 12)
    num_zeros = sum(int(mask.sum()) for mask in before.values())
    assert all(
        0.9 * num_zeros < fixed <= num_zeros for fixed in logged(trainer, "plugin/llm_compressor/violations_fixed")
    )


def test_zeros_are_lost_without_the_plugin(make_trainer):
    trainer = make_trainer(sparse_llama())
    trainer.train()
    assert sum(int(mask.sum()) for mask in zeros(trainer.model).values()) == 0


def test_weights_outside_the_mask_train_as_if_alone(make_trainer):
    """The masked weights equal those of a training whose weights are masked by hand after each step."""
    model = sparse_llama()
    masks = zeros(model)
    trainer = make_trainer(model)
    apply(trainer, ["llm_compressor"], config())
    trainer.train()
    reference = make_trainer(sparse_llama())
    step = reference.create_optimizer().step

    def masked_step(*arguments, **named):
        result = step(*arguments, **named)
        with torch.no_grad():
            for name, weight in reference.model.named_parameters():
                if name in masks:
                    weight[masks[name]] = 0.0
        return result

    reference.optimizer.step = masked_step
    reference.train()
    for name, weight in weights(reference.model).items():
        assert torch.equal(weights(trainer.model)[name], weight), name


def test_resumed_training_keeps_masks(make_trainer, tmp_path):
    model = sparse_llama()
    before = zeros(model)
    whole = make_trainer(model, max_steps=6)
    apply(whole, ["llm_compressor"], config())
    whole.train()
    folder = str(tmp_path / "parts")
    first = make_trainer(sparse_llama(), max_steps=6, save_strategy="steps", save_steps=3, output_dir=folder)
    apply(first, ["llm_compressor"], config())
    first.train()
    other = llama()  # its own zeros are elsewhere: only the masks of the checkpoint are right
    for name, weight in other.named_parameters():
        if "_proj" in name:
            weight.data[0] = 0.0
    second = make_trainer(other, max_steps=6, output_dir=folder)
    apply(second, ["llm_compressor"], config())
    second.train(resume_from_checkpoint=f"{folder}/checkpoint-3")
    assert_same_zeros(second.model, before)
    for name, weight in weights(whole.model).items():
        torch.testing.assert_close(weights(second.model)[name], weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("start", "end"), [(2, 4), (0.25, 0.5)])
def test_zeros_are_kept_between_start_and_end(make_trainer, start, end):
    seen = []

    class Sparsity(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **named):
            seen.append(float((model.model.layers[0].mlp.up_proj.weight == 0).float().mean()))

    trainer = make_trainer(sparse_llama(), max_steps=8, callbacks=[Sparsity()])
    apply(trainer, ["llm_compressor"], config(recipe(start=start, end=end)))
    trainer.train()
    assert [value > 0.4 for value in seen] == [step in (2, 3) for step in range(8)]
    assert logged(trainer, "plugin/llm_compressor/active") == [float(step in (2, 3)) for step in range(8)]


# Targets and recipes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        (["re:.*q_proj.weight"], 2),
        (["re:.*q_proj$"], 2),  # a module
        (["model.layers.0.mlp.up_proj"], 1),
        (["model.layers.1.mlp.up_proj.weight"], 1),
        ("LlamaMLP", 0),  # its weights belong to modules inside it
        (["re:.*layers.1", "re:.*q_proj"], 8),
    ],
)
def test_targets_match_parameters_modules_and_classes(make_trainer, targets, count):
    trainer = make_trainer(sparse_llama())
    if not count:
        with pytest.raises(PluginError, match="'LlamaMLP' matches no matrix"):
            apply(trainer, ["llm_compressor"], config(recipe(targets)))
        return
    with apply(trainer, ["llm_compressor"], config(recipe(targets))) as applied:
        assert applied.session.plugins[0].report.changes["matrices kept sparse"]["count"] == count


def test_class_target_with_ignored_head(make_trainer):
    trainer = make_trainer(sparse_llama())
    with apply(trainer, ["llm_compressor"], config(recipe("Linear", ignore=["lm_head"]))) as applied:
        changes = applied.session.plugins[0].report.changes["matrices kept sparse"]
    assert changes["count"] == NUM_MATRICES
    with pytest.raises(PluginError, match="lm_head.weight of 15 matched matrices have no zeros.*prune.*`ignore`"):
        apply(make_trainer(sparse_llama()), ["llm_compressor"], config(recipe("Linear")))


def test_tied_weights_are_found_by_either_name(make_trainer):
    model = sparse_llama(tie_word_embeddings=True)
    two_of_four(model.lm_head.weight)
    model.tie_weights()
    before = model.lm_head.weight == 0
    trainer = make_trainer(model)
    apply(trainer, ["llm_compressor"], config(recipe(["lm_head"])))
    trainer.train()
    assert torch.equal(trainer.model.model.embed_tokens.weight == 0, before)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            recipe(["re:.*q_proj.weight", "re:.*qkv_proj.weight"]),
            "'re:.*qkv_proj.weight' matches no matrix of Llama.*q_pr",
        ),
        (recipe(["re:.*(q_proj"]), "'re:.*\\(q_proj' is not a valid regular expression: missing \\)"),
        (recipe(modifier="ConstantPruneModifier"), "modifier 'ConstantPruneModifier' is not supported.*did you mean"),
        (recipe(modifier="SparseGPTModifier"), "Prune or quantise the model before the training"),
        (recipe(["lm_head"]), "lm_head.weight of 1 matched matrices have no zeros"),
        (recipe(["re:.*norm"]), "matches no matrix"),
        (recipe(target=["x"]), "no argument 'target'; did you mean 'targets'"),
        (recipe([]), "targets is missing"),
        (recipe(start=2.5), "start=2.5 must be a number of steps.*fraction"),
        (recipe(start=5, end=5), "end=5 must be after start=5"),
        ({"finetuning_stage": {}}, "the recipe has no modifier"),
        ({"finetuning": {}}, "the name of a stage ends with _stage"),
        ([], "expected a recipe such as"),
        ("missing.yaml", "cannot read the recipe 'missing.yaml': No such file"),
        ("a_stage:\n  - [", "not valid YAML"),
    ],
)
def test_wrong_recipes_are_errors_with_a_remedy(make_trainer, chosen, message):
    with pytest.raises(ConfigError, match=message):
        apply(make_trainer(sparse_llama()), ["llm_compressor"], config(chosen))


@pytest.mark.parametrize("form", ["file", "text", "list"])
def test_recipe_may_be_file_text_or_list(make_trainer, tmp_path, form):
    chosen = yaml.safe_dump(recipe())
    if form == "file":
        path = tmp_path / "recipe.yaml"
        path.write_text(chosen)
        chosen = str(path)
    elif form == "list":
        chosen = {"finetuning_modifiers": [{"ConstantPruningModifier": {"targets": PAGE_TARGETS}}]}
    model = sparse_llama()
    before = zeros(model)
    trainer = make_trainer(model, max_steps=2)
    apply(trainer, ["llm_compressor"], config(chosen))
    trainer.train()
    assert_same_zeros(trainer.model, before)


def test_missing_section_and_unknown_key_are_named(make_trainer):
    with pytest.raises(ConfigError, match="llmcompressor"):
        apply(make_trainer(sparse_llama()), ["llm_compressor"], {})
    with pytest.raises(ConfigError, match="save_compresed"):
        apply(make_trainer(sparse_llama()), ["llm_compressor"], config(save_compresed=True))


def test_steps_outside_the_training_are_an_error(make_trainer):
    trainer = make_trainer(sparse_llama())
    apply(trainer, ["llm_compressor"], config(recipe(start=4)))
    with pytest.raises(PluginError, match="start=4, end=None contains none of the 4 steps"):
        trainer.train()
    trainer = make_trainer(sparse_llama())
    apply(trainer, ["llm_compressor"], config(recipe(end=0.5), save_compressed=True))
    with pytest.raises(PluginError, match="ends at step 2 of 4: remove `end`"):
        trainer.train()


def test_frozen_weights_are_an_error(make_trainer):
    model = sparse_llama()
    for name, weight in model.named_parameters():
        weight.requires_grad_("_proj" not in name)
    with pytest.raises(PluginError, match="none of the 14 matched matrices is trained"):
        apply(make_trainer(model), ["llm_compressor"], config())


def test_plan_needs_no_weights():
    with torch.device("meta"):
        model = llama()
    session = PluginSession.open(["llm_compressor"], config(save_compressed=True))
    lines = session.plugins[0].plan(session.cfg, model)
    assert lines[0].startswith("keeps the zeros of 14 matrices")
    assert len(lines) == 2
    session = PluginSession.open(["llm_compressor"], config(recipe(["Conv1D"])))
    with pytest.raises(PluginError, match="'Conv1D' matches no matrix"):
        session.plugins[0].plan(session.cfg, model)


# Compressed models ----------------------------------------------------------------------------------------------------


def test_compressed_model_is_small_and_exact(make_trainer, tmp_path):
    trainer = make_trainer(sparse_llama(hidden_size=64, intermediate_size=256))
    apply(trainer, ["llm_compressor"], config(save_compressed=True))
    trainer.train()
    folder = tmp_path / "out" / "compressed"
    trainer.model.save_pretrained(tmp_path / "dense")
    dense = load_file(tmp_path / "dense" / "model.safetensors")
    restored = load_compressed(folder)
    assert restored.keys() == dense.keys()
    for name, tensor in dense.items():
        assert torch.equal(restored[name].view(torch.int32), tensor.view(torch.int32)), name
    ratio = (folder / "model.compressed.safetensors").stat().st_size / (
        tmp_path / "dense" / "model.safetensors"
    ).stat().st_size
    assert ratio < 0.75
    assert logged(trainer, "plugin/llm_compressor/saved_ratio") == [pytest.approx(ratio)]
    loaded = load_compressed_model(folder)
    for name, weight in weights(trainer.model).items():
        assert torch.equal(weights(loaded)[name], weight), name


def test_decompressed_folder_loads_with_transformers(tmp_path):
    model = sparse_llama()
    model.save_pretrained(tmp_path / "dense", max_shard_size="20KB")
    assert len(list((tmp_path / "dense").glob("*.safetensors"))) > 1
    compress(tmp_path / "dense", tmp_path / "small")
    decompress(tmp_path / "small", tmp_path / "again")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    for name, weight in weights(model).items():
        assert torch.equal(weights(loaded)[name], weight), name


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int8]
)
def test_compression_is_exact_bit_by_bit(tmp_path, dtype):
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    tensor = torch.randint(-100, 100, (7, 9)).to(integer)  # any bits, also those of NaN
    tensor[torch.rand(7, 9) < 0.6] = 0
    tensor[0, 0] = torch.iinfo(integer).min  # the bits of -0.0
    (tmp_path / "m").mkdir()
    tensors = {"x": tensor.view(dtype), "dense": torch.ones(3), "scalar": torch.tensor(0.0), "empty": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    compress(tmp_path / "m", tmp_path / "c")
    restored = load_compressed(tmp_path / "c")
    assert torch.equal(restored["x"].view(integer), tensor)
    assert {name: (value.dtype, value.shape) for name, value in restored.items()} == {
        name: (value.dtype, value.shape) for name, value in tensors.items()
    }


def test_damaged_and_foreign_folders_are_errors(tmp_path):
    sparse_llama().save_pretrained(tmp_path / "dense")
    compress(tmp_path / "dense", tmp_path / "small")
    compress(tmp_path / "dense", tmp_path / "small")  # replaces an earlier one
    with pytest.raises(PluginError, match="exists already"):
        compress(tmp_path / "dense", tmp_path / "dense")
    with pytest.raises(PluginError, match="has no \\*.compressed.safetensors files"):
        load_compressed(tmp_path / "dense")
    with pytest.raises(PluginError, match="no .safetensors files to compress"):
        compress(tmp_path / "small", tmp_path / "x")
    file = tmp_path / "small" / "model.compressed.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-100])
    with pytest.raises(PluginError, match="damaged"):
        load_compressed(tmp_path / "small")
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"]["tachograph_compressed"] = '{"version": 2, "shapes": {}}'
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    with pytest.raises(PluginError, match="update Tachograph"):
        load_compressed(tmp_path / "small")


def test_runner_saves_after_the_dense_model(make_trainer, tmp_path):
    """A runner has `output_dir` in its config and calls `post_train`; the callback leaves saving to it."""
    from pydantic import BaseModel

    class RunnerConfig(BaseModel):
        output_dir: str

    out = tmp_path / "runner"
    session = PluginSession.open(
        ["llm_compressor"], {**config(save_compressed=True), "output_dir": str(out)}, base=RunnerConfig
    )
    trainer = make_trainer(sparse_llama(), output_dir=str(out))
    session.model_hook("post_model_load", trainer.model)
    trainer.__class__ = session.trainer_class(type(trainer))
    session.attach(trainer)
    trainer.train()
    assert not (out / "compressed").exists()
    session.post_train(trainer.model)
    assert load_compressed(out / "compressed").keys() == trainer.model.state_dict().keys()
    assert [path.name for path in out.iterdir()] == ["compressed"]  # no temporary folder is left


def test_failed_save_keeps_the_trained_model(make_trainer, tmp_path, caplog):
    blocked = tmp_path / "out" / "compressed"
    blocked.mkdir(parents=True)
    (blocked / "notes.txt").write_text("mine")
    trainer = make_trainer(sparse_llama())
    apply(trainer, ["llm_compressor"], config(save_compressed=True))
    trainer.train()
    assert trainer.state.global_step == 4
    assert "the compressed model is not saved: PluginError" in caplog.text
    assert (blocked / "notes.txt").read_text() == "mine"


def test_run_shows_sparsity_and_saved_ratio(make_trainer, tmp_path):
    from tachograph.integrations.transformers import TachographCallback

    with tachograph.init("sparse", log_dir=str(tmp_path / "logs"), git=False, system_interval_s=0) as run:
        trainer = make_trainer(sparse_llama(), callbacks=[TachographCallback()])
        apply(trainer, ["llm_compressor"], config(save_compressed=True))
        trainer.train()
    found = tachograph.read(run)
    assert found.series("plugin/llm_compressor/sparsity/global").values == pytest.approx([0.5] * 4)
    assert 0 < found.series("plugin/llm_compressor/saved_ratio").values[-1] < 1
    (event,) = [record for record in found.records("event") if record["name"] == "plugin"]
    assert event["changes"]["matrices kept sparse"]["count"] == NUM_MATRICES
