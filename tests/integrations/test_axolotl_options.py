"""The options of the plugin for Axolotl, without Axolotl."""

from __future__ import annotations

import importlib.util

import pytest

import tachograph
from tachograph._base.settings import Settings
from tachograph.exceptions import ConfigError
from tachograph.integrations.axolotl import TachographArgs, TachographSwanLabArgs
from tachograph.integrations.axolotl._options import FIELDS, check_fields, is_listed, read_options, run_config

PLUGIN = "tachograph.integrations.axolotl.TachographPlugin"
QUIET = {"tachograph_console": False, "tachograph_system_interval_s": 0, "tachograph_git": False}
SECRET = "hunter2-hunter2"


def test_every_setting_has_a_field():
    assert {f"tachograph_{name}" for name in Settings.__struct_fields__} <= set(FIELDS)
    assert set(FIELDS) == set(TachographArgs.model_fields)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("tachograph_log_evry", "tachograph_log_every"),
        ("tachograph_sink", "tachograph_sinks"),
        ("tachograph-name", "tachograph_name"),
        ("Tachograph_Notify", "tachograph_notify"),
    ],
)
def test_unknown_key_names_the_nearest(key, nearest):
    with pytest.raises(ConfigError, match=f"unknown key '{key}' in the Axolotl config; did you mean '{nearest}'"):
        check_fields({"base_model": "x", key: "y"})


def test_unknown_key_without_similar_one_lists_keys():
    with pytest.raises(
        ConfigError, match="unknown key 'tachograph_zzz' in the Axolotl config; the keys are tachograph_n"
    ):
        check_fields({"tachograph_zzz": 1})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("log_every", 0, "tachograph_log_every: expected `int` >= 1, got 0"),
        ("enabled", "perhaps", "tachograph_enabled: expected `bool`, got 'perhaps'"),
        ("sinks", ["tensorbord"], "tachograph_sinks: unknown sink 'tensorbord'; did you mean 'tensorboard'"),
        ("name", "a/b", "a/b"),
        ("tags", "baseline", "tachograph_tags='baseline': expected a list"),
        ("resume", "maybe", "tachograph_resume='maybe': expected true or false"),
        ("rules", {"platau": False}, "tachograph_rules: .*did you mean 'plateau'"),
        ("signals", {"loss": 7}, "tachograph_signals: "),
        ("notify", {"slck": {}}, "tachograph_notify: .*did you mean"),
    ],
)
def test_invalid_value_names_the_field(field, value, message):
    config = {f"tachograph_{field}": value}
    with pytest.raises(ConfigError, match=message):
        check_fields(config)
    with pytest.raises(ValueError, match=message):
        TachographSwanLabArgs(**config)


def test_message_about_notify_quotes_no_secret():
    with pytest.raises(ConfigError) as caught:
        check_fields({"tachograph_notify": {"slack": {"url": f"ftp://{SECRET}"}}})
    assert SECRET not in str(caught.value)


def test_config_class_keeps_values_and_checks_swanlab():
    args = TachographSwanLabArgs(tachograph_sinks=["tensorboard"], swanlab_project="jackets")
    kept = args.model_dump(exclude_none=True)
    assert kept == {"tachograph_sinks": ["tensorboard"], "swanlab_project": "jackets"}
    assert "swanlab_project" not in TachographArgs.model_fields, "left to Axolotl's own plugin"
    with pytest.raises(ValueError, match="swanlab_project is missing"):
        TachographSwanLabArgs(use_swanlab=True)


def test_options_become_settings_of_the_run(logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_EVERY", "7")
    config = {
        "base_model": "x",
        "plugins": [PLUGIN],
        "tachograph_name": "grey",
        "tachograph_log_dir": str(logs),
        "tachograph_log_every": 5,
        "tachograph_completions_every": "20",
        "tachograph_tags": ["baseline"],
        **QUIET,
    }
    check_fields(config)
    options = read_options(config)
    with tachograph.init(options.name, config=run_config(config), **options.arguments) as run:
        assert run.name == "grey"
        assert run.settings.log_dir == str(logs)
        assert run.settings.completions_every == 20
        assert run.settings.log_every == 7, "the environment takes precedence, as over any config"
    (start,) = tachograph.read(logs / "grey").records("start")
    assert start["tags"] == ["baseline"]
    assert "tachograph_name" not in start["config"]


def test_swanlab_is_added_to_the_other_sinks(logs, tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    config = {
        "plugins": [PLUGIN],
        "swanlab_project": "jackets",
        "swanlab_mode": "offline",
        "swanlab_completion_log_interval": 9,
        "tachograph_log_dir": str(logs),
        "tachograph_sinks": ["tensorboard"],
        **QUIET,
    }
    check_fields(config)
    with tachograph.init("x", config=run_config(config)) as run:
        assert set(run.settings.sinks) == {"tensorboard", "swanlab"}
        assert run.settings.sinks["swanlab"]["project"] == "jackets"
        assert run.settings.completions_every == 9


@pytest.mark.parametrize("path", ["axolotl.integrations.swanlab.SwanLabPlugin", "swanlab:SwanLabPlugin"])
def test_swanlab_is_left_to_its_own_plugin(path, logs):
    config = {"plugins": [PLUGIN, path], "swanlab_project": "jackets", "tachograph_log_dir": str(logs), **QUIET}
    with tachograph.init("x", config=run_config(config)) as run:
        assert run.settings.sinks == {}
    (start,) = tachograph.read(logs / "x").records("start")
    assert start["config"]["swanlab"] == {"swanlab_project": "jackets"}


def test_plugin_is_found_under_any_path():
    assert is_listed("TachographPlugin", {"plugins": [PLUGIN]})
    assert is_listed("TachographPlugin", {"plugins": ["tachograph.integrations.axolotl:TachographPlugin"]})
    assert not is_listed("TachographPlugin", {"plugins": ["mine.TachographPlugin2"]})
    assert not is_listed("TachographPlugin", {"plugins": None})


@pytest.mark.skipif(importlib.util.find_spec("axolotl") is not None, reason="Axolotl is installed")
def test_plugin_without_axolotl_names_the_remedy():
    with pytest.raises(ImportError, match="needs Axolotl .*pip install axolotl"):
        from tachograph.integrations.axolotl import TachographPlugin  # noqa: F401
