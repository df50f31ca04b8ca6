"""Settings and config: wrong ones are refused at once, by name and with the remedy."""

from __future__ import annotations

import argparse
import re

import pytest

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tachograph.recorder._facts import config_facts, samples_per_step
from tachograph.settings import Settings, resolve_settings, settings_table


def test_precedence_of_sources(monkeypatch):
    assert resolve_settings({}).log_every == 1
    assert resolve_settings({}, {"log_every": 2}).log_every == 2
    monkeypatch.setenv("TACHO_LOG_EVERY", "3")
    assert resolve_settings({}, {"log_every": 2}).log_every == 3
    assert resolve_settings({"log_every": 4}, {"log_every": 2}).log_every == 4
    assert resolve_settings({"log_every": None}, {"log_every": 2}).log_every == 3


@pytest.mark.parametrize(
    ("text", "value"), [("0", False), ("false", False), ("off", False), ("1", True), ("Yes", True)]
)
def test_switches_in_environment(monkeypatch, text, value):
    monkeypatch.setenv("TACHO_ENABLED", text)
    assert resolve_settings({}).enabled is value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log_evry": 5}, "unknown setting log_evry; did you mean 'log_every'?"),
        ({"log_every": 0}, "log_every: expected `int` >= 1, got 0"),
        ({"log_every": "often"}, "log_every: expected `int`, got 'often'"),
        ({"log_every": True}, "log_every: expected `int`, got True"),
        ({"log_dir": ""}, "log_dir: expected `str` of length >= 1, got ''"),
        ({"flush_interval_s": 30}, "flush_interval_s: expected `float` <= 1.0, got 30"),
        ({"enabled": "perhaps"}, "enabled: expected `bool`, got 'perhaps'"),
    ],
)
def test_invalid_settings(arguments, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        tachograph.init("x", **arguments)


def test_invalid_environment_variable_is_named(monkeypatch):
    monkeypatch.setenv("TACHO_LOG_EVERY", "soon")
    with pytest.raises(ConfigError, match="environment variable TACHO_LOG_EVERY"):
        tachograph.init("x")


def test_table_lists_every_setting():
    rows = settings_table()
    assert [row.name for row in rows] == list(Settings.__struct_fields__)
    assert all(row.doc.endswith(".") and row.env == f"TACHO_{row.name.upper()}" for row in rows)


SEED = """
telemetry:
  enabled: true
  log_dir: "{log_dir}"
  tensorboard: false  # Optional
  wandb: false       # Optional
job: extension
config:
  name: greyjacket
  process:
    - type: sd_trainer
      network: {{type: lora, linear: 16, linear_alpha: 8, conv: 4, network_kwargs: {{only_if_contains: [attn]}}}}
      train: {{batch_size: 2, gradient_accumulation_steps: 4, steps: 500, lr: 1e-4, optimizer: adamw8bit, dtype: bf16}}
      model: {{name_or_path: black-forest-labs/FLUX.1-dev, is_flux: true, quantize: true}}
      hf_token: secret-of-mine
"""


def test_config_file_configures_run(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(SEED.format(log_dir=tmp_path / "logs"))
    with tachograph.init_from_config(path) as run:
        run.log(train_loss=0.5, step=1)
    history = read(tmp_path / "logs" / "greyjacket")
    start = history.attempts[0].start
    facts = {
        "run_name": "greyjacket", "process_type": "sd_trainer", "lora_type": "lora", "lora_rank": 16, "lora_alpha": 8,
        "lora_conv_rank": 4, "lora_target_modules": ["attn"], "batch_size": 2, "gradient_accumulation_steps": 4,
        "effective_batch_size": 8, "max_steps": 500, "optimizer": "adamw8bit", "dtype": "bf16", "is_flux": True,
        "quantize": True, "model_name_or_path": "black-forest-labs/FLUX.1-dev",
    }  # fmt: skip
    assert {name: start.get(name) for name in facts} == facts
    assert "secret-of-mine" not in (tmp_path / "logs" / "greyjacket" / "metrics.jsonl").read_text()


def test_config_dict_without_telemetry_section(tmp_path):
    with tachograph.init_from_config({"name": "x", "lr": 0.1}, log_dir=str(tmp_path)) as run:
        assert run.name == "x"


def test_disabled_section(tmp_path):
    with tachograph.init_from_config({"telemetry": {"enabled": False, "log_dir": str(tmp_path / "no")}}) as run:
        assert not run.enabled
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"logdir": "x"}, "unknown key telemetry.logdir; did you mean 'log_dir'?"),
        ({"tensorbord": True}, "unknown key telemetry.tensorbord; did you mean 'tensorboard'?"),
        ({"log_every": "x"}, "telemetry.log_every: expected `int`"),
        ({"wandb": "perhaps"}, "telemetry.wandb: expected `bool`"),
        ([1], "telemetry: expected a section such as"),
        ("yes", "telemetry: expected a section such as"),
    ],
)
def test_invalid_sections(section, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        tachograph.init_from_config({"telemetry": section})


def test_unreadable_config_files(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        tachograph.init_from_config(tmp_path / "nothing.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        tachograph.init_from_config(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="must hold a mapping at its top level"):
        tachograph.init_from_config(tmp_path / "list.yaml")
    (tmp_path / "code.yaml").write_text("a: !!python/object/apply:os.system ['touch /tmp/owned']")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        tachograph.init_from_config(tmp_path / "code.yaml")


def test_config_types(tmp_path):
    for number, config in enumerate([argparse.Namespace(lr=0.1, max_steps=5), {"lr": 0.1, "max_steps": 5}]):
        with tachograph.init(f"run{number}", config=config, log_dir=str(tmp_path)):
            pass
        start = read(tmp_path / f"run{number}").attempts[0].start
        assert start["config"] == {"lr": 0.1, "max_steps": 5}
        assert start["max_steps"] == 5
    with pytest.raises(ConfigError, match="a dict, a dataclass or a namespace"):
        tachograph.init("x", config="lr=0.1", log_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="expected a list of words"):
        tachograph.init("x", tags="demo", log_dir=str(tmp_path))


def test_config_value_that_cannot_be_stored_is_dropped(tmp_path):
    with tachograph.init("x", config={"lr": 0.1, "hook": open}, log_dir=str(tmp_path)):
        pass
    history = read(tmp_path / "x")
    assert history.config == {"lr": 0.1}
    assert history.latest("telemetry_error")[0]["field"] == "config.hook"


def test_missing_facts_are_not_guessed():
    assert config_facts({}) == {}
    assert samples_per_step({}) is None
    assert samples_per_step({"effective_batch_size": 8}) == 8.0


# Sinks ---------------------------------------------------------------------------------------------------------------

WANDB = {"wandb": {"project": "demo"}}


@pytest.mark.parametrize(
    ("value", "sinks"),
    [
        (["tensorboard", WANDB], {"tensorboard": {}, "wandb": {"project": "demo"}}),
        ([{"tensorboard": None}], {"tensorboard": {}}),
        (("tensorboard",), {"tensorboard": {}}),
        ([], {}),
        ("tensorboard, wandb", {"tensorboard": {}, "wandb": {}}),
        ('["tensorboard", {"wandb": {"project": "demo"}}]', {"tensorboard": {}, "wandb": {"project": "demo"}}),
    ],
)
def test_forms_of_the_list_of_sinks(monkeypatch, value, sinks):
    assert resolve_settings({"sinks": value}).sinks == sinks
    assert resolve_settings({}, {"sinks": value}).sinks == sinks
    if isinstance(value, str):
        monkeypatch.setenv("TACHO_SINKS", value)
        assert resolve_settings({}).sinks == sinks


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "sinks: expected a list such as"),
        ({"wandb": {"key": "canary"}}, "got dict"),
        ([7], "got an entry of type int"),
        ([{}], "got an entry of type dict"),
        ([{"wandb": "canary"}], "got an entry of type dict"),
        ([{"wandb": None, "project": "canary"}], "(wandb, project): indent the options of a sink"),
        ([{"wandb": {1: "canary"}}], "sinks: option names of 'wandb' must be strings"),
        (["wandb", WANDB], "sinks: the sink 'wandb' is listed twice"),
        ('[{"wandb": {"key": "canary"}', "got invalid JSON"),
    ],
)
def test_invalid_list_of_sinks_is_rejected(value, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        resolve_settings({"sinks": value})
    assert "canary" not in str(error.value)


def test_invalid_sinks_in_environment_name_the_variable(monkeypatch):
    monkeypatch.setenv("TACHO_SINKS", "[7]")
    with pytest.raises(ConfigError, match="environment variable TACHO_SINKS: expected a list such as"):
        resolve_settings({})


def test_list_of_sinks_from_stronger_source_replaces_weaker_one(monkeypatch):
    section = {"sinks": ["tensorboard"]}
    monkeypatch.setenv("TACHO_SINKS", "wandb")
    assert list(resolve_settings({}, section).sinks) == ["wandb"]
    assert list(resolve_settings({"sinks": ["tensorboard", "wandb"]}, section).sinks) == ["tensorboard", "wandb"]


def test_switch_adds_sink_and_keeps_options():
    assert resolve_settings({"tensorboard": True}).sinks == {"tensorboard": {}}
    assert resolve_settings({"tensorboard": True, "sinks": [WANDB]}).sinks == {**WANDB, "tensorboard": {}}
    assert resolve_settings({"wandb": True, "sinks": [WANDB]}).sinks == WANDB


def test_switch_of_same_or_stronger_source_removes_sink(monkeypatch):
    section = {"sinks": ["tensorboard", "wandb"]}
    assert list(resolve_settings({}, {**section, "wandb": False}).sinks) == ["tensorboard"]
    assert list(resolve_settings({"wandb": False}, section).sinks) == ["tensorboard"]
    monkeypatch.setenv("TACHO_WANDB", "0")
    assert list(resolve_settings({}, section).sinks) == ["tensorboard"]


def test_switch_of_weaker_source_is_ignored(monkeypatch):
    monkeypatch.setenv("TACHO_SINKS", "wandb")
    assert list(resolve_settings({}, {"wandb": False, "tensorboard": True}).sinks) == ["wandb"]
    assert resolve_settings({"sinks": []}, {"tensorboard": True}).sinks == {}
