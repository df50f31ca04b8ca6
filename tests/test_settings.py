"""Settings and config: wrong ones are refused at once, by name and with the remedy."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

import pytest

import tachograph
from tachograph._base.config import find_section
from tachograph._base.settings import Settings, read_config, resolve_settings, settings_table
from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tachograph.recorder._facts import config_facts, samples_per_step


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
        "quantize": True, "model_name_or_path": "black-forest-labs/FLUX.1-dev", "learning_rate": 1e-4,
    }  # fmt: skip
    assert {name: start.get(name) for name in facts} == facts
    assert "secret-of-mine" not in (tmp_path / "logs" / "greyjacket" / "metrics.jsonl").read_text()


def nested(path: str, section: Any, **job: Any) -> dict[str, Any]:
    """Return a config with a section at one of the places where a trainer may have it."""
    if path == "telemetry":
        return {"name": "greyjacket", "telemetry": section, **job}
    config = {"name": "greyjacket", "process": [{"type": "sd_trainer", "telemetry": section, **job}]}
    return {"config": config} if path.startswith("config") else config


@pytest.mark.parametrize("path", ["telemetry", "process[0].telemetry", "config.process[0].telemetry"])
@pytest.mark.parametrize("given_as", ["file", "config", "argument"])
def test_section_is_found_where_trainers_nest_it(tmp_path, monkeypatch, path, given_as):
    monkeypatch.chdir(tmp_path)

    def start(section: dict[str, Any]) -> tachograph.Run:
        config = nested(path, section, train={"batch_size": 2})
        if given_as == "argument":
            return tachograph.init("greyjacket", config=config, git=False)
        if given_as == "file":
            (tmp_path / "train.json").write_text(json.dumps(config))
        return tachograph.init_from_config("train.json" if given_as == "file" else config, git=False)

    with start({"log_dir": "elsewhere", "log_every": 5, "console": False}) as run:
        assert run.log_every == 5
    start_record = read(tmp_path / "elsewhere" / "greyjacket").attempts[0].start
    assert (start_record["log_every"], start_record.get("batch_size")) == (5, 2)
    with start({"enabled": False, "log_dir": "disabled"}) as run:
        assert not run.enabled
    assert sorted(item.name for item in tmp_path.iterdir() if item.is_dir()) == ["elsewhere"]


def test_arguments_and_environment_win_over_nested_section(tmp_path, monkeypatch):
    config = nested("config.process[0].telemetry", {"log_every": 5, "log_dir": "nowhere", "csv": False})
    monkeypatch.setenv("TACHO_LOG_EVERY", "3")
    with tachograph.init(config=config, log_dir=str(tmp_path), git=False) as run:
        assert (run.log_every, run.settings.csv) == (3, False)
        assert run.folder.path.parent == tmp_path


def test_errors_name_the_path_of_the_section():
    for section, message in (
        ({"logdir": "x"}, "unknown key config.process[0].telemetry.logdir; did you mean 'log_dir'?"),
        ({"log_every": 0}, "config.process[0].telemetry.log_every: expected `int` >= 1"),
        ("off", "config.process[0].telemetry: expected a section such as"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            tachograph.init_from_config(nested("config.process[0].telemetry", section))


USED = nested("config.process[0].telemetry", {"csv": False})


@pytest.mark.parametrize(
    ("config", "warnings"),
    [
        ({"model": {"telemetry": {"enabled": False}}}, ["no effect at model.telemetry: move them to"]),
        ({"jobs": [{}, {"telemetry": {"log_dir": "x"}}]}, ["no effect at jobs[1].telemetry: move"]),
        ({"a": {"telemetry": {}}, "b": [{"telemetry": {}}]}, ["no effect at a.telemetry, b[0].telemetry: move"]),
        ({**USED, "telemetry": {}}, ["no effect at config.process[0].telemetry: telemetry is used"]),
        ({**USED, "model": argparse.Namespace(telemetry={})}, ["no effect at model.telemetry: config.process[0]."]),
        ({"telemetry": {"logdir": "x"}}, ["have no effect: telemetry.logdir; did you mean 'log_dir'?"]),
        ({"telemetry": False}, ["the config's telemetry has no effect: expected a section such as"]),
        (USED, []),
        ({"model": {"telemetry": "anonymous"}}, []),
        (None, []),
    ],
)
def test_settings_without_effect_are_warned_about(tmp_path, caplog, config, warnings):
    with tachograph.init("x", config=config, log_dir=str(tmp_path), git=False):
        pass
    messages = [record.getMessage() for record in caplog.records if record.name == "tachograph"]
    assert len(messages) == len(warnings)
    for message, warning in zip(messages, warnings, strict=True):
        assert warning in message


class CountingConfig(Mapping):
    """A config without end."""

    def __init__(self) -> None:
        self.num_read = 0

    def __getitem__(self, key):
        raise KeyError(key)

    def __len__(self):
        return sys.maxsize

    def __iter__(self):
        for number in itertools.count():
            self.num_read += 1
            yield number

    def items(self):
        return ((number, 0) for number in self)


def test_search_for_sections_is_bounded():
    endless = CountingConfig()
    found = find_section({"a": endless, "telemetry": {"csv": False}})
    assert (found.path, found.value, found.unused) == ("telemetry", {"csv": False}, ())
    assert endless.num_read < 100_000
    loop: dict[str, Any] = {"inner": {"telemetry": {}}}
    loop["again"] = [loop, loop]
    assert find_section(loop).unused == ("inner.telemetry",)
    deep: dict[str, Any] = {"telemetry": {}}
    for _ in range(5_000):
        deep = {"x": deep}
    assert find_section(deep).unused == ()
    assert len(find_section({str(number): {"telemetry": {}} for number in range(100)}).unused) == 5


def test_numbers_with_exponent_in_yaml_are_numbers(tmp_path):
    path = tmp_path / "train.yaml"
    lines = "a: 1e-4\nb: 1E5\nc: -2.5e3\nd: .5e-2\ne: 1.0e-4\nf: '1e-4'\ng: 7e123456\nh: 1e\ni: .inf\nj: 3\nk: 1e5x\n"
    path.write_text(f"name: x\ntrain: {{lr: 1e-4, steps: 1e3}}\nlearning_rate: 2e-5\n{lines}")
    config = read_config(path)
    numbers = {"a": 1e-4, "b": 1e5, "c": -2500.0, "d": 0.005, "e": 1e-4, "i": math.inf, "j": 3}
    assert {name: config[name] for name in numbers} == numbers
    texts = {"f": "1e-4", "g": "7e123456", "h": "1e", "k": "1e5x"}  # `g` could be the hash of a commit
    assert {name: config[name] for name in texts} == texts
    with tachograph.init_from_config(path, log_dir=str(tmp_path), git=False):
        pass
    start = read(tmp_path / "x").attempts[0].start
    assert start["config"]["train"] == {"lr": 1e-4, "steps": 1000.0}
    assert start["learning_rate"] == 1e-4


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


def test_learning_rate_given_as_text_is_a_number():
    assert config_facts({"lr": "1e-4"}) == {"learning_rate": 1e-4}
    assert config_facts({"lr": "auto"}) == {"learning_rate": "auto"}


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
