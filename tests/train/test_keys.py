"""Keys of Axolotl's configs: what they become, and what is said about those without effect."""

from __future__ import annotations

import json

import pytest
import torch

from tachograph.train._config import TrainConfig
from tachograph.train._known_keys import IGNORED_KEYS, OTHER_NAMES, PLUGIN_KEYS, RENAMED_KEYS, UNSUPPORTED_KEYS
from tachograph.train._model import weights_dtype
from tachograph.train._templates import read_built_in
from tests.train.conftest import conversations, make_tokenizer, write_rows


def test_each_key_is_in_one_table():
    tables = [UNSUPPORTED_KEYS, IGNORED_KEYS, PLUGIN_KEYS, RENAMED_KEYS, OTHER_NAMES, TrainConfig.model_fields]
    names = [name for table in tables for name in table]
    assert sorted(names) == sorted(set(names))
    assert set(OTHER_NAMES.values()) <= set(TrainConfig.model_fields)
    assert all(reason.strip() for table in tables[:4] for reason in table.values())


def test_keys_become_training_arguments(make_job):
    job = make_job(
        batch_size=8,
        warmup_steps=0.5,
        max_steps=10,
        bf16=False,
        bfloat16=True,
        accelerator_config={"split_batches": True},
        torch_empty_cache_steps=3,
        save_strategy=None,
        save_steps=0.5,
        val_set_size=0.25,
        eval_steps=0.2,
        gradient_checkpointing="offload",
        model_config={"rms_norm_eps": 1e-4},
        tensor_parallel_size=1,
        dp_shard_size=8,
        activation_offloading=True,
    )
    checked_job = job.check()
    arguments = checked_job.arguments
    assert arguments.gradient_accumulation_steps == 4
    assert arguments.get_warmup_steps(10) == 5
    assert (arguments.bf16, arguments.fp16, weights_dtype(job.config)) == (False, False, "bfloat16")
    assert arguments.accelerator_config.split_batches
    assert arguments.torch_empty_cache_steps == 3
    assert (arguments.save_strategy, arguments.save_steps) == ("steps", 0.5)
    assert (arguments.eval_strategy, arguments.eval_steps) == ("steps", 0.2)
    assert arguments.gradient_checkpointing is True
    assert checked_job.model_config.rms_norm_eps == 1e-4
    notes = "\n".join(job.warnings)
    assert "gradient_checkpointing: offload is the same as true: activations stay on the GPU" in notes
    assert "activation_offloading has no effect: the model is the same, but training needs more memory" in notes
    assert "dp_shard_size has no effect: FSDP shards over all processes; the rows of a step are the same" in notes
    assert "tensor_parallel_size" not in notes


def test_pure_precision_trains(make_job):
    for key, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        job = make_job(**{key: True, "bf16": False, "output_dir": f"./{key}", "max_steps": 1, "learning_rate": 1e-6})
        assert weights_dtype(job.config) == key
        job.run()
        saved_config = json.loads((job.path.parent / key / "config.json").read_text())
        assert saved_config["dtype"] == str(dtype).removeprefix("torch.")


def test_repeated_rows_are_dropped(make_job):
    rows = conversations(6)
    write_rows("data.jsonl", [*rows, *rows[:4]])
    data = make_job(dataset_exact_deduplication=True).check().data
    assert data.num_samples == 6
    assert "datasets[0]: dropped 4 rows that repeat an earlier row" in data.notes
    assert make_job().check().data.num_samples == 10

    pairs = [{"prompt": f"add {n % 6}", "chosen": "yes", "rejected": "no"} for n in range(8)]
    write_rows("pairs.jsonl", pairs)
    job = make_job(rl="dpo", datasets=[{"path": "pairs.jsonl"}], dataset_exact_deduplication=True)
    data = job.check().data
    assert [row["prompt"] for row in data.train] == [f"add {n}" for n in range(6)]
    assert list(data.notes) == ["datasets: dropped 2 rows that repeat an earlier row"]


def test_experts_have_the_chosen_implementation(make_job):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 8, "num_hidden_layers": 1}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    for name in ("eager", "batched_mm"):
        job = make_job(
            base_model=None,
            tokenizer_config="./model",
            init_from_config={"model_type": "qwen3_moe", **sizes, **experts},
            experts_implementation=name,
            bf16=False,
        )
        checked_job = job.check()
        assert checked_job.meta_model.config._experts_implementation == name
        assert job._load_model(checked_job).config._experts_implementation == name


def test_named_template_is_used_and_saved(make_job):
    job = make_job(chat_template="llama3", tokens=["<|eot_id|>"], max_steps=1, sequence_len=200)
    job.run()
    assert (job.path.parent / "out/chat_template.jinja").read_text() == read_built_in("llama3")
    assert make_job(chat_template="tokenizer_default_fallback_llama3").check().tokenizer.chat_template != read_built_in(
        "llama3"
    )
    make_tokenizer(template=None).save_pretrained("bare")
    job = make_job(chat_template="tokenizer_default_fallback_llama3", tokenizer_config="./bare", sequence_len=200)
    assert job.check().tokenizer.chat_template == read_built_in("llama3")


@pytest.mark.parametrize(
    "dataset",
    [
        {"field_thinking": "thoughts", "template_thinking_key": "reasoning"},
        {"message_property_mappings": {"reasoning": "thoughts"}},
    ],
    ids=["own keys", "mapping"],
)
def test_reasoning_reaches_the_template(make_job, dataset):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thoughts": "why"}]
    write_rows("data.jsonl", [{"messages": messages}] * 4)
    template = "{% for m in messages %}{{ '<|' + m.role + '|>' + (m.reasoning or '') + m.content + kind }}{% endfor %}"
    job = make_job(
        datasets=[{"path": "data.jsonl", "type": "chat_template", **dataset}],
        chat_template_jinja=template,
        chat_template_kwargs={"kind": "!"},
    )
    checked_job = job.check()
    text = checked_job.tokenizer.decode(checked_job.data.train[0]["input_ids"])
    assert text.replace(" ", "") == "<|user|>a!<|assistant|>whyb!"


def test_key_that_a_plugin_shares_belongs_to_the_plugin(make_job):
    """The config would pass the name to transformers, which does not know kernels that a plugin adds later."""
    job = make_job(plugins=["kernels"], experts_implementation="scattermoe")
    assert job.config.experts_implementation is None
    assert job.session.plugins[0].options.experts_implementation == "scattermoe"
