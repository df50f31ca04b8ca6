"""Trainings from a config to a saved model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import transformers
import yaml

from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tachograph.train import load
from tests.train.conftest import BASE, CHARACTERS, SPECIAL, conversations, write_rows


def test_sft_trains_records_and_saves(make_job):
    result = make_job(val_set_size=4, max_steps=4, learning_rate=1e-2, name="greyjacket").run()
    assert result.num_steps == 4
    assert {"train_loss", "eval_loss"} <= set(result.metrics)
    run = read(result.run_dir)
    assert (run.name, run.state) == ("greyjacket", "finished")
    losses = run.series("train_loss").values
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert run.config["base_model"] == "./model"
    assert run.config["training_arguments"]["max_steps"] == 4
    model = transformers.AutoModelForCausalLM.from_pretrained("out")
    assert transformers.AutoTokenizer.from_pretrained("out").chat_template
    before = transformers.AutoModelForCausalLM.from_pretrained("model")
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)


def test_pretraining_from_a_config(make_job):
    built = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    job = make_job(
        base_model=None,
        tokenizer_config="./model",
        init_from_config={**built, "num_attention_heads": 2},
        datasets=None,
        pretraining_dataset="./text.jsonl",
        sample_packing=True,
    )
    assert job.check().model_config.vocab_size == len(SPECIAL) + len(CHARACTERS)
    assert math.isfinite(job.run().metrics["train_loss"])


PAIRS = [{"prompt": f"add {n}", "chosen": f"is {n}", "rejected": "no"} for n in range(8)]
CHAT_PAIRS = [
    {
        "messages": [{"role": "user", "content": f"add {n}"}],
        "chosen": {"role": "assistant", "content": f"is {n}"},
        "rejected": {"role": "assistant", "content": "no"},
    }
    for n in range(8)
]
LABELLED = [{"prompt": f"add {n}", "completion": f"is {n}", "label": bool(n % 2)} for n in range(8)]
PROMPTS = [{"prompt": [{"role": "user", "content": f"add {n}"}], "answer": str(n)} for n in range(8)]


@pytest.mark.parametrize(
    ("rl", "rows", "options"),
    [
        ("dpo", PAIRS, {"rl_beta": 0.2}),
        ("dpo", CHAT_PAIRS, {"adapter": "lora", "lora_target_linear": True, "lora_r": 2}),
        ("kto", LABELLED, {}),
        ("orpo", CHAT_PAIRS, {"orpo_alpha": 0.3}),
    ],
    ids=["dpo", "dpo-lora", "kto", "orpo"],
)
@pytest.mark.filterwarnings("ignore")
def test_preference_methods_train(make_job, rl, rows, options):
    write_rows("pairs.jsonl", rows)
    result = make_job(rl=rl, datasets=[{"path": "pairs.jsonl", "type": "chat_template.default"}], **options).run()
    assert result.num_steps == 2
    assert math.isfinite(result.metrics["train_loss"])
    assert read(result.run_dir).state == "finished"


@pytest.mark.filterwarnings("ignore")
def test_grpo_calls_the_reward_function(make_job):
    write_rows("prompts.jsonl", PROMPTS)
    Path("my_rewards.py").write_text(
        "calls = []\n"
        "def has_digit(completions, answer, **kwargs):\n"
        "    calls.append(answer)\n"
        "    return [float(any(c.isdigit() for c in text[0]['content'])) for text in completions]\n"
    )
    result = make_job(
        rl="grpo",
        datasets=[{"path": "prompts.jsonl"}],
        trl={"reward_funcs": ["my_rewards.has_digit"], "num_generations": 2, "max_completion_length": 4},
    ).run()
    import my_rewards

    assert len(my_rewards.calls) == 2
    run = read(result.run_dir)
    assert any("reward" in name for name in run.metrics), sorted(run.metrics)
    assert run.completions()


def test_lora_saves_adapter_and_merged_model(make_job):
    job = make_job(adapter="lora", lora_target_modules=["q_proj", "v_proj"], lora_r=2, merge_lora=True)
    result = job.run()
    assert Path("out/adapter_model.safetensors").exists()
    base = transformers.AutoModelForCausalLM.from_pretrained("model")
    merged = transformers.AutoModelForCausalLM.from_pretrained("out/merged")
    changed = [
        name
        for (name, before), (_, after) in zip(base.named_parameters(), merged.named_parameters(), strict=True)
        if not torch.equal(before, after)
    ]
    assert len(changed) == 4 and all("q_proj" in name or "v_proj" in name for name in changed)
    assert "peft" in read(result.run_dir).config


def test_lora_continues_from_an_adapter(make_job):
    options = {"adapter": "lora", "lora_target_linear": True, "lora_r": 2, "micro_batch_size": 8}
    first = make_job(**options, learning_rate=1e-2, max_steps=6).run()
    Path("out").rename("adapter")
    second = make_job(**options, lora_model_dir="./adapter", learning_rate=1e-6).run()
    assert second.metrics["train_loss"] < first.metrics["train_loss"]


def test_unfrozen_parameters_alone_are_trained(make_job):
    make_job(unfrozen_parameters=[r"model\.layers\.1\..*mlp"]).run()
    before = transformers.AutoModelForCausalLM.from_pretrained("model").state_dict()
    after = transformers.AutoModelForCausalLM.from_pretrained("out").state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}


def test_resumed_training_equals_an_uninterrupted_one(make_job):
    options = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler": "constant", "num_epochs": 1}
    whole = make_job(**options, max_steps=4, output_dir="./whole", name="whole").run()
    part = make_job(**options, max_steps=2, name="part").run()
    resumed = make_job(**options, max_steps=4, name="part", auto_resume_from_checkpoints=True).run()
    assert (part.num_steps, resumed.num_steps) == (2, 4)
    assert resumed.run_dir == part.run_dir  # one run, with both parts
    steps = read(resumed.run_dir).series("train_loss").steps
    assert list(steps) == [1, 2, 3, 4]
    ends = [transformers.AutoModelForCausalLM.from_pretrained(name).state_dict() for name in ("whole", "out")]
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], msg=name)
    assert whole.num_steps == 4


def test_evaluations_per_epoch_are_whole_steps(make_job):
    job = make_job(val_set_size=4, max_steps=None, num_epochs=2, evals_per_epoch=3, saves_per_epoch=1)
    arguments = job.check().arguments
    assert job.check().steps[:2] == (6, 12)  # 12 rows in batches of 2
    assert (arguments.eval_strategy, arguments.eval_steps) == ("steps", 2)
    assert (arguments.save_strategy, arguments.save_steps) == ("steps", 6)
    assert make_job(shuffle=False).check().arguments.train_sampling_strategy == "sequential"


def test_added_tokens_resize_the_model(make_job):
    make_job(tokens=["<new>"], special_tokens={"pad_token": "<padding>"}).run()
    model = transformers.AutoModelForCausalLM.from_pretrained("out")
    size = len(SPECIAL) + len(CHARACTERS) + 2
    assert model.get_input_embeddings().weight.shape[0] == size
    assert len(transformers.AutoTokenizer.from_pretrained("out")) == size


def test_plugin_trains_and_is_recorded(make_job):
    result = make_job(plugins=["grokfast"], grokfast_alpha=0.9).run()
    run = read(result.run_dir)
    assert list(run.series("plugin/grokfast/active").values) == [1.0, 1.0]
    assert "- grokfast (grokfast_filter=ema, grokfast_alpha=0.9" in Path("out/README.md").read_text()


@pytest.mark.filterwarnings("ignore")
def test_plugin_composes_with_a_trl_trainer(make_job):
    write_rows("pairs.jsonl", PAIRS)
    result = make_job(rl="dpo", datasets=[{"path": "pairs.jsonl"}], plugins=["grokfast"]).run()
    assert list(read(result.run_dir).series("plugin/grokfast/active").values) == [1.0, 1.0]


def test_plugin_in_the_working_directory(make_job):
    Path("my_plugin.py").write_text(
        "from pydantic import BaseModel\n"
        "from tachograph.plugins import BasePlugin\n"
        "class Options(BaseModel):\n"
        "    my_rows: int = 4\n"
        "class MyPlugin(BasePlugin):\n"
        "    Options = Options\n"
        "    def load_datasets(self, cfg, preprocess=False):\n"
        "        row = {'input_ids': [5, 6, 7], 'attention_mask': [1, 1, 1], 'labels': [5, 6, 7]}\n"
        "        return [row] * cfg.my_rows, None\n"
        "    def get_training_args(self, cfg):\n"
        "        return {'weight_decay': 0.25}\n"
    )
    job = make_job(plugins=["my_plugin.MyPlugin"], my_rows=6, datasets=None)
    assert job.check().data.num_samples == 6
    assert job.check().arguments.weight_decay == 0.25
    assert job.run().num_steps == 2


def test_failed_training_is_a_failed_run(make_job):
    Path("bad_plugin.py").write_text(
        "from transformers import TrainerCallback\n"
        "from tachograph.plugins import BasePlugin\n"
        "class Fails(TrainerCallback):\n"
        "    def on_step_end(self, args, state, control, **kwargs):\n"
        "        raise RuntimeError('the disk is full')\n"
        "class BadPlugin(BasePlugin):\n"
        "    def add_callbacks_pre_trainer(self, cfg, model):\n"
        "        return [Fails()]\n"
    )
    with pytest.raises(RuntimeError, match="the disk is full"):
        make_job(plugins=["bad_plugin.BadPlugin"], name="fails").run()
    assert read("logs/fails").state == "failed"


def test_model_card_has_the_facts(make_job):
    result = make_job(val_set_size=4, name="greyjacket", swanlab_api_key="secret-key").run()
    card = Path("out/README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    for line in (
        "# greyjacket",
        "Trained from `./model` in full, by SFT.",
        "- `./data.jsonl` (datasets[0], chat_template)",
        "| steps | 2 |",
        f"| eval_loss | {result.metrics['eval_loss']:.6g} |",
        "| learning_rate | 0.001 |",
        f"- transformers {transformers.__version__}",
    ):
        assert line in card.splitlines(), line
    assert "secret-key" not in card
    assert "secret-key" not in (result.run_dir / "metrics.jsonl").read_text()
    assert str(Path.cwd()) not in card


def test_keys_of_trackers_become_sinks(make_job):
    from tachograph.train._run_config import recorded_config

    job = make_job(use_tensorboard=True, wandb_project="p", wandb_mode="offline", telemetry={"sinks": ["prometheus"]})
    section = recorded_config(job.values, job.config)["telemetry"]
    assert section["sinks"] == [
        {"prometheus": {}},
        {"wandb": {"project": "p", "mode": "offline"}},
        {"tensorboard": {}},
    ]
    assert job.check().arguments.report_to == []


def test_tensorboard_files_are_written_once(make_job):
    result = make_job(use_tensorboard=True).run()
    assert len(list(result.run_dir.rglob("events.out.tfevents.*"))) == 1
    assert not list(Path("out").rglob("events.out.tfevents.*"))


def test_plan_trains_nothing(make_job):
    job = make_job(
        adapter="lora",
        lora_target_modules=["q_proj"],
        lora_r=2,
        plugins=["grokfast"],
        sample_packing=True,
        val_set_size=4,
    )
    plan = job.plan()
    rows = dict(plan.rows)
    assert rows["trainer"] == "Trainer"
    assert rows["trained parameters"].startswith("256 (")  # two layers of (32 + 32) * 2
    assert (rows["samples"], rows["packed rows"], rows["evaluation rows"]) == ("12", "3", "4")
    assert rows["steps"] == "2 (2 per epoch)"
    assert plan.plugins["grokfast"][0].startswith("filters the gradients of 4 parameters")
    assert not Path("out").exists() and not Path("logs").exists()


def test_overrides_set_nested_keys(make_job):
    job = make_job("max_steps=3", "datasets.0.path=other.jsonl", "tokens=[a, b]", "trl.beta=1e-2")
    assert job.config.max_steps == 3
    assert job.config.datasets[0].path == "other.jsonl"
    assert job.config.tokens == ["a", "b"]
    assert job.config.trl == {"beta": 0.01}
    assert make_job("save_strategy=no").config.save_strategy == "no"  # YAML reads it as false
    for override, problem in {
        "max_steps": "expected KEY=VALUE",
        "datasets.4.path=x": "datasets is a list of 1, so '4' must be a number below it",
        "max_steps.x=1": "max_steps is 2, which has no keys",
        "tokens=[": "the value is not valid YAML",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            make_job(override)


@pytest.mark.parametrize("kind", ["json", "csv", "parquet", "folder", "saved", "saved splits"])
def test_formats_of_files_have_the_same_rows(make_job, kind):
    import datasets
    import pyarrow
    import pyarrow.parquet

    rows = [{"text": f'a "{number}", b\nc'} for number in range(8)]
    path = Path(f"rows.{kind}")
    if kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "csv":
        import csv

        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, ["text"])
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "folder":
        path.mkdir()
        write_rows(path / "a.jsonl", rows[:4])
        write_rows(path / "b.jsonl", rows[4:])
    elif kind == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(path)
    else:
        datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(path)
    data = make_job(datasets=[{"path": str(path), "type": "completion"}]).check().data
    assert (data.num_samples, data.num_tokens) == (8, 8 * 11)


def test_long_texts_are_split(make_job):
    write_rows("long.jsonl", [{"text": "x" * 150}])
    data = make_job(datasets=[{"path": "long.jsonl", "type": "completion"}]).check().data
    assert data.train.lengths() == [64, 64, 23]


COMMON_CONFIG = """
base_model: ./model
model_type: LlamaForCausalLM
tokenizer_type: AutoTokenizer
is_llama_derived_model: true
hub_model_id:
load_in_8bit: false
load_in_4bit: false
strict: false
chat_template: tokenizer_default
datasets:
  - path: ./data.jsonl
    type: chat_template
    field_messages: messages
    message_property_mappings: {role: role, content: content}
    roles_to_train: [assistant]
    train_on_eos: turn
dataset_prepared_path: last_run_prepared
val_set_size: 0.25
output_dir: ./out
adapter: lora
lora_model_dir:
sequence_len: 64
sample_packing: true
eval_sample_packing: false
pad_to_sequence_len: true
lora_r: 2
lora_alpha: 4
lora_dropout: 0.05
lora_target_linear: true
lora_fan_in_fan_out:
wandb_project:
wandb_entity:
wandb_watch:
wandb_name:
wandb_log_model:
gradient_accumulation_steps: 2
micro_batch_size: 1
num_epochs: 1
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 0.0002
train_on_inputs: false
group_by_length: false
bf16: auto
fp16:
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
early_stopping_patience:
resume_from_checkpoint:
local_rank:
logging_steps: 1
xformers_attention:
flash_attention: false
sdp_attention: true
warmup_ratio: 0.1
evals_per_epoch: 2
eval_table_size:
saves_per_epoch: 1
debug:
deepspeed:
weight_decay: 0.0
fsdp:
fsdp_config:
special_tokens:
  pad_token: "<pad>"
plugins:
  - axolotl.integrations.grokfast.GrokfastPlugin
  - tachograph.integrations.axolotl.TachographPlugin
tachograph_name: greyjacket
tachograph_log_every: 2
grokfast_alpha: 0.9
grokfast_lamb: 0.5
"""


def test_common_config_of_axolotl_runs(workspace):
    Path("axolotl.yaml").write_text(COMMON_CONFIG)
    job = load("axolotl.yaml", [f"telemetry={yaml.safe_dump(BASE['telemetry'], default_flow_style=True).strip()}"])
    assert job.warnings == [
        "is_llama_derived_model has no effect: the architecture is read from the model",
        "dataset_prepared_path has no effect: data is read and checked at each start, and not cached",
        "plugin tachograph.integrations.axolotl.TachographPlugin is not needed: every training is recorded",
    ]
    assert job.config.telemetry["log_every"] == 2
    result = job.run()
    assert result.run == "greyjacket"
    assert math.isfinite(result.metrics["eval_loss"])
    assert Path("out/adapter_model.safetensors").exists()
    assert len(conversations()) == job.check().data.num_samples + len(job.check().data.eval)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, "float32"),
        ({"bf16": True}, "bfloat16"),
        ({"bf16": True, "torch_dtype": "float32"}, "float32"),
        ({"fp16": True, "bf16": False}, "float32"),  # scaling of the loss needs gradients in 32 bits
        ({"fp16": True, "bf16": False, "adapter": "lora", "lora_target_linear": True}, "float16"),
    ],
)
def test_type_of_weights_follows_precision(options, weights):
    from tachograph.train import TrainConfig
    from tachograph.train._model import weights_dtype

    assert weights_dtype(TrainConfig(base_model="model", use_cpu=True, **options)) == weights


def test_bfloat16_trains(make_job):
    result = make_job(bf16=True).run()
    assert math.isfinite(result.metrics["train_loss"])
    assert json.loads(Path("out/config.json").read_text())["dtype"] == "bfloat16"
