"""Modes: where a run goes."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

import tachograph
from tachograph._init import check_config
from tachograph.cli._main import main
from tachograph.exceptions import ConfigError
from tachograph.settings import Mode, Settings, resolve_mode, resolve_settings

SERVER = "https://tacho.example.org"


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, Mode.LOCAL),
        ({"server": SERVER}, Mode.CLOUD),
        *[({"mode": mode.value}, mode) for mode in Mode],
        *[({"mode": mode.value, "server": SERVER}, mode) for mode in Mode],
        ({"mode": "online"}, Mode.CLOUD),
        ({"mode": " Offline "}, Mode.OFFLINE),
        ({"mode": ""}, Mode.LOCAL),
        ({"enabled": False}, Mode.DISABLED),
        ({"enabled": False, "mode": "cloud", "server": SERVER}, Mode.DISABLED),
        ({"enabled": True, "mode": "disabled"}, Mode.DISABLED),
    ],
)
def test_mode_follows_from_settings(given, mode):
    settings = resolve_settings(given)
    assert resolve_mode(settings) is mode
    assert settings.enabled is (mode is not Mode.DISABLED)


def test_given_mode_wins_over_server_of_any_source(monkeypatch):
    monkeypatch.setenv("TACHO_SERVER", SERVER)
    assert resolve_mode(resolve_settings({})) is Mode.CLOUD
    assert resolve_mode(resolve_settings({}, {"mode": "local"})) is Mode.LOCAL
    assert resolve_mode(resolve_settings({"server": SERVER}, {"mode": "offline"})) is Mode.OFFLINE
    monkeypatch.setenv("TACHO_MODE", "disabled")
    assert resolve_mode(resolve_settings({}, {"mode": "local"})) is Mode.DISABLED
    assert resolve_mode(resolve_settings({"mode": "local"})) is Mode.LOCAL
    monkeypatch.setenv("TACHO_ENABLED", "0")
    assert resolve_mode(resolve_settings({"mode": "local"})) is Mode.DISABLED


def test_settings_without_a_source_are_local():
    assert resolve_mode(Settings()) is Mode.LOCAL


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("offlin", "mode: expected one of local, cloud, offline, disabled, got 'offlin'; did you mean 'offline'?"),
        ("x", "mode: expected one of local, cloud, offline, disabled, got 'x'"),
        (False, "mode: expected one of local, cloud, offline, disabled, got False"),
    ],
)
def test_unknown_mode_lists_the_four(tmp_path, mode, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        tachograph.init("x", mode=mode, log_dir=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_unknown_mode_names_its_source(monkeypatch):
    monkeypatch.setenv("TACHO_MODE", "airplane")
    with pytest.raises(ConfigError, match="environment variable TACHO_MODE: expected one of local, cloud"):
        tachograph.init("x")
    monkeypatch.delenv("TACHO_MODE")
    with pytest.raises(ConfigError, match="telemetry.mode: expected one of local, cloud"):
        tachograph.init_from_config({"name": "x", "telemetry": {"mode": "airplane"}})


@pytest.mark.parametrize("mode", ["cloud", "online"])
def test_cloud_without_server_names_the_remedies(tmp_path, monkeypatch, mode):
    monkeypatch.chdir(tmp_path)
    for start in (
        lambda: tachograph.init("x", mode=mode),
        lambda: tachograph.init_from_config({"telemetry": {"mode": mode}}),
        lambda: check_config({"telemetry": {"mode": mode}}),
    ):
        with pytest.raises(ConfigError, match="needs the address of a server") as caught:
            start()
        assert all(word in str(caught.value) for word in ("server='https://…'", "TACHO_SERVER", "tacho login URL"))
    assert not list(tmp_path.iterdir())


def test_tacho_run_rejects_mode_before_the_program_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = "import pathlib; pathlib.Path('started').touch()"
    result = CliRunner().invoke(main, ["run", "--set", "mode=cloud", "--", "python", "-c", started])
    assert result.exit_code != 0
    assert "needs the address of a server" in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())


def test_alias_online_is_told(tmp_path, capsys):
    with tachograph.init("x", mode="online", server=SERVER, log_dir=str(tmp_path), git=False) as run:
        assert resolve_mode(run.settings) is Mode.CLOUD
        assert run.settings.mode == "cloud"
    assert "[telemetry] mode 'online' is another name of 'cloud'\n" in capsys.readouterr().out
