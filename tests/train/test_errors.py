"""Broken configs and data: each is found before the model is loaded, with its place and a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tachograph.exceptions import ConfigError
from tests.train.conftest import conversations, make_tokenizer, write_rows

CHAT = {"path": "./data.jsonl", "type": "chat_template"}
ANSWER = {"role": "assistant", "content": "yes"}


def break_line(number, text):
    lines = Path("data.jsonl").read_text().splitlines()
    lines[number - 1] = text
    Path("data.jsonl").write_text("\n".join(lines))


def change_row(number, **columns):
    break_line(number, json.dumps({**conversations()[number - 1], **columns}))


def no_template():
    tokenizer = make_tokenizer(template=None)
    tokenizer.save_pretrained("model")
    Path("model/chat_template.jinja").unlink(missing_ok=True)


CONFIGS = {
    "misspelt key": ({"learning_rat": 1}, "config.yaml: unknown key 'learning_rat'; did you mean 'learning_rate'?"),
    "unsupported key": (
        {"relora_steps": 10},
        "unsupported key 'relora_steps': it changes the trained model, and cannot be ignored: ReLoRA is not supported",
    ),
    "two names": (
        {"model_config": {}, "overrides_of_model_config": {}},
        "overrides_of_model_config and model_config are",
    ),
    "plugin and key": (
        {"plugins": ["axolotl.integrations.expert_parallel.ExpertParallelPlugin"], "qat": {"x": 1}, "lora_rr": 1},
        "use `adapter: qlora` or plain training; plugin 'axolotl.integrations.expert_parallel.ExpertParallelPlugin' "
        "changes the trained model, and has no counterpart here: without it, more rows make a step",
    ),
    "plugin option": ({"grokfast_alpha": 0.9}, "'grokfast_alpha': it is an option of a plugin: add that plugin"),
    "older key": ({"run_name": "x"}, "unknown key 'run_name': it is named 'name'"),
    "wrong value": ({"learning_rate": "fast"}, "learning_rate='fast': input should be a valid number"),
    "nested key": ({"datasets": [{**CHAT, "pth": 1}]}, "unknown key 'pth'; did you mean 'path'?"),
    "no model": ({"base_model": None}, "base_model is missing: give the folder or hub id of a model"),
    "no such model": ({"base_model": "./modle"}, "base_model='./modle': no such folder"),
    "hub offline": ({"base_model": "acme/model"}, "base_model='acme/model': there is no such folder, and it cannot be"),
    "contradiction": ({"warmup_steps": 1, "warmup_ratio": 0.1}, "warmup_steps and warmup_ratio contradict each other"),
    "optimizer": ({"optimizer": "adamw_trch"}, "optimizer='adamw_trch': unknown; did you mean 'adamw_torch'?"),
    "optimizer with 8 bits": ({"optimizer": "adamw8bit"}, "optimizer='adamw8bit': unknown; did you mean 'adamw_8bit'?"),
    "optimizer class": ({"optimizer": "AdamW"}, "optimizer='AdamW': unknown; did you mean 'adamw_torch'?"),
    "rows of a step": (
        {"batch_size": 8, "micro_batch_size": None},
        "batch_size counts the rows of a step. Set micro_batch_size, the rows per device, and gradient_accumulation_",
    ),
    "rows that do not fit": ({"batch_size": 3}, "batch_size=3 must be micro_batch_size × gradient_accumulation_steps"),
    "half a step": ({"warmup_steps": 1.5}, "warmup_steps=1.5: expected a number of steps, or a share below 1"),
    "two precisions": ({"bfloat16": True, "fp16": True}, "bfloat16 contradicts fp16: keep one of them"),
    "no packing apart": ({"pretrain_multipack_attn": False}, "packed samples never see each other"),
    "no experts": (
        {"experts_implementation": "batched_mm"},
        "LlamaForCausalLM has no experts whose implementation can be",
    ),
    "experts of a plugin": ({"experts_implementation": "scattermoe"}, "add the plugin kernels to `plugins`"),
    "quantisation": (
        {"model_quantization_config": "Mxfp4Confg"},
        "model_quantization_config='Mxfp4Confg': transformers has no such quantisation; did you mean 'Mxfp4Config'?",
    ),
    "quantisation twice": (
        {"model_quantization_config": "Mxfp4Config", "adapter": "qlora", "lora_target_linear": True},
        "model_quantization_config and adapter: qlora contradict each other",
    ),
    "template with rl": (
        {"rl": "dpo", "chat_template_kwargs": {"a": 1}},
        "chat_template_kwargs cannot be used with rl",
    ),
    "key of a format": (
        {"datasets": [{**CHAT, "type": {"field_inst": "x"}}]},
        "config.yaml: datasets.0.type={'field_inst': 'x'}: unknown key 'field_inst'; did you mean 'field_input'?",
    ),
    "key of a plugin's section": (
        {"plugins": ["diffusion"], "diffusion": {"nois_schedule": "linear"}},
        "config.yaml: unknown key 'diffusion.nois_schedule'; did you mean 'noise_schedule'?",
    ),
    "optimizer package": (
        {"optimizer": "paged_adamw_8bit"},
        "optimizer: paged_adamw_8bit needs bitsandbytes, which is not installed: pip install 'bitsandbytes'. Or use",
    ),
    "template": (
        {"chat_template": "llama33"},
        "chat_template='llama33': expected one of tokenizer_default, jinja, tokenizer_default_fallback_NAME, alpaca,",
    ),
    "logprobs": (
        {"sample_packing": True, "datasets": [{**CHAT, "logprobs_field": "x"}]},
        "datasets[0].logprobs_field cannot be used with sample_packing",
    ),
    "logprobs column": (
        {"datasets": [{**CHAT, "logprobs_field": "mesages"}]},
        "data.jsonl, line 1: column 'mesages' is missing (columns: messages); did you mean 'messages'?",
    ),
    "missing file of options": (
        {"fsdp": True, "fsdp_config": "./fsdp.json"},
        "No such file or directory: './fsdp.json'",
    ),
    "batch of completions": (
        {"rl": "grpo", "trl": {"reward_funcs": ["rewards.one"], "num_generations": 3}},
        "the training arguments are rejected: ",
    ),
    "lora without targets": ({"adapter": "lora"}, "adapter: lora needs to know its modules: set `lora_target_linear"),
    "lora targets": (
        {"adapter": "lora", "lora_target_modules": ["w1"]},
        "The linear modules of this model are down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj",
    ),
    "unknown adapter": ({"adapter": "loraa"}, "adapter='loraa': expected lora or qlora"),
    "qlora": (
        {"adapter": "qlora", "lora_target_linear": True},
        "adapter: qlora needs bitsandbytes, which is not installed: pip install 'bitsandbytes'",
    ),
    "fp16": ({"fp16": True, "bf16": False}, "fp16: true needs a GPU, and there is none: use `bf16: auto`"),
    "unfrozen": ({"unfrozen_parameters": ["lm_haed.*"]}, "'lm_haed.*' matches no parameter; did you mean"),
    "model override": (
        {"overrides_of_model_config": {"rope_thetaa": 1}},
        "overrides_of_model_config: llama has no 'rope_thetaa'",
    ),
    "output": ({"output_dir": "./data.jsonl"}, "output_dir='./data.jsonl' is a file: choose another folder"),
    "read-only output": ({"output_dir": "/proc/out"}, "output_dir='/proc/out' cannot be written: "),
    "output in a file": ({"output_dir": "./data.jsonl/x"}, "output_dir='./data.jsonl/x' cannot be written: Not a dir"),
    "long output": ({"output_dir": "./" + "x" * 300}, "cannot be written: File name too long"),
    "resume": ({"resume_from_checkpoint": "./old"}, "resume_from_checkpoint='./old': no such folder"),
    "resume last": ({"resume_from_checkpoint": True}, "resume_from_checkpoint: true, but './out' has no checkpoint"),
    "telemetry": ({"telemetry": {"log_evry": 1}}, "unknown key telemetry.log_evry; did you mean 'log_every'?"),
    "sink": ({"telemetry": {"sinks": ["wandbb"]}}, "telemetry.sinks: unknown sink 'wandbb'; did you mean 'wandb'?"),
    "swanlab": ({"use_swanlab": True}, "use_swanlab is true, but swanlab_project is missing"),
    "lark": ({"swanlab_lark_secret": "x"}, "swanlab_lark_secret has no effect without swanlab_lark_webhook_url"),
    "plugin class": (
        {"plugins": ["axolotl.integrations.grokfast.GrokfstPlugin"]},
        "unknown plugin 'axolotl.integrations.grokfast.GrokfstPlugin'; did you mean 'axolotl.integrations.grokfast.",
    ),
    "plugin folder": (
        {"plugins": ["axolotl.integrations.grokfst.GrokfastPlugin"]},
        "unknown plugin 'axolotl.integrations.grokfst.GrokfastPlugin'; did you mean 'grokfast'?",
    ),
    "plugin": ({"plugins": ["grokfst"]}, "unknown plugin 'grokfst'; did you mean 'grokfast'?"),
    "no datasets": ({"datasets": []}, "datasets is missing: add `datasets: [{path: data.jsonl, type: chat_template}]`"),
    "no such file": (
        {"datasets": [{**CHAT, "path": "./dat.jsonl"}]},
        "datasets[0].path='./dat.jsonl': no such file or folder; did you mean 'data.jsonl'?",
    ),
    "hub dataset offline": (
        {"datasets": [{**CHAT, "path": "acme/rows"}]},
        "datasets[0].path='acme/rows': there is no such folder, and the dataset cannot be loaded from the Hugging Face",
    ),
    "split of a file": ({"datasets": [{**CHAT, "split": "test"}]}, "datasets[0].split='test': a file has no splits"),
    "address": ({"datasets": [{**CHAT, "path": "s3://a/b.jsonl"}]}, "addresses cannot be read; download the file"),
    "no type": ({"datasets": [{"path": "data.jsonl"}]}, "datasets[0].type is missing: expected one of alpaca, chat_"),
    "foreign key of a dataset": (
        {"datasets": [{**CHAT, "train_on_eot": "turn", "pth": 1}]},
        "unsupported key 'train_on_eot': use train_on_eos, which is about every token that ends a message",
    ),
    "foreign type": (
        {"datasets": [{**CHAT, "type": "jeopardy"}]},
        "type='jeopardy': unknown format. Available: alpaca",
    ),
    "unknown type": ({"datasets": [{**CHAT, "type": "alpacca"}]}, "unknown format; did you mean 'alpaca'?"),
    "sharegpt": ({"datasets": [{**CHAT, "type": "sharegpt"}]}, "use `chat_template` with `field_messages: conversat"),
    "rl format": ({"datasets": [{**CHAT, "type": "chatml.intel"}]}, "it is a format of preference data; set `rl: dpo`"),
    "wrong column": (
        {"datasets": [{**CHAT, "field_messages": "turns"}]},
        "data.jsonl, line 1: column 'turns' is missing (columns: messages); name it with `field_messages`",
    ),
    "large batch": ({"micro_batch_size": 20}, "the data has 16 rows, but a batch needs 20 (micro_batch_size 20 on 1"),
    "all too long": (
        {"sequence_len": 4},
        "no row is left (dropped 16 of 16 rows, which are longer than sequence_len=4",
    ),
    "too long": (
        {"sequence_len": 13, "excess_length_strategy": "raise"},
        "data.jsonl, line 10: 14 tokens are more than sequence_len=13: raise it, or set excess_length_strategy",
    ),
    "validation": ({"val_set_size": 16}, "val_set_size=16 leaves 16 of 16 rows for evaluation"),
    "trl without rl": ({"trl": {"beta": 1}}, "the section trl has no effect without `rl`"),
    "rewards": ({"rl": "grpo"}, "trl.reward_funcs is missing: name a function"),
    "reward import": (
        {"rl": "grpo", "trl": {"reward_funcs": ["nothing.here"]}},
        "trl.reward_funcs[0]: cannot import 'nothing.here': ModuleNotFoundError: No module named 'nothing'",
    ),
    "reward signature": (
        {"rl": "grpo", "trl": {"reward_funcs": ["os.path.join"]}},
        "trl.reward_funcs[0]='os.path.join': it must take `completions` and **kwargs",
    ),
    "trl option": (
        {"rl": "grpo", "trl": {"reward_funcs": ["rewards.one"], "num_generation": 2}},
        "trl: the trainer of rl: grpo has no option 'num_generation'; did you mean 'num_generations'?",
    ),
}


def prepare_rewards():
    Path("rewards.py").write_text("def one(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    write_rows("prompts.jsonl", [{"prompt": f"add {number}"} for number in range(8)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("changes", "message"), CONFIGS.values(), ids=CONFIGS)
def test_broken_config_names_key_and_remedy(make_job, changes, message):
    prepare_rewards()
    if changes.get("rl") == "grpo":
        changes = {"datasets": [{"path": "prompts.jsonl"}], **changes}
    with pytest.raises(ConfigError) as caught:
        make_job(**changes).check()
    assert str(caught.value).startswith("config.yaml: ") or "plugin" in message
    assert message in str(caught.value)
    assert not Path("out").exists()


DATA = {
    "invalid JSON": (lambda: break_line(3, '{"messages": ['), "data.jsonl, line 3, column 15: invalid JSON: Expecting"),
    "no object": (lambda: break_line(3, "[1, 2]"), "data.jsonl, line 3: expected a JSON object, got a list"),
    "no messages": (
        lambda: change_row(2, messages=[]),
        "data.jsonl, line 2: column 'messages': expected a list of mes",
    ),
    "unknown role": (
        lambda: change_row(4, messages=[{"role": "asistant", "content": "x"}]),
        "data.jsonl, line 4: column 'messages', message 1: unknown role 'asistant'; did you mean 'assistant'?",
    ),
    "number": (
        lambda: change_row(2, messages=[{"role": "assistant", "content": 3}]),
        "data.jsonl, line 2: column 'messages', message 1: 'content' must be a text, got int",
    ),
    "sharegpt": (
        lambda: change_row(2, messages=[{"from": "human", "value": "x"}]),
        "'role' is missing (it has from, value); set `message_property_mappings: {role: from, content: value}`",
    ),
    "no answer": (
        lambda: change_row(5, messages=[{"role": "user", "content": "x"}]),
        "data.jsonl, line 5: no message is trained on: the roles are user, and roles_to_train is ['assistant']",
    ),
    "empty file": (
        lambda: Path("data.jsonl").write_text("\n"),
        "datasets[0].path='./data.jsonl': the dataset is empty",
    ),
    "not text": (lambda: Path("data.jsonl").write_bytes(b"\xff\xfe\x00"), "data.jsonl: the file is not UTF-8 text"),
    "no template": (no_template, "datasets[0]: the tokenizer has no chat template: set `chat_template` to a name"),
}


@pytest.mark.parametrize(("prepare", "message"), DATA.values(), ids=DATA)
def test_broken_data_names_file_and_line(make_job, prepare, message):
    prepare()
    with pytest.raises(ConfigError) as caught:
        make_job().check()
    assert message in str(caught.value)


def test_several_problems_are_named_at_once(make_job):
    break_line(3, "{")
    change_row(4, messages=[{"role": "robot", "content": "x"}])
    with pytest.raises(ConfigError) as caught:
        make_job(output_dir="./data.jsonl", telemetry={"log_evry": 1}).check()
    lines = str(caught.value).splitlines()
    assert lines[0] == "config.yaml: 4 problems"
    assert [line.split()[0] for line in lines[1:]] == ["-"] * 4


def test_checkpoint_at_the_end_of_the_training_is_an_error(make_job):
    for number, last_step in ((2, 2), (4, 4)):
        checkpoint = Path(f"out/checkpoint-{number}")
        checkpoint.mkdir(parents=True)
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": last_step}))
    for options, steps in (
        ({"resume_from_checkpoint": "./out/checkpoint-4", "max_steps": 3}, "step 4, and the training has 3 steps"),
        ({"resume_from_checkpoint": True, "max_steps": 4}, "step 4, and the training has 4 steps"),
        ({"auto_resume_from_checkpoints": True, "max_steps": None, "num_epochs": 0.5}, "the training has 4 steps"),
    ):
        with pytest.raises(ConfigError, match=f"is at .*{steps}: raise max_steps"):
            make_job(**options).check()
    assert make_job(resume_from_checkpoint=True, max_steps=5).check().checkpoint == "./out/checkpoint-4"


def test_at_most_ten_problems_are_named(make_job):
    Path("data.jsonl").write_text("{\n" * 50)
    with pytest.raises(ConfigError, match="at least 10 problems") as caught:
        make_job().check()
    assert len(str(caught.value).splitlines()) == 11


def test_token_beyond_the_vocabulary_names_the_row(make_job):
    config = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps({**config, "vocab_size": 60}))
    change_row(3, messages=[{"role": "user", "content": "~"}, ANSWER])
    with pytest.raises(
        ConfigError, match=r"data.jsonl, line 3: token \d+ is beyond the vocabulary of the model, which"
    ):
        make_job().check()


def test_row_longer_than_the_positions_of_the_model(make_job):
    change_row(3, messages=[{"role": "user", "content": "x" * 300}, ANSWER])
    with pytest.raises(
        ConfigError, match=r"line 3: 307 tokens are more than the model's 256 positions: set `sequence_len"
    ):
        make_job(sequence_len=512).check()


def test_long_rows_are_counted(make_job):
    change_row(3, messages=[{"role": "user", "content": "x" * 100}, ANSWER])
    (note,) = make_job().check().data.notes
    assert note == (
        "datasets[0]: dropped 1 of 16 rows, which are longer than sequence_len=64; the first is "
        "data.jsonl, line 3 (107 tokens)"
    )
    data = make_job(excess_length_strategy="truncate").check().data
    assert len(data.train) == 15
    assert "dropped 1 rows, because none of their tokens is trained on" in data.notes[1]


def test_remote_code_is_not_executed(make_job):
    config = json.loads(Path("model/config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"}}
    Path("model/config.json").write_text(json.dumps(config))
    Path("model/mine.py").write_text("open('executed', 'w')\n")
    with pytest.raises(
        ConfigError, match="brings code of its own, which is not executed: read it, then set `trust_rem"
    ):
        make_job().check()
    assert not Path("executed").exists()


def test_keys_without_effect_are_named(make_job):
    job = make_job(dataset_prepared_path="cache", strict=False, xformers_attention=None, s2_attention=False)
    assert job.warnings == [
        "dataset_prepared_path has no effect: data is read and checked at each start, and not cached"
    ]
