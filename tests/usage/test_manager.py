"""The manager: one per app, robust against invalid input."""

from __future__ import annotations

import argparse
import collections
import json
import os
import pickle
import uuid

import pytest

from tachograph import usage
from tachograph._base.guard import guard
from tachograph.exceptions import ConfigError
from tachograph.usage import Count, JsonLines, TelemetryManager, UsageConfig, read_organizations
from tachograph.usage._folder import app_folder
from tachograph.usage._properties import model_properties
from tachograph.usage._schemas import SCHEMAS
from tachograph.usage._spool import read_events
from tests.conftest import HANG_S

MAP = {
    "base_model": "base_model",
    "lora_rank": "lora.r",
    "num_datasets": lambda config: len(config["datasets"]),
    "learning_rate": "args.0.lr",
    "compile": "missing.at.all",
}
CONFIG = {
    "base_model": "google/gemma-3",
    "lora": {"r": 16},
    "datasets": ["/home/alice/patients.jsonl"],
    "args": [{"lr": 2e-4}],
    "hub_token": "hf_abcdefghijklmnopqrstuvwxyz",
}


def make(**arguments):
    arguments = {"app": "greyjacket", "organizations": ["google"], "config_map": MAP, **arguments}
    return TelemetryManager.configure(UsageConfig(**arguments), choice="local")


def recorded(manager):
    manager.shutdown(HANG_S)
    return [kept.event for kept in read_events(app_folder(manager.config.app))]


# One per app ---------------------------------------------------------------------------------------------------------


def test_one_manager_per_app():
    first = make()
    assert make() is first is TelemetryManager.get_instance() is TelemetryManager.get_instance("greyjacket")
    second = make(app="other")
    assert TelemetryManager.get_instance("other") is second is not first
    ambiguous = TelemetryManager.get_instance()
    assert "pass the name of one: greyjacket, other" in ambiguous.decision.reason
    assert "did you mean 'greyjacket'" in TelemetryManager.get_instance("grayjacket").decision.reason
    assert not ambiguous.enabled
    TelemetryManager.reset("other")
    assert TelemetryManager.get_instance() is first
    TelemetryManager.reset()
    assert "call TelemetryManager.configure" in TelemetryManager.get_instance().decision.reason
    with pytest.raises(ConfigError, match="a name in lower case"):
        TelemetryManager.get_instance("Grey Jacket")


# Taken before the app is configured -----------------------------------------------------------------------------------


def test_manager_taken_at_import_records_once_configured(caplog):
    unnamed, named = TelemetryManager.get_instance(), TelemetryManager.get_instance("greyjacket")
    assert TelemetryManager.get_instance() is unnamed
    assert not caplog.text, "taking a manager early is no mistake"
    manager = make()
    for early in (unnamed, named):
        assert early.enabled and early.config is manager.config and early.run_id == manager.run_id
    unnamed.send_event("train-start", {"max_steps": 16})
    named.send_event("train-end", {"step": 16})
    assert [event["event"] for event in recorded(manager)] == ["train-start", "train-end"]
    assert TelemetryManager.get_instance() is manager


def test_manager_taken_early_survives_reset():
    early = TelemetryManager.get_instance()
    make()
    TelemetryManager.reset()
    assert not early.enabled
    again = make(app="other")
    assert early.enabled and early.config.app == "other"
    second = make()
    assert early.config is again.config is not second.config, "the app that was configured first"


def test_manager_taken_early_reports_use_without_configure(caplog):
    early = TelemetryManager.get_instance("greyjacket")
    early.send_event("train-start")
    early.send_model(object())
    assert caplog.text.count("usage telemetry of greyjacket is not configured") == 1


def test_unpickled_manager_records_once_configured():
    copied = pickle.loads(pickle.dumps(TelemetryManager.get_instance()))
    manager = make()
    assert copied.enabled and copied.run_id == manager.run_id


# Calls as Axolotl makes them ------------------------------------------------------------------------------------------


class Config(dict):
    """A dict in which every key exists, as in Axolotl's configs."""

    def __missing__(self, key):
        return None


def test_event_type_is_a_keyword_and_a_config_is_mapped():
    manager = make(config_map={"base_model": "base_model", "lora_rank": "lora_r"})
    config = Config(base_model="google/gemma", lora_r=16, wandb_project="merger", hf_token="hunter2")
    manager.send_event(event_type="config-loaded", properties=config)
    manager.send_event(event_type="train-start", properties={"max_steps": 16, "wandb_project": "merger"})
    loaded, system, started = recorded(manager)
    assert (loaded["event"], loaded["properties"]) == ("config-loaded", {"base_model": "google/gemma", "lora_rank": 16})
    assert system["event"] == "system-info"
    assert started["properties"] == {"max_steps": 16}


def test_organizations_are_read_from_a_whitelist_file(tmp_path):
    file = tmp_path / "whitelist.yaml"
    file.write_text("organizations:\n  - google\n  - Qwen\n")
    assert read_organizations(file) == ("google", "Qwen")
    assert UsageConfig(app="greyjacket", organizations=read_organizations(str(file))).organizations == (
        "google",
        "qwen",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the organizations in .*No such file"),
        ("organizations: [", "is not valid YAML"),
        ("- google", "expected the key `organizations` with a list of names"),
        ("organizations: google", "expected the key `organizations` with a list of names"),
        ("organisations: [google]", "expected the key `organizations` with a list of names"),
        ("organizations: [google/gemma]", "names without spaces or slashes"),
        ("organizations: [1]", "names without spaces or slashes"),
    ],
)
def test_invalid_whitelist_file_is_an_error(text, message, tmp_path):
    file = tmp_path / "whitelist.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_organizations(file)


def test_model_properties_of_torch_module():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 4)
    model.dtype = torch.bfloat16
    assert SCHEMAS["model-load"].fields["dtype"].clean(model_properties(model)["dtype"], ()) == "bfloat16"
    assert "quantization" not in model_properties(model)
    assert model_properties(model)["num_parameters"] == 16
    model.weight.data, model.weight.ds_numel = torch.empty(0), 12  # like a parameter partitioned by DeepSpeed
    assert model_properties(model)["num_parameters"] == 16


def test_configuring_differently_raises():
    make()
    with pytest.raises(ConfigError, match=r"TelemetryManager.reset\('greyjacket'\)"):
        make(organizations=["meta-llama"])
    with pytest.raises(ConfigError, match="already configured with another choice"):
        TelemetryManager.configure(
            UsageConfig(app="greyjacket", organizations=["google"], config_map=MAP), choice="off"
        )


def test_configuring_with_wrong_type_raises():
    with pytest.raises(ConfigError, match="expects a UsageConfig, not dict"):
        TelemetryManager.configure({"app": "x"})


# Events --------------------------------------------------------------------------------------------------------------


def test_config_sends_mapped_fields_and_system_info_once():
    manager = make()
    manager.send_config(CONFIG)
    manager.send_config(CONFIG, "config-processed")
    manager.send_event("config-loaded", {"adapter": "lora"})
    events = recorded(manager)
    assert [event["event"] for event in events] == ["config-loaded", "system-info", "config-processed", "config-loaded"]
    wanted = {"base_model": "google/gemma-3", "lora_rank": 16, "num_datasets": 1, "learning_rate": 0.0002}
    assert events[0]["properties"] == events[2]["properties"] == wanted
    assert events[3]["properties"] == {"adapter": "lora"}
    assert {event["run_id"] for event in events} == {manager.run_id}
    assert len({event["uuid"] for event in events}) == 4
    for event in events:
        assert set(event) == {"uuid", "event", "timestamp", "run_id", "app", "properties"}


def test_configs_of_any_type_are_read():
    manager = make()
    manager.send_config(argparse.Namespace(**CONFIG))
    manager.send_config(collections.UserDict(CONFIG))
    manager.send_config(None)
    events = [event["properties"] for event in recorded(manager) if event["event"] == "config-loaded"]
    assert [event.get("lora_rank") for event in events] == [16, 16, None]


@pytest.mark.expects_faults
@pytest.mark.parametrize("given", [collections.OrderedDict(CONFIG), argparse.Namespace(a=1), [("a", 1)], "text"])
def test_properties_must_be_a_dict(given):
    manager = make()
    manager.send_event("train-start", given)
    assert recorded(manager) == []
    assert "expects a dict of the event's fields" in guard.faults[0][1]


@pytest.mark.expects_faults
def test_mistake_while_training_drops_one_event():
    manager = make()
    manager.send_event("no-such-event", {"a": 1})
    manager.send_event("error", {"type": "secret"})
    manager.send_event("train-start", {"max_steps": 500})
    assert [event["event"] for event in recorded(manager)] == ["train-start"]
    assert [place for place, _ in guard.faults] == ["recording a usage event"] * 2
    assert "declare it with UsageConfig(events=" in guard.faults[0][1]


def test_custom_event_is_recorded():
    manager = make(events={"dataset-packed": {"num_packs": Count("Packs.")}})
    manager.send_event("dataset-packed", {"num_packs": 1234, "path": "/home/alice"})
    manager.send_event("dataset-packed")
    assert [event["properties"] for event in recorded(manager)] == [{"num_packs": 1200}, {}]


def test_model_and_adapter_are_recorded(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    manager = make()
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=128
    )
    model = transformers.LlamaForCausalLM(config)
    model.config._name_or_path = "/home/alice/acme"
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, lora)
    manager.send_model(model)
    manager.send_adapter(lora)
    model_load, adapter_load = (event["properties"] for event in recorded(manager))
    num_trainable = model_load.pop("num_trainable_parameters")
    assert 0 < num_trainable < model_load["num_parameters"]
    assert model_load == {
        "base_model": "[redacted]", "model_type": "llama", "num_parameters": model_load["num_parameters"],
        "num_layers": 2, "hidden_size": 16, "vocab_size": 128, "dtype": "float32", "quantization": "none",
        "attention": "sdpa",
    }  # fmt: skip
    assert adapter_load == {
        "kind": "LORA", "task": "CAUSAL_LM", "rank": 8, "alpha": 16.0, "dropout": 0.0, "bias": "none",
        "num_target_modules": 2, "use_dora": False, "use_rslora": False,
    }  # fmt: skip


def test_system_info_initializes_no_device(script):
    """Reading from torch creates no context, even if there is a device."""
    out = script(
        """
        import json, torch
        from tachograph.usage._system import system_info
        facts = system_info()
        assert not torch.cuda.is_initialized()
        print(json.dumps(facts))
        """
    ).ok()
    facts = json.loads(out)
    assert facts["os"] == "Linux"
    assert facts["num_cpus"] == os.cpu_count()
    assert facts["packages"]["torch"].startswith("2.")
    assert facts["accelerator"] in {"none", "cuda"}
    assert len(facts["accelerators"]) == facts["num_accelerators"]


# The run -------------------------------------------------------------------------------------------------------------


def test_run_id_is_exported_to_children():
    manager = make()
    assert uuid.UUID(manager.run_id).version == 4
    assert os.environ["GREYJACKET_USAGE_RUN_ID"] == manager.run_id
    TelemetryManager.reset()
    assert "GREYJACKET_USAGE_RUN_ID" not in os.environ
    assert make().run_id != manager.run_id


@pytest.mark.parametrize("given", ["", "alice@acme.com", "../x", str(uuid.UUID(int=1)), "{}" * 400])
def test_invalid_inherited_run_id_is_ignored(monkeypatch, given):
    monkeypatch.setenv("GREYJACKET_USAGE_RUN_ID", given)
    assert make().run_id != given


@pytest.mark.parametrize(
    ("environ", "enabled"),
    [
        ({}, True), ({"RANK": "0"}, True), ({"RANK": "1"}, False), ({"GLOBAL_RANK": "2"}, False),
        ({"SLURM_PROCID": "3"}, False),
        ({"OMPI_COMM_WORLD_RANK": "1"}, False), ({"RANK": "abc"}, True), ({"RANK": ""}, True), ({"RANK": "-1"}, True),
        ({"RANK": "abc", "SLURM_PROCID": "3"}, False), ({"RANK": "0", "SLURM_PROCID": "3"}, True),
        ({"RANK": " 1 "}, False),
        ({"RANK": "²"}, True), ({"LOCAL_RANK": "1"}, True), ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, False),
    ],
)  # fmt: skip
def test_only_main_process_records(monkeypatch, environ, enabled):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    manager = make()
    assert manager.enabled is enabled
    manager.send_event("train-start")
    assert len(recorded(manager)) == enabled


def test_debug_prints_fields_missing_in_config(monkeypatch, capsys):
    monkeypatch.setenv("TACHO_USAGE_DEBUG", "1")
    manager = make(config_map={"lora_rank": "lora.rank", "compile": lambda config: 1 / 0, "max_steps": "steps"})
    manager.send_config({"lora": {"r": 8}, "steps": 3})
    err = capsys.readouterr().err
    assert "[greyjacket usage] not found in this config: lora_rank, compile\n" in err
    assert "dropped" not in err


def test_debug_prints_without_storing_or_sending(monkeypatch, capsys, tmp_path):
    for variable in ("GREYJACKET_USAGE_DEBUG", "TACHO_USAGE_DEBUG"):
        monkeypatch.setenv(variable, "1")
        config = UsageConfig(app="greyjacket", endpoint=JsonLines(tmp_path / "sent"), consent="opt-out")
        for choice in ("on", "off", None):
            manager = TelemetryManager.configure(config, choice=choice)
            manager.send_event("train-start", {"max_steps": 512, "secret": 1})
            TelemetryManager.reset()
            err = capsys.readouterr().err
            assert "train-start: printed only, not stored or sent" in err
            assert "train-start: dropped: unknown field or wrong type: secret\n" in err
            assert json.loads(err[err.index("{") :])["properties"] == {"max_steps": 512}
        monkeypatch.delenv(variable)
    assert not (tmp_path / "sent").exists()
    assert not app_folder("greyjacket").exists()


def test_nothing_is_recorded_after_shutdown():
    manager = make()
    manager.send_event("train-start")
    assert len(recorded(manager)) == 1
    manager.send_event("train-start")
    assert manager.enabled is False
    assert len(recorded(manager)) == 1


def test_public_names_of_package():
    assert usage.__all__ == sorted(usage.__all__) == dir(usage)
    for name in usage.__all__:
        assert getattr(usage, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = usage.nothing
