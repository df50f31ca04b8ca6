"""The plugin for Axolotl, in real trainings of a tiny model on the CPU. See docs/axolotl.md for how to run it.

Skipped unless Axolotl is installed: it pins its dependencies, so it needs an environment of its own.
"""

from __future__ import annotations

import importlib.util
import json
import logging

import pytest
import yaml

from tachograph.exceptions import ConfigError
from tests.conftest import HANG_S, lines_of

pytestmark = [
    pytest.mark.xdist_group("axolotl"),
    pytest.mark.filterwarnings("ignore"),  # Axolotl and what it pins have many
    pytest.mark.skipif(
        importlib.util.find_spec("axolotl") is None, reason="Axolotl is not installed: see docs/axolotl.md"
    ),
]

PLUGIN = "tachograph.integrations.axolotl.TachographPlugin"
SWANLAB = "axolotl.integrations.swanlab.SwanLabPlugin"
SECRET = "hunter2-hunter2"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a tiny model and a tokenizer of single characters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    words = ["<s>", "</s>", "<pad>", "<unk>", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    LlamaForCausalLM(
        LlamaConfig(vocab_size=len(words), max_position_embeddings=128, **shape, **special)
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def config(tmp_path, model, monkeypatch):
    """The config of a training of four steps."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "AXOLOTL_DO_NOT_TRACK", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "swanlab-root"))
    monkeypatch.chdir(tmp_path)
    samples = [{"text": f"the grey jacket number {number} is warm"} for number in range(16)]
    pairs = [{"prompt": f"jacket {number}", "chosen": " warm", "rejected": " cold"} for number in range(16)]
    for name, rows in (("samples", samples), ("pairs", pairs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "base_model": str(model),
        "tokenizer_type": "AutoTokenizer",
        "plugins": [PLUGIN],
        "datasets": [{"path": "samples.jsonl", "ds_type": "json", "type": "completion", "field": "text"}],
        "dataset_prepared_path": str(model.parent / "prepared"),
        "dataset_num_proc": 1,
        "output_dir": str(tmp_path / "jackets"),
        "sequence_len": 64,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "num_epochs": 1,
        "max_steps": 4,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "optimizer": "adamw_torch",
        "lr_scheduler": "constant",
        "bf16": False,
        "tf32": False,
        "attn_implementation": "eager",
        "val_set_size": 0,
        "tachograph_system_interval_s": 0,
        "tachograph_console": False,
        "tachograph_git": False,
    }


@pytest.fixture(autouse=True)
def forget_plugins():
    """Axolotl keeps plugins for all configs of a process."""
    yield
    from axolotl.integrations.base import PluginManager

    from tachograph.integrations.axolotl import TachographPlugin

    PluginManager.get_instance().plugins.clear()
    TachographPlugin._training = None


def load(config):
    from axolotl.cli.config import load_cfg

    path = "axolotl.yaml"
    with open(path, "w") as file:
        yaml.safe_dump(config, file)
    return load_cfg(path)


def train(config):
    """Train as `axolotl train` does in each of its processes."""
    from axolotl.cli.args import TrainerCliArgs
    from axolotl.cli.train import do_train

    do_train(load(config), TrainerCliArgs())


def of_kind(records, *events):
    return [record for record in records if record["event"] in events]


def status(folder):
    return lines_of(folder)[-1]["status"]


def span_names(records):
    return [record["name"] for record in of_kind(records, "span", "span_start")]


def test_training_is_recorded_with_config_and_spans(config, logs, tmp_path):
    options = {"tachograph_log_dir": str(logs), "tachograph_tags": ["baseline"]}
    swanlab = {"use_swanlab": False, "swanlab_project": "jackets", "swanlab_api_key": SECRET}
    train({**config, **options, **swanlab})
    records = lines_of(logs / "jackets")
    (start,) = of_kind(records, "start")
    assert start["tags"] == ["baseline"]
    assert start["axolotl_version"] and start["sequence_len"] == 64 and start["max_steps"] == 4
    assert start["config"]["base_model"] == config["base_model"]
    assert start["config"]["telemetry"]["log_dir"] == str(logs)
    assert start["config"]["training_arguments"]["max_steps"] == 4
    assert "swanlab_api_key" in start["config"] and SECRET not in (logs / "jackets" / "metrics.jsonl").read_text()
    steps = [record for record in of_kind(records, "step") if "train_loss" in record]
    assert [record["global_step"] for record in steps] == [1, 2, 3, 4]
    names = span_names(records)
    for name in ("application", "data_loader_initialization", "training_loop", "checkpoint_save_sync", "model_save"):
        assert name in names
    assert names.count("model_initialization") == 1
    assert records[-1]["event"] == "end" and records[-1]["status"] == "finished"

    # Another training resumes from a checkpoint, and continues the run.
    train({**config, **options, "max_steps": 6, "resume_from_checkpoint": str(tmp_path / "jackets" / "checkpoint-4")})
    assert [folder.name for folder in logs.iterdir()] == ["jackets"]
    records = lines_of(logs / "jackets")
    steps = [record for record in of_kind(records, "step") if "train_loss" in record]
    assert [record["global_step"] for record in steps] == [1, 2, 3, 4, 5, 6]
    assert [record["status"] for record in of_kind(records, "end")] == ["finished", "finished"]


def test_dpo_records_samples_and_two_models_once(config, logs):
    pairs = {"field_prompt": "prompt", "field_chosen": "chosen", "field_rejected": "rejected"}
    formats = {"prompt_format": "{prompt}", "chosen_format": "{chosen}", "rejected_format": "{rejected}"}
    dataset = {"path": "pairs.jsonl", "ds_type": "json", "split": "train", "type": {**pairs, **formats}}
    options = {"tachograph_log_dir": str(logs), "tachograph_name": "pairs", "tachograph_completions_every": 1}
    train({**config, **options, "rl": "dpo", "datasets": [dataset]})
    records = lines_of(logs / "pairs")
    (start,) = of_kind(records, "start")
    assert start["rl"] == "dpo"
    assert span_names(records).count("model_initialization") == 2, "the model, and the reference model"
    rows = [row for record in of_kind(records, "completions") for row in record["rows"]]
    assert rows and all(row["prompt"].startswith("j a c k e t") and "w a r m" in row["chosen"] for row in rows)
    assert records[-1]["status"] == "finished"


def test_swanlab_options_send_run_to_swanlab(config, logs, tmp_path):
    pytest.importorskip("swanlab")
    swanlab = {"swanlab_project": "jackets", "swanlab_mode": "offline", "swanlab_completion_log_interval": 7}
    train({**config, **swanlab, "tachograph_log_dir": str(logs)})
    assert list(tmp_path.rglob("*.swanlab"))
    assert status(logs / "jackets") == "finished"


def test_swanlab_is_left_to_axolotls_own_plugin(config, caplog):
    from tachograph.integrations.axolotl._options import run_config

    options = {"plugins": [SWANLAB, PLUGIN], "swanlab_project": "jackets", "swanlab_mode": "disabled"}
    with caplog.at_level(logging.WARNING, logger="tachograph"):
        cfg = load({**config, **options})
    assert [record.message for record in caplog.records if "leaves the swanlab_" in record.message]
    assert cfg.swanlab_project == "jackets"
    assert cfg.use_swanlab is True, "the default of their class"
    values = run_config(cfg)
    assert "swanlab_project" not in values
    assert values["swanlab"]["swanlab_project"] == "jackets"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"tachograph_log_evry": 5}, "unknown key 'tachograph_log_evry'.*did you mean 'tachograph_log_every'"),
        ({"tachograph_log_every": 0}, "tachograph_log_every: expected `int` >= 1, got 0"),
        ({"swanlab_mode": "clod", "swanlab_project": "x"}, "swanlab_mode='clod': expected one of"),
    ],
)
def test_invalid_options_raise_before_loading(config, option, message):
    with pytest.raises(ConfigError, match=message):
        load({**config, **option})


def test_merged_config_class_checks_and_keeps_options(config):
    """Without `register`: a worker of Ray validates again what the driver has validated."""
    from axolotl.integrations.base import PluginManager
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    PluginManager.get_instance().register(PLUGIN)
    cfg = validate_config(DictDefault({**config, "tachograph_name": "grey", "swanlab_project": "jackets"}))
    assert (cfg.tachograph_name, cfg.swanlab_project) == ("grey", "jackets")
    with pytest.raises(ValueError, match="did you mean 'tachograph_sinks'"):
        validate_config(DictDefault({**config, "tachograph_sink": ["wandb"]}))


def test_training_that_raises_is_failed_and_next_one_is_new(config, logs, monkeypatch):
    from axolotl.cli.args import TrainerCliArgs
    from axolotl.cli.train import do_train
    from axolotl.core.trainers.base import AxolotlTrainer
    from axolotl.integrations.base import PluginManager

    original = AxolotlTrainer.training_step

    def training_step(trainer, *arguments, **named):
        if trainer.state.global_step == 2:
            raise ValueError("from a step")
        return original(trainer, *arguments, **named)

    monkeypatch.setattr(AxolotlTrainer, "training_step", training_step)
    options = {**config, "tachograph_log_dir": str(logs)}
    cfg = load({**options, "tachograph_name": "unloaded"})
    with pytest.raises(ValueError, match="from a step"):
        try:
            do_train(cfg, TrainerCliArgs())
        finally:  # as Axolotl does from version 0.20 on
            PluginManager.get_instance().post_train_unload(cfg)
    error = of_kind(lines_of(logs / "unloaded"), "error")[-1]
    assert (error["error_type"], error["error_message"]) == ("ValueError", "from a step")
    assert status(logs / "unloaded") == "failed"

    with pytest.raises(ValueError, match="from a step"):
        train({**options, "tachograph_name": "not-unloaded"})
    monkeypatch.setattr(AxolotlTrainer, "training_step", original)
    train({**options, "tachograph_name": "next"})
    assert status(logs / "not-unloaded") == "failed"
    assert status(logs / "next") == "finished"


def test_disabled_and_unlisted_plugin_records_nothing(config, logs):
    options = {"tachograph_log_dir": str(logs)}
    train({**config, **options, "tachograph_enabled": False})
    assert not logs.exists()
    load({**config, **options})  # registers the plugin for the rest of the process
    train({**config, "plugins": []})
    assert not logs.exists()


def test_usage_stands_in_for_axolotls_telemetry(config, tmp_path, monkeypatch):
    from axolotl import telemetry
    from axolotl.cli import config as axolotl_config

    from tachograph.usage import TelemetryManager, UsageConfig, read_organizations
    from tachograph.usage._folder import app_folder
    from tachograph.usage._spool import read_events

    monkeypatch.setenv("TACHO_USAGE_DIR", str(tmp_path / "usage"))
    monkeypatch.setattr(axolotl_config, "TELEMETRY_MANAGER", TelemetryManager.get_instance())  # before `configure`
    whitelist = f"{telemetry.__path__[0]}/whitelist.yaml"
    usage = UsageConfig(
        app="axolotl", organizations=read_organizations(whitelist), config_map={"sequence_length": "sequence_len"}
    )
    assert "qwen" in usage.organizations
    manager = TelemetryManager.configure(usage, choice="local")
    try:
        load(config)
        manager.shutdown(HANG_S)
        events = [kept.event for kept in read_events(app_folder("axolotl"))]
    finally:
        TelemetryManager.reset()
    assert [event["event"] for event in events] == ["config-loaded", "system-info", "config-processed"]
    assert events[0]["properties"] == events[2]["properties"] == {"sequence_length": 64}
