"""The options of SwanLab in a training config: checked, translated to the sink and to notifications."""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json

import pytest

import tachograph
from tachograph.bridges.swanlab.config import SwanLabConfig
from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tests.bridges.test_swanlab_sink import media, messages, scalars, server, swanlab_files, swanlab_home  # noqa: F401
from tests.conftest import HANG_S
from tests.receiver import Receiver, Reply

OFFLINE = {"swanlab_project": "proj", "swanlab_mode": "offline"}
OPTIONS = {"git": False, "system_interval_s": 0, "exit_timeout_s": HANG_S}


def record(logs, config, name="x", **options):
    """Record a run with one value."""
    with tachograph.init(name, config=config, log_dir=str(logs), **OPTIONS, **options) as run:
        run.log(train_loss=1.0, step=1)
    return logs / name


@pytest.fixture
def lark(monkeypatch):
    """A Lark bot."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    receiver = Receiver()
    receiver.replies = [Reply(body=b'{"code": 0}')]
    yield receiver
    receiver.close()


# Enabling ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [None, True], ids=["unset", "true"])
def test_project_in_the_config_enables_swanlab(logs, use):
    config = {**OFFLINE, "swanlab_experiment_name": "first", "swanlab_description": "why", "swanlab_workspace": "team"}
    folder = record(logs, config if use is None else {**config, "use_swanlab": use})
    (file,) = swanlab_files(folder)
    first = dict(messages(file))["start"]
    assert (first.project, first.name, first.description, first.workspace) == ("proj", "first", "why", "team")
    assert scalars(file)["train_loss"] == [(1, 1.0)]


@pytest.mark.parametrize(
    "config",
    [
        {**OFFLINE, "use_swanlab": False},
        {**OFFLINE, "use_swanlab": "false"},
        {**OFFLINE, "swanlab_mode": "disabled"},
        {"use_swanlab": False},
        {"swanlab_mode": "offline"},
    ],
)
def test_swanlab_stays_off(logs, config):
    assert swanlab_files(record(logs, config)) == []


def test_config_file_and_namespace_are_read(logs, tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("name: x\n" + "".join(f"{name}: {value}\n" for name, value in OFFLINE.items()))
    with tachograph.init_from_config(path, log_dir=str(logs), **OPTIONS) as run:
        run.log(train_loss=1.0, step=1)
    assert len(swanlab_files(logs / "x")) == 1
    assert len(swanlab_files(record(logs, argparse.Namespace(**OFFLINE), "y"))) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"use_swanlab": True},
            "use_swanlab is true, but swanlab_project is missing: add a name, such as `swanlab_project: my-project`, "
            "or turn SwanLab off with `use_swanlab: false`",
        ),
        (
            {"swanlab_project": "p", "swanlab_mode": "offlin"},
            "swanlab_mode='offlin': expected one of cloud, online, local, offline, disabled; did you mean 'offline'?",
        ),
        ({"swanlab_project": ""}, "swanlab_project: expected a text that is not empty, got ''; remove the line"),
        ({"swanlab_project": "  "}, "swanlab_project: expected a text that is not empty, got '  '; remove the line"),
        ({"swanlab_project": "p", "swanlab_api_key": 12345678}, "swanlab_api_key: expected a text that is not empty;"),
        ({**OFFLINE, "use_swanlab": "maybe"}, "use_swanlab='maybe': expected true or false"),
        ({**OFFLINE, "swanlab_completion_log_interval": 0}, "swanlab_completion_log_interval=0: expected an integer"),
        ({**OFFLINE, "swanlab_completion_max_buffer": -1}, "swanlab_completion_max_buffer=-1: expected an integer"),
        ({**OFFLINE, "swanlab_completion_max_buffer": True}, "swanlab_completion_max_buffer=True: expected an"),
        ({**OFFLINE, "swanlab_lark_webhook_url": "open.feishu.cn"}, "swanlab_lark_webhook_url: expected an address"),
        # An automatically enabled run is checked like any other.
        ({"swanlab_project": "p"}, "sink 'swanlab': mode 'cloud' needs an API key for https://api.swanlab.cn. Set"),
        ({"swanlab_project": "p", "swanlab_mode": "local"}, "sink 'swanlab': mode 'local' needs SwanLab's dashboard"),
    ],
)
def test_invalid_options_fail_before_the_run_starts(logs, config, message):
    with pytest.raises(ConfigError) as raised:
        tachograph.init("x", config=config, log_dir=str(logs), **OPTIONS)
    assert str(raised.value).startswith(message)
    assert "12345678" not in str(raised.value)
    assert not logs.exists()


def test_disabled_run_ignores_swanlab(logs):
    tachograph.init("x", config={"use_swanlab": True}, log_dir=str(logs), enabled=False).finish()
    assert not logs.exists()


def test_options_without_effect_are_named(logs, caplog):
    record(logs, {**OFFLINE, "swanlab_log_model": True, "swanlab_projet": "x", "swanlab_lark_secret": "s"})
    assert "the option swanlab_projet of the config is unknown; did you mean 'swanlab_project'?" in caplog.text
    assert "swanlab_log_model has no effect" in caplog.text
    assert "swanlab_lark_secret has no effect without swanlab_lark_webhook_url" in caplog.text


def test_only_rank_0_starts_swanlab(logs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")  # the first of another machine
    with tachograph.init("x", config={"swanlab_project": "p"}, log_dir=str(logs), **OPTIONS) as run:  # needs no key
        run.log(train_loss=1.0, step=1)
    assert swanlab_files(logs) == []


def test_same_config_twice_gives_two_experiments(logs):
    with tachograph.init("x", config=OFFLINE, log_dir=str(logs), **OPTIONS) as outer:
        record(logs, OFFLINE, "y")
        outer.log(train_loss=2.0, step=1)
    assert scalars(swanlab_files(logs / "x")[0])["train_loss"] == [(1, 2.0)]
    assert scalars(swanlab_files(logs / "y")[0])["train_loss"] == [(1, 1.0)]


def test_stronger_sources_win_over_the_config(logs, monkeypatch, caplog):
    section = {"sinks": ["tensorboard", {"swanlab": {"project": "ours"}}]}
    folder = record(logs, {**OFFLINE, "telemetry": section})
    assert dict(messages(swanlab_files(folder)[0]))["start"].project == "ours"
    assert (folder / "tensorboard").exists()
    monkeypatch.setenv("TACHO_SINKS", "tensorboard")
    assert swanlab_files(record(logs, OFFLINE, "y")) == []
    assert "the config turns SwanLab on, but TACHO_SINKS or init(sinks=…) has other sinks" in caplog.text


# Hosts, keys and secrets ---------------------------------------------------------------------------------------------


def test_hosts_and_key_of_the_config_are_used(logs, server):  # noqa: F811
    config = {
        "swanlab_project": "proj",
        "swanlab_api_host": server.url,
        "swanlab_web_host": server.url,
        "swanlab_api_key": "key-1234567890",
    }
    folder = record(logs, config)
    assert [body["state"] for _, path, body, _ in server.requests if path.endswith("/state")] == ["FINISHED"]
    assert server.elsewhere == []
    assert "key-1234567890" not in (folder / "metrics.jsonl").read_text()
    assert read(folder).config["swanlab_api_key"] == "[masked]"


def sign(request, secret):
    key = f"{request['timestamp']}\n{secret}".encode()
    return base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


@pytest.mark.parametrize("place", ["config", "environment"])
def test_lark_gets_signed_messages(logs, lark, monkeypatch, place):
    values = {"webhook_url": f"{lark.address}/hook", "secret": "opaque-secret"}
    config = dict(OFFLINE)
    for name, value in values.items():
        if place == "config":
            config[f"swanlab_lark_{name}"] = value
        else:
            monkeypatch.setenv(f"SWANLAB_LARK_{name.upper()}", value)
    folder = record(logs, config)
    sent = [request.json() for request in lark.requests]
    assert len(sent) == 2  # the start and the end
    assert all(request["sign"] == sign(request, "opaque-secret") for request in sent)
    assert len(swanlab_files(folder)) == 1
    text = (folder / "metrics.jsonl").read_text()
    assert "opaque-secret" not in text and lark.address not in text


def test_lark_without_secret_is_warned_about(logs, lark, capsys):
    record(logs, {**OFFLINE, "swanlab_lark_webhook_url": f"{lark.address}/hook"})
    assert "sign" not in lark.requests[0].json()
    assert "has no secret" in capsys.readouterr().out


def test_lark_is_off_without_swanlab_or_notifications(logs, lark, monkeypatch):
    monkeypatch.setenv("SWANLAB_LARK_WEBHOOK_URL", f"{lark.address}/hook")
    record(logs, {**OFFLINE, "use_swanlab": False})
    record(logs, OFFLINE, "y", notify=False)
    record(logs, {**OFFLINE, "telemetry": {"notify": False}}, "z")
    assert lark.requests == []


# Completions ---------------------------------------------------------------------------------------------------------


def test_interval_and_buffer_of_completions_apply(logs):
    config = {**OFFLINE, "swanlab_completion_log_interval": 5, "swanlab_completion_max_buffer": 2}
    with tachograph.init("x", config=config, log_dir=str(logs), **OPTIONS) as run, tachograph.Completions() as samples:
        for step in range(1, 11):
            samples.add(step, prompt=f"p{step}")
            samples.maybe_flush(step)
    tables = [json.loads(text) for text in media(swanlab_files(logs / "x")[0])["completions"]]
    assert [[row["prompt"] for row in table["rowData"]] for table in tables] == [["p4", "p5"], ["p9", "p10"]]
    assert run.settings.completions_every == 5


def test_completions_can_be_kept_from_swanlab(logs):
    config = {**OFFLINE, "swanlab_log_completions": False}
    with tachograph.init("x", config=config, log_dir=str(logs), **OPTIONS) as run:
        run.log_completions([{"prompt": "p"}], step=1)
    assert media(swanlab_files(logs / "x")[0]) == {}
    assert len(read(logs / "x").completions()) == 1


def test_config_class_checks_when_it_is_created():
    assert SwanLabConfig(swanlab_project="p", swanlab_mode="cloud").is_enabled
    assert not SwanLabConfig(swanlab_mode="offline").is_enabled
    with pytest.raises(ConfigError, match="swanlab_mode='x'"):
        SwanLabConfig(swanlab_mode="x")
