"""Sinks with options: `init(sinks=[…])`, checked before the run starts."""

from __future__ import annotations

import re

import pytest

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tachograph.sinks import SINKS, BackgroundSink, Sink, build_sinks
from tests.conftest import wait_for


def test_tensorboard_writes_below_log_dir(logs, tmp_path):
    sinks = [{"tensorboard": {"log_dir": str(tmp_path / "board")}}]
    with tachograph.init("x", log_dir=str(logs), sinks=sinks, git=False) as run:
        run.log(train_loss=1.0, step=1)
    assert list((tmp_path / "board" / "x").glob("*.tfevents.*"))
    assert not (logs / "x" / "tensorboard").exists()


def test_config_section_lists_sinks(logs):
    config = {"name": "x", "telemetry": {"log_dir": str(logs), "git": False, "sinks": ["tensorboard"]}}
    with tachograph.init_from_config(config) as run:
        run.log(train_loss=1.0, step=1)
    assert list((logs / "x" / "tensorboard").glob("*.tfevents.*"))


def test_environment_lists_sinks(logs, monkeypatch):
    monkeypatch.setenv("TACHO_SINKS", "tensorboard")
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        run.log(train_loss=1.0, step=1)
    assert list((logs / "x" / "tensorboard").glob("*.tfevents.*"))


def test_wandb_options_reach_the_run(logs, script):
    # In a process of its own, because wandb reads its environment once per process.
    script(
        """
        import sys, tachograph
        options = {"project": "our-project", "entity": "our-entity", "group": "our-group", "mode": "offline"}
        sinks = [{"wandb": options}]
        with tachograph.init("x", log_dir=sys.argv[1], sinks=sinks, git=False, exit_timeout_s=60) as run:
            run.log(train_loss=1.0, step=1)
        """,
        logs,
        env={"WANDB_PROJECT": "other-project"},
    ).ok()
    (file,) = (logs / "x").rglob("*.wandb")
    for text in (b"our-project", b"our-entity", b"our-group"):
        assert wait_for(lambda text=text: text in file.read_bytes())
    assert b"other-project" not in file.read_bytes()
    assert read(logs / "x").latest("telemetry_error") == []


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        (["tensorbord"], "unknown sink 'tensorbord'; did you mean 'tensorboard'? Available: "),
        (["notify"], "sinks: configure notifications with notify={…}, telemetry.notify or TACHO_NOTIFY_…"),
        (
            [{"tensorboard": {"logdir": "x"}}],
            "sink 'tensorboard' has no option 'logdir'; did you mean 'log_dir'? Available: log_dir",
        ),
        ([{"tensorboard": {"log_dir": 7}}], "sink 'tensorboard': log_dir must be a path, got 7"),
        ([{"wandb": {"zzz": 1}}], "sink 'wandb' has no option 'zzz'. Available: project, entity, mode, group"),
        ([{"wandb": {"project": ""}}], "sink 'wandb': project must be a non-empty string, got ''"),
        ([{"wandb": {"mode": "offlin"}}], "got 'offlin'; did you mean 'offline'?"),
    ],
)
def test_wrong_sinks_fail_before_the_run_starts(logs, sinks, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        tachograph.init("x", log_dir=str(logs), sinks=sinks)
    assert not logs.exists()


def test_disabled_run_builds_no_sinks(logs):
    run = tachograph.init("x", log_dir=str(logs), enabled=False, sinks=["no_such_sink"])
    run.finish()
    assert not run.enabled and not logs.exists()


class Minimal:
    name = "minimal"

    def open(self, folder, start): ...

    def write(self, records): ...

    def close(self): ...


@pytest.fixture
def provide(monkeypatch):
    """Pretend that a package provides a sink."""
    return lambda **sinks: monkeypatch.setattr(SINKS, "load", sinks.__getitem__)


def test_sink_without_constructor_has_no_options(provide):
    provide(minimal=Minimal)
    assert isinstance(build_sinks({"minimal": {}})[0], Minimal)
    with pytest.raises(ConfigError, match="sink 'minimal' has no option 'a'. It has no options"):
        build_sinks({"minimal": {"a": 1}})


def test_sink_that_accepts_any_option(provide):
    class Open(Minimal):
        def __init__(self, **options):
            self.options = options

    provide(minimal=Open)
    assert build_sinks({"minimal": {"a": 1}})[0].options == {"a": 1}


def test_incomplete_sink_is_rejected(provide):
    provide(incomplete=type("Incomplete", (), {"name": "incomplete"}))
    with pytest.raises(ConfigError, match="sink 'incomplete' is incomplete: it needs a name and the methods open"):
        build_sinks({"incomplete": {}})


def test_two_sinks_cannot_share_a_cursor(provide):
    provide(one=Minimal, two=Minimal)
    with pytest.raises(ConfigError, match="'two' and another sink are both named 'minimal'"):
        build_sinks({"one": {}, "two": {}})


def test_constructor_error_names_the_sink(provide):
    class Failing(Minimal):
        def __init__(self):
            raise ConnectionError("no server")

    provide(failing=Failing)
    with pytest.raises(ConfigError, match="sink 'failing' cannot be created: ConnectionError: no server"):
        build_sinks({"failing": {}})


@pytest.mark.slow
def test_built_in_sinks_implement_the_protocol(monkeypatch, tmp_path):
    monkeypatch.setenv("SWANLAB_MODE", "offline")  # the default needs an API key
    for name in SINKS.built_in:
        # Not the default port of Prometheus, which may be in use here.
        (sink,) = build_sinks({name: {"textfile": str(tmp_path)} if name == "prometheus" else {}})
        assert isinstance(sink, Sink)
        assert not isinstance(sink, BackgroundSink)
        assert sink.name == name
