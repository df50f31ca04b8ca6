"""The audit log: one line for each change, by whom, also if it was refused; no secrets; nothing lost in rotation."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tachograph.cli._main import main
from tachograph.journal import RunFolder
from tachograph.server._routes import ROUTES
from tachograph.server.team import AuditEntry, AuditLog, KeyRing, keys_path, read_audit_log
from tests.remote.conftest import Team, send_all

MakeRun = Callable[..., RunFolder]
RUN = "default/run"
SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"
RENAME = {"op": "set", "field": "display_name", "value": "best"}
CHANGES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "POST /api/v1/runs/{run}/controls": ("control", {"values": {"log_every": 5}}),
    "POST /api/v1/runs/{run}/annotations": ("annotate", {"changes": [RENAME]}),
    "POST /api/v1/bulk": ("annotate", {"action": "annotate", "runs": [RUN], "changes": [{**RENAME, "value": "x"}]}),
    "PUT /api/v1/views/{slug}": ("save_view", {"name": "mine", "filter": "loss < 1"}),
    "DELETE /api/v1/views/{slug}": ("delete_view", None),
}


def tacho(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"COLUMNS": "200"})


def log_of(team: Team, *, skip: int = 0) -> list[AuditEntry]:
    entries = [entry for entry in read_audit_log(team.data_dir) if not entry.action.endswith("_key")]
    return entries[skip:]


def request(team: Team, route: str, body: dict[str, Any] | None, headers: dict[str, str]) -> int:
    method, path = route.split()
    path = path.replace("{run}", "default%2Frun").replace("{slug}", "mine")
    return team.client.request(method, path, json=body, headers=headers).status_code


def test_every_changing_route_leaves_one_line(team: Team, make_run: MakeRun):
    assert {f"{route.method} {route.path}" for route in ROUTES if route.method != "GET"} == CHANGES.keys()
    assert all(bool(route.action) == (route.method != "GET") for route in ROUTES)
    send_all(team.sender(make_run(ends=False), remote_control=True))
    admin = team.headers("admin", name="ada")
    read_only, write_only = team.headers("read", name="bob"), team.headers("write", name="ci")
    for route, (action, body) in CHANGES.items():
        num_before = len(log_of(team))
        assert request(team, route, body, {"Authorization": "Bearer tk_00000000_" + "x" * 43}) == 401
        assert request(team, route, body, {}) == 401
        assert log_of(team, skip=num_before) == []  # strangers cannot fill the log
        assert request(team, route, body, read_only) == 403
        assert request(team, route, body, write_only) == 403
        if body is not None:
            assert request(team, route, {"no": "such field"} if "views" not in route else {"name": 3}, admin) == 400
        refused = log_of(team, skip=num_before)
        assert [entry.user for entry in refused] == ["bob", "ci", *(["ada"] if body is not None else [])]
        assert {entry.outcome for entry in refused} == {"refused"}
        assert {entry.action for entry in refused} == {action}
        assert all(entry.reason.startswith(("403 not_allowed", "400 bad_body")) for entry in refused)
        num_before += len(refused)
        assert request(team, route, body, admin) in {200, 202}, route
        (entry,) = log_of(team, skip=num_before)
        assert (entry.user, entry.action, entry.outcome, entry.address) == ("ada", action, "done", "127.0.0.1")
        assert entry.key_id in team.token("admin", name="ada")
        assert entry.runs == ([] if "views" in route else [RUN])
    control, annotate, bulk, save, delete = (entry for entry in log_of(team) if entry.outcome == "done")
    assert (control.old, control.new) == ({"log_every": 1}, {"log_every": 5})
    assert (annotate.old, annotate.new) == ({"display_name": None}, {"display_name": "best"})
    assert (bulk.old, bulk.new) == ({RUN: {"display_name": "best"}}, {"display_name": "x"})
    assert save.new == delete.old == {"slug": "mine", "name": "mine", "filter": "loss < 1"}


def test_trash_and_restore_name_their_runs_and_failures(team: Team, make_run: MakeRun):
    send_all(team.sender(make_run(), team.token("write", name="ci", project="nlp")))
    headers = team.headers("admin", name="ada", project="nlp")
    for action, runs in (("trash", ["run", "no-such"]), ("restore", ["run"]), ("trash", ["no-such"])):
        body = {"action": action, "runs": runs}
        assert team.client.post("/api/v1/bulk", json=body, headers=headers).status_code == 200
    lines = [(entry.action, entry.runs, entry.outcome, entry.project) for entry in log_of(team)]
    assert lines == [
        ("trash", ["run", "no-such"], "partly", "nlp"),
        ("restore", ["run"], "done", "nlp"),
        ("trash", ["no-such"], "failed", "nlp"),
    ]
    assert "no-such" in log_of(team)[0].reason


def test_log_is_private_and_has_no_secrets(team: Team, make_run: MakeRun):
    send_all(team.sender(make_run()))
    headers, token = team.headers("admin", name="ada"), team.token("read", name="bob")
    changes = [
        {"op": "set", "field": "note", "value": f"the key is {token} and {SECRET}, " + "long " * 100},
        {"op": "set", "field": "custom.api_key", "value": "hunter2hunter2"},
    ]
    url = "/api/v1/runs/default%2Frun/annotations"
    assert team.client.post(url, json={"changes": changes}, headers=headers).status_code == 200
    team.app.keys.rotate("bob")
    team.app.keys.revoke("ada")
    path = team.data_dir / ".server" / "audit.jsonl"
    text = path.read_text()
    for secret in (SECRET, "hunter2", *(token[12:] for token in team.tokens.values())):
        assert secret not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(text) < 4_000
    actions = [json.loads(line)["action"] for line in text.splitlines()]
    assert [action for action in actions if action.endswith("_key")] == [
        "create_key",
        "create_key",
        "create_key",
        "rotate_key",
        "revoke_key",
    ]


def test_rotation_and_torn_lines_lose_nothing(tmp_path: Path):
    log = AuditLog(tmp_path, max_file_bytes=2_000)
    threads = [
        threading.Thread(target=lambda user=f"user-{number}": [log.add("annotate", user, new=i) for i in range(40)])
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with (tmp_path / ".server" / "audit.jsonl").open("ab") as file:
        file.write(b'{"time": 1, "act')  # a writer was killed
    log.add("trash", "last")
    entries = list(read_audit_log(tmp_path))
    assert len(list((tmp_path / ".server").glob("audit-*.jsonl"))) > 3
    assert entries[-1].user == "last"
    for number in range(4):
        assert [entry.new for entry in entries if entry.user == f"user-{number}"] == list(range(40))
    assert [entry.user for entry in read_audit_log(tmp_path, since=entries[-1].time)] == ["last"]


def test_commands_on_the_data_folder_are_audited(team: Team, make_run: MakeRun):
    send_all(team.sender(make_run(ends=False), remote_control=True))
    team.stop()  # it holds the run
    data = str(team.data_dir)
    result = tacho("control", f"{data}/{RUN}", "--log-every", "3")  # without --log-dir
    assert result.exit_code == 0, result.output
    (entry,) = log_of(team)
    assert (entry.action, entry.project, entry.runs) == ("control", "default", ["run"])
    assert (entry.old, entry.new) == ({"log_every": 1}, {"log_every": 3})
    for arguments in (
        ["tag", RUN, "+paper"],
        ["rename", RUN, "best"],
        ["note", RUN, "odd"],
        ["mv", RUN, "default/moved", "--force"],
        ["rm", "default/moved", "--force"],
        ["trash", "restore", "default/moved"],
        ["prune", "--where", 'name ~ "moved"', "--do", "trash", "--yes", "--force"],
        ["trash", "empty", "--yes"],
    ):
        result = tacho(*arguments, "--log-dir", data)
        assert result.exit_code == 0, (arguments, result.output)
    team.start()
    entries = log_of(team, skip=1)
    actions = [entry.action for entry in entries]
    assert actions == ["annotate", "annotate", "annotate", "move", "trash", "restore", "prune", "delete"]
    assert all("@" in entry.user and entry.runs and not entry.address for entry in entries)
    assert entries[1].old == {"display_name": None}
    result = tacho("audit", "--data", data, "--json", "--since", "1h")
    assert [json.loads(line)["action"] for line in result.output.splitlines()][-8:] == actions
    assert "default/moved" in tacho("audit", "--data", data).output


def test_commands_elsewhere_write_no_log(make_run: MakeRun):
    folder = make_run()
    assert tacho("tag", "run", "+paper", "--log-dir", str(folder.path.parent)).exit_code == 0
    assert not (folder.path.parent / ".server").exists()


def test_change_survives_a_log_that_cannot_be_written(team: Team, make_run: MakeRun, caplog: pytest.LogCaptureFixture):
    send_all(team.sender(make_run()))
    headers = team.headers("admin", name="ada")
    path = team.data_dir / ".server" / "audit.jsonl"
    path.unlink()
    path.mkdir()
    assert request(team, "POST /api/v1/runs/{run}/annotations", {"changes": [RENAME]}, headers) == 200
    assert "cannot write the audit log" in caplog.text
    caplog.clear()
    key, _ = KeyRing(keys_path(team.data_dir)).create("eve", ["read"])
    assert key.name == "eve"
    assert "cannot write the audit log" in caplog.text
