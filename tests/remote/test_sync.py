"""`tacho sync` and the modes `cloud` and `offline`, with a real server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tachograph
from tachograph.cli._main import main
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder, RunState, current_state
from tests.conftest import Script, wait_for
from tests.remote.conftest import Team
from tests.store import hears

OPTIONS: dict[str, Any] = {"git": False, "system_interval_s": 0, "console": False, "csv": False}


@pytest.fixture
def logs(tmp_path: Path, team: Team, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A log folder of a user who is logged in to the server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TACHO_LOG_DIR", "logs")
    log_in(team, team.token("write"))
    yield tmp_path / "logs"


def log_in(team: Team, token: str) -> None:
    result = CliRunner().invoke(main, ["login", team.url, "--key-stdin"], input=token)
    assert result.exit_code == 0, result.output


def tacho(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def record(name: str, num_steps: int = 10, **options: Any) -> RunFolder:
    with tachograph.init(name, **{**OPTIONS, **options}) as run:
        for number in range(num_steps):
            run.log(loss=float(number), step=number)
    assert run.folder is not None
    return run.folder


def same_on_server(team: Team, folder: RunFolder, project: str = "default") -> bool:
    copy = RunFolder(team.data_dir / project / folder.name)
    return copy.journal.exists() and copy.journal.read_bytes() == folder.journal.read_bytes()


def test_offline_run_is_sent_later(team: Team, logs: Path):
    folder = record("x", mode="offline", server=team.url, project="vision")
    assert not list(team.data_dir.glob("*/*/metrics.jsonl"))
    assert "left" in tacho("sync", "--status")
    assert f"to {team.url} as vision/x" in tacho("sync")
    assert same_on_server(team, folder, "vision")
    assert "has everything" in tacho("sync", "logs/x")
    assert f"x: complete at {team.url}" in tacho("sync", "--status")
    (status,) = json.loads(tacho("sync", "--status", "--json"))
    assert (status["copy"], status["num_left_bytes"]) == ("vision/x", 0)


LOCK = """
    import sys
    from tachograph.journal import RunFolder
    from tachograph.sinks import lock_export
    lock = lock_export(RunFolder(sys.argv[1]), sys.argv[2])
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_sync_does_not_wait_for_a_process_that_remains(team: Team, logs: Path, script: Callable[..., Script]):
    """It may wait for a minute after a failure, and the disk of the machine may go before that."""
    folder = record("x", mode="offline", server=team.url)
    other_sender = script(LOCK, folder.path, "server", preload="tachograph")
    hears(other_sender, "locked")
    assert "x: sent" in tacho("sync")
    assert same_on_server(team, folder)


def test_any_run_can_be_sent(team: Team, logs: Path):
    folder = record("x")
    assert "nothing to deliver" in tacho("sync")
    tacho("sync", "logs", "--server", team.url)
    assert same_on_server(team, folder)


def test_offline_run_without_a_server_goes_where_the_user_logged_in(team: Team, logs: Path):
    folder = record("x", mode="offline")
    tacho("sync")
    assert same_on_server(team, folder)


def test_sync_fails_unless_everything_arrived(team: Team, logs: Path, monkeypatch: pytest.MonkeyPatch):
    record("x", mode="offline", server=team.url)
    monkeypatch.setenv("TACHO_API_KEY", "tk_00000000_" + "x" * 43)
    assert "wrong, expired or revoked" in tacho("sync", code=1)
    monkeypatch.delenv("TACHO_API_KEY")
    tacho("logout", team.url)
    assert f"no access key for {team.url}" in tacho("sync", code=1)


def test_one_unknown_destination_does_not_stop_the_others(team: Team, logs: Path):
    known = record("known", mode="offline", server=team.url)
    record("unknown", mode="offline")
    token = team.token("write")
    tacho("logout", team.url)
    result = CliRunner().invoke(main, ["sync"], env={"TACHO_API_KEY": token})
    assert result.exit_code == 1
    assert "unknown: sending to a server failed" in result.output
    assert "pass --server URL" in result.output
    assert same_on_server(team, known)


def test_cloud_run_arrives_while_it_is_recorded(team: Team, logs: Path):
    with tachograph.init("x", mode="cloud", project="nlp", **OPTIONS) as run:
        assert run.folder is not None
        run.log(loss=1.0, step=1)
        copy = RunFolder(team.data_dir / "nlp" / "x")
        wait_for(lambda: copy.journal.exists() and b'"loss":1.0' in copy.journal.read_bytes())
        wait_for(lambda: current_state(copy) is RunState.RUNNING)
    wait_for(lambda: same_on_server(team, run.folder, "nlp"))
    wait_for(lambda: current_state(copy) is RunState.FINISHED)


def test_requests_from_the_server_reach_a_cloud_run(team: Team, logs: Path):
    steps = iter(range(1, 1_000_000))
    with tachograph.init("x", mode="cloud", remote_control=True, control_interval_s=0.1, **OPTIONS) as run:
        copy = RunFolder(team.data_dir / "default" / "x")
        wait_for(lambda: copy.journal.exists() and current_state(copy) is RunState.RUNNING)

        def asked() -> bool:
            run.log(loss=1.0, step=next(steps))
            answer = team.client.post(
                "/api/v1/runs/default%2Fx/controls",
                json={"values": {"log_every": 50}},
                headers=team.headers("read", "control"),
            )
            assert answer.status_code in {202, 409}, answer.text  # 409: the copy does not have the controls yet
            return answer.status_code == 202

        wait_for(asked)

        def applied() -> bool:
            run.log(loss=1.0, step=next(steps))
            return run.log_every == 50

        wait_for(applied)
        run.flush()
        assert run.folder is not None
        assert b'"server:read-control"' in run.folder.journal.read_bytes()


def test_requests_to_a_run_without_remote_control_are_rejected(team: Team, logs: Path):
    with tachograph.init("x", mode="cloud", **OPTIONS):
        copy = RunFolder(team.data_dir / "default" / "x")
        wait_for(lambda: copy.journal.exists() and current_state(copy) is RunState.RUNNING)
        answer = team.client.post(
            "/api/v1/runs/default%2Fx/controls",
            json={"values": {"stop": True}},
            headers=team.headers("read", "control"),
        )
        assert answer.status_code == 409
        assert "remote_control=True" in answer.text


def test_killed_trainer_is_sent_to_its_last_record(team: Team, logs: Path, script: Callable[..., Script]):
    program = """
        import sys, time
        import tachograph
        run = tachograph.init("x", mode="cloud", git=False, system_interval_s=0, csv=False)
        for step in range(200):
            run.log(loss=1.0, step=step)
        run.flush()
        print("ready", flush=True)
        time.sleep(600)
    """
    trainer = script(program)
    assert trainer.process.stdout is not None
    while trainer.process.stdout.readline().strip() != "ready":
        pass
    os.kill(trainer.process.pid, signal.SIGKILL)
    trainer.process.wait()
    folder = RunFolder(logs / "x")
    wait_for(lambda: same_on_server(team, folder))
    assert b'"global_step":199' in folder.journal.read_bytes()


@pytest.mark.expects_faults
def test_run_without_a_reachable_server_is_recorded(team: Team, logs: Path):
    team.stop()
    folder = record("x", mode="cloud", exit_timeout_s=0.2)
    try:
        wait_for(lambda: b'"event":"end"' in folder.journal.read_bytes(), "the end")  # also if it took longer
        assert "left" in tacho("sync", "--status")
    finally:
        team.start()
    # The process of the run is still trying, so either of the two sends it.
    wait_for(lambda: CliRunner().invoke(main, ["sync"]).exit_code == 0)
    assert same_on_server(team, folder)


def test_watch_sends_new_runs(team: Team, logs: Path, script: Callable[..., Script]):
    program = "import sys; from tachograph.cli._main import main; sys.exit(main(['sync', '--watch']))"
    watcher = script(program)
    try:
        for name in ("x", "y"):
            folder = record(name, mode="offline", server=team.url)
            wait_for(lambda folder=folder: same_on_server(team, folder))  # type: ignore[misc]
    finally:
        watcher.process.send_signal(signal.SIGINT)
    assert watcher.wait()[0] == 130


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "cloud", "server": "http://example.org"}, "not encrypted"),
        ({"mode": "cloud", "server": "https://user:secret@example.org"}, "user name or a password"),
        ({"mode": "cloud", "server": "https://example.org"}, "tacho login https://example.org"),
    ],
)
def test_mistakes_are_errors_of_init(logs: Path, options: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        tachograph.init("x", **OPTIONS, **options)
    assert "secret" not in str(caught.value)
    assert not (logs / "x").exists()
