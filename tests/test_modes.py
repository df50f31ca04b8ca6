"""Modes: where a run goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

import pytest
from click.testing import CliRunner

import tachograph
from tachograph import one_logger
from tachograph._base.settings import Mode, Settings, resolve_mode, resolve_settings
from tachograph._init import check_config
from tachograph.cli._main import main
from tachograph.exceptions import ConfigError, ControlError
from tachograph.journal import Destination, RunFolder, read_destination
from tachograph.reader import read
from tachograph.testing import MemoryRun
from tests.conftest import pause_checks, wait_for
from tests.remote.conftest import Team, team  # noqa: F401 - a fixture

SERVER = "http://127.0.0.1:9"
"""Nothing answers there; `tests/remote` has a real server."""


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    """A user with a key, for runs in the mode `cloud`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TACHO_API_KEY", "tk_00000000_" + "x" * 43)


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


@pytest.fixture
def server(team: Team, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: F811
    """The address of a server that this user has a key for."""
    monkeypatch.setenv("TACHO_API_KEY", team.token("write"))
    return team.url


def test_alias_online_is_told(tmp_path, server, capsys):
    with tachograph.init("x", mode="online", server=server, log_dir=str(tmp_path), git=False) as run:
        assert resolve_mode(run.settings) is Mode.CLOUD
        assert run.settings.mode == "cloud"
    assert "[telemetry] mode 'online' is another name of 'cloud'\n" in capsys.readouterr().out


# The destination of a run --------------------------------------------------------------------------------------------


def destination_of(logs, name="x"):
    path = logs / name / ".tacho" / "destination.json"
    return json.loads(path.read_text()) if path.exists() else None


@pytest.mark.parametrize("mode", ["cloud", "offline"])
def test_run_is_marked_when_it_starts(logs, server, mode):
    with tachograph.init("x", mode=mode, server=server, remote_control=True, log_dir=str(logs), git=False) as run:
        assert destination_of(logs) == {"server": server, "mode": mode, "remote_control": True}
        run.log(train_loss=1.0, step=0)
    assert read_destination(RunFolder(logs / "x")) == Destination(server=server, mode=mode, remote_control=True)
    assert read(logs / "x").series("train_loss").values == [1.0]


@pytest.mark.parametrize("settings", [{}, {"mode": "local", "server": SERVER}])
def test_local_run_is_not_marked(logs, capsys, settings):
    with tachograph.init("x", log_dir=str(logs), git=False, **settings):
        pass
    assert destination_of(logs) is None
    assert read_destination(RunFolder(logs / "x")) is None
    assert "tacho sync" not in capsys.readouterr().out


def test_last_attempt_decides_where_the_run_goes(logs, server, capsys):
    for settings, expected in (
        ({"mode": "offline"}, {"server": None, "mode": "offline", "remote_control": False}),
        ({"server": server}, {"server": server, "mode": "cloud", "remote_control": False}),
        ({"mode": "local", "server": server}, None),
        ({}, None),
    ):
        with tachograph.init("x", resume=True, log_dir=str(logs), git=False, **settings):
            assert destination_of(logs) == expected
    out = capsys.readouterr().out
    assert out.count("this attempt has the mode 'local': the run is no longer marked to be sent\n") == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"server": 5, "mode": "cloud"}', b'{"mode": "local"}', b"[" * 9000]
)
def test_damaged_destination_counts_as_none(logs, content):
    with tachograph.init("x", mode="offline", log_dir=str(logs), git=False):
        pass
    (logs / "x" / ".tacho" / "destination.json").write_bytes(content)
    assert read_destination(RunFolder(logs / "x")) is None


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")
def test_destination_of_another_user_counts_as_none(logs):
    with tachograph.init("x", mode="offline", log_dir=str(logs), git=False) as run:
        pass
    assert read_destination(run.folder) is not None
    os.chown(run.folder.destination, 65534, 65534)
    assert read_destination(run.folder) is None


def test_destination_that_cannot_be_written_is_recorded(logs):
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        run.folder.destination.mkdir()
    with tachograph.init("x", mode="offline", resume=True, log_dir=str(logs), git=False):
        pass
    kinds = [record["kind"] for record in read(logs / "x").latest("telemetry_error")]
    assert kinds == ["destination_not_written"]


def test_destination_of_a_later_version_is_read(logs):
    with tachograph.init("x", mode="offline", log_dir=str(logs), git=False):
        pass
    known = {"server": SERVER, "mode": "cloud", "remote_control": True, "region": "north"}
    (logs / "x" / ".tacho" / "destination.json").write_text(json.dumps(known))
    assert read_destination(RunFolder(logs / "x")) == Destination(server=SERVER, mode="cloud", remote_control=True)


def test_destination_is_restored_with_a_deleted_folder(logs):
    with tachograph.init("x", mode="offline", log_dir=str(logs), flush_interval_s=0.05, git=False):
        wait_for(lambda: shutil.rmtree(logs, ignore_errors=True) or not logs.exists())
        wait_for(lambda: destination_of(logs) == {"server": None, "mode": "offline", "remote_control": False})


def test_destination_is_restored_with_its_folder(logs):
    with tachograph.init("x", mode="offline", log_dir=str(logs), flush_interval_s=0.05, git=False):
        wait_for(lambda: shutil.rmtree(logs / "x" / ".tacho", ignore_errors=True) or destination_of(logs) is None)
        wait_for(lambda: destination_of(logs) is not None)


def test_destination_moves_with_the_run(logs, script):
    """Another process starts a run of the same name after the folder was deleted."""
    other = """
        import sys, tachograph
        with tachograph.init("x", log_dir=sys.argv[1], git=False) as run:
            print("started", run.name, flush=True)
            sys.stdin.read()
        """
    with tachograph.init("x", mode="offline", log_dir=str(logs), git=False, flush_interval_s=0.05) as run:
        pause_checks(run)  # the writer notices nothing until the other run has started
        wait_for(lambda: shutil.rmtree(logs, ignore_errors=True) or not logs.exists())
        process = script(other, logs).process
        wait_for(lambda: "started x" in process.stdout.readline())
        run.backend._due_at["check"] = 0.0
        wait_for(lambda: destination_of(logs, "x-2"))
    assert run.name == "x-2"
    assert destination_of(logs) is None


@pytest.mark.parametrize(("server", "ending"), [(SERVER, ""), ("", " --server URL")])
def test_offline_run_prints_how_to_send_it(tmp_path, monkeypatch, capsys, server, ending):
    monkeypatch.chdir(tmp_path)
    run = tachograph.init("x", mode="offline", server=server, log_dir="my logs", git=False)
    capsys.readouterr()
    run.finish()
    run.finish()
    assert capsys.readouterr().out == f"[telemetry] Send it with: tacho sync 'my logs/x'{ending}\n"


def test_cloud_run_without_network_prints_how_to_send_it(logs, server, team, capsys):  # noqa: F811
    team.stop()
    run = tachograph.init("x", server=server, log_dir=str(logs), git=False)
    try:
        run.log(train_loss=1.0, step=0)
        assert run.flush()
        run.finish(timeout_s=0.5)
    finally:
        team.start()  # the fixture stops it
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last == [
        "[telemetry] server did not receive all records of 'x'; the journal has them",
        f"[telemetry] Send the rest with: tacho sync {logs / 'x'}",
    ]


def test_failed_offline_run_prints_how_to_send_it(script, logs):
    code = (
        "import sys, tachograph; tachograph.init('x', mode='offline', log_dir=sys.argv[1], git=False); raise ValueError"
    )
    _, out, _ = script(code, logs).wait()
    assert out.count("Send it with: tacho sync") == 1
    assert read(logs / "x").state == "failed"


def test_tacho_run_prints_how_to_send_an_offline_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["run", "--set", "mode=offline", "--name", "x", "--", sys.executable, "-c", "1"])
    assert result.exit_code == 0, result.output
    assert result.output.endswith("[telemetry] Send it with: tacho sync logs/x --server URL\n")


def test_other_ranks_do_not_mark_the_run(logs, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("tachograph.recorder._writer._MAX_FOLDER_WAIT_S", 0.25)
    with tachograph.init("x", mode="offline", log_dir=str(logs), git=False):
        assert destination_of(logs) is None
    assert "tacho sync" not in capsys.readouterr().out


# Disabled ------------------------------------------------------------------------------------------------------------

LEAVES_NOTHING = """
    import os, signal, sys, threading
    import tachograph as tacho
    import tachograph.spans, tachograph.recorder
    tacho.init, tacho.application  # import what every run needs

    def state():
        handlers = [signal.getsignal(getattr(signal, name)) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT")]
        hooks = [sys.excepthook, threading.excepthook, sys.exit]
        return handlers, hooks, threading.enumerate(), sorted(os.listdir()), len(os.listdir("/proc/self/fd"))

    modules, before = set(sys.modules), state()
    run = tacho.init("x", {setting}, config={"lr": 1e-3, "telemetry": {"sinks": ["tensorboard"]}}, parent="none")
    assert run.folder is None and run.path is None and not run.enabled
    scale = run.control("lr_scale", 0.5, min=0.1, max=2.0)
    tacho.set_training_config(global_batch_size=8)
    completions = tacho.Completions(run)
    assert tacho.current_run() is run

    @tacho.profile_function
    def profiled():
        return 5

    @tacho.timed_span("decorated")
    def decorated():
        return 6

    with tacho.application() as app, tacho.training_loop(0) as loop:
        assert (profiled(), decorated()) == (5, 6)
        for step in range(3):
            with tacho.training_iteration(num_samples=4), tacho.data_loading(), tacho.forward(), tacho.backward():
                with tacho.optimizer_update(), tacho.zero_grad(), tacho.timed_span("x", {"a": 1}) as span:
                    pass
            with tacho.profile_block("x"), tacho.validation_loop(), tacho.validation_iteration():
                pass
            with tacho.testing_loop(), tacho.testing_iteration(), tacho.checkpoint_save(step, path="model.pt"):
                pass
            run.log({"train_loss": object()}, step=step, lr=1.0)
            tacho.log(train_loss=1.0)
            run.log_epoch(1, {"a": 1})
            run.log_validation({"loss": 1})
            run.log_test({"loss": 1})
            run.log_checkpoint("model.pt", step=step, ema=True)
            run.log_parent("elsewhere")
            run.event("e", step=1, a=1)
            run.update_config({"a": 1})
            run.log_summary({"best": 1})
            run.log_completions([{"completion": "x"}], step=step)
            run.log_error(ValueError("x"))
            completions.add(step, completion="x", reward=1.0)
            assert not completions.maybe_flush(1000) and not len(completions)
            assert not run.should_stop and not run.should_checkpoint
            assert (scale.value, run.log_every, run.flush()) == (0.5, 1, True)
            assert tacho.ab("a", "b") == "a"
    for item in (app, loop, span):
        item.add_attribute("a", 1)
        item.add_attributes({"b": 2})
        assert item.duration_msec() >= 0
        assert item.to_json()["name"]
    assert span.active and span.parent_span is not None and span.parent_span.parent_span is None
    event = tachograph.spans.Event.create("e")
    assert span.add_event(event) is event
    assert span.attributes == {} and len(span.events) == 1
    span.stop()
    span.name = "another"
    assert span.name_str == "disabled"
    after = state()
    assert after == before, (before, after)
    assert run.finish() and run.finish() and run.status == "finished"
    new = set(sys.modules) - modules
    assert not new, sorted(new)
    assert state() == before
    with tacho.training_iteration(), tacho.timed_span("after the end"):
        tacho.log(train_loss=1.0)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("setting", ["mode='disabled'", "enabled=False", "mode='disabled', server='https://x.org'"])
def test_disabled_run_leaves_nothing(tmp_path, script, setting):
    folder = tmp_path / "empty"
    folder.mkdir()
    code, out, err = script(LEAVES_NOTHING.replace("{setting}", setting), cwd=folder).wait()
    assert (code, out, err) == (0, "", "")
    assert not list(folder.iterdir())


def test_callbacks_of_a_disabled_run(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACHO_MODE", "disabled")
    names = [name for name in one_logger.__all__ if name.startswith("on_")]
    assert len(names) == 25
    one_logger.on_app_start()
    run = tachograph.current_run()
    for name in sorted(names, key=lambda name: (name.endswith("_end"), name)):  # all starts first
        if not name.startswith("on_app"):
            span = getattr(one_logger, name)()
            assert span is None or (span.active and span.add_attribute("a", 1))
    one_logger.on_app_end()
    assert run.status == "finished"
    assert not caplog.records
    assert not list(tmp_path.iterdir())


def test_spans_are_recorded_after_a_disabled_run(logs):
    with tachograph.init("off", mode="disabled", log_dir=str(logs)):
        kept = tachograph.forward()
        iteration = tachograph.training_iteration()

        @tachograph.training_iteration()
        def step() -> None:
            with kept:
                pass

        with iteration, iteration:
            step()
    with tachograph.init("on", log_dir=str(logs), git=False), tachograph.training_loop(0):
        for _ in range(3):
            step()
        with iteration, tachograph.timed_span("x"):
            pass
    history = read(logs / "on")
    assert {span.name for span in history.spans()} == {"training_loop", "x"}
    update = next(record for record in history.latest("event") if record["name"] == "training_metrics_update")
    assert update["current_iteration"] == 3
    assert not (logs / "off").exists()


def test_disabled_run_inside_a_recorded_one(logs):
    """The recorded run keeps its open spans, and receives everything again after the disabled one has ended."""
    with tachograph.init("on", log_dir=str(logs), git=False), tachograph.timed_span("outer"):
        with tachograph.init("off", mode="disabled"):
            tachograph.log(a=1.0)
            with tachograph.timed_span("inner"):
                pass
        tachograph.log(a=2.0)
        with tachograph.timed_span("later"):
            pass
    history = read(logs / "on")
    assert {span.name for span in history.spans()} == {"outer", "inner", "later"}
    assert history.series("a").values == [2.0]


def test_recorded_run_inside_a_disabled_one(logs):
    with tachograph.init("off", mode="disabled"):
        with tachograph.init("on", log_dir=str(logs), git=False), tachograph.timed_span("x"):
            tachograph.log(a=1.0)
        with tachograph.timed_span("y"), tachograph.profile_block("z"):
            tachograph.log(a=2.0)
    history = read(logs / "on")
    assert {span.name for span in history.spans()} == {"x"}
    assert history.series("a").values == [1.0]


def test_run_given_to_a_span_wins_over_a_disabled_one():
    run = MemoryRun()
    with tachograph.init("off", mode="disabled") as off, tachograph.application(run=run):
        with (
            tachograph.timed_span("x", run=run),
            tachograph.timed_span("y", run=off),
            tachograph.training_loop(run=run),
        ):
            pass
    run.finish()
    names = {record["name"] for record in run.records if record["event"] in ("span_start", "span_stop", "span")}
    assert names == {"application", "x", "training_loop"}


def test_setup_errors_are_raised_although_disabled():
    with tachograph.init("off", mode="disabled") as run:
        with pytest.raises(ControlError):
            run.control("lr scale", 1.0)
        with pytest.raises(ConfigError, match="global_batch_sise"):
            tachograph.set_training_config(global_batch_sise=8)
        with pytest.raises(ConfigError, match="expected a name"):
            tachograph.timed_span("")
    with pytest.raises(ConfigError, match="log_evry"):
        tachograph.init("off", mode="disabled", log_evry=5)
