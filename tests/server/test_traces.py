"""Traces: listing, download, and no access to other files."""

from __future__ import annotations

import os

import pytest

from tests.server.conftest import check_error
from tests.store import END, START, step, write

NAME = "step-000004-2.json.gz"


@pytest.fixture
def traced(server, logs):
    """The traces folder of a run, with one trace that has a record and one that has none."""
    record = {"event": "event", "time": 1_030.0, "name": "trace", "path": f"traces/{NAME}", "duration_s": 0.25}
    write(logs / "r", [START, *(step(i, loss=1.0) for i in range(20)), record, END])
    folder = logs / "r" / "traces"
    folder.mkdir()
    for time, name in enumerate(("step-000002-1.json.gz", NAME)):
        (folder / name).write_bytes(b"\x1f\x8b" + b"x" * (300_000 + time))
        os.utime(folder / name, (2_000 + time, 2_000 + time))
    return folder


def test_run_without_traces_lists_none(client):
    answer = client.get("/api/v1/runs/r/traces").json()
    assert answer["traces"] == []
    assert answer["version"]


def test_stored_traces_are_listed_newest_first(client, traced):
    (traced / "notes.txt").write_text("mine")
    (traced / f".{NAME}.plain.tmp").write_text("half")
    (traced / "step-000009-9.json.gz").symlink_to(traced / NAME)
    newest, oldest = client.get("/api/v1/runs/r/traces").json()["traces"]
    assert newest == {
        "name": NAME,
        "time": 2_001.0,
        "first_step": 4,
        "num_steps": 2,
        "size_bytes": 300_003,
        "duration_s": 0.25,
    }
    assert (oldest["name"], oldest["duration_s"]) == ("step-000002-1.json.gz", None)


def test_trace_download_is_unmodified(client, traced):
    answer = client.get(f"/api/v1/runs/r/traces/{NAME}")
    assert answer.status_code == 200
    assert answer.content == (traced / NAME).read_bytes()
    assert answer.headers["content-type"] == "application/gzip"
    assert answer.headers["content-disposition"] == f'attachment; filename="{NAME}"'
    assert answer.headers["content-length"] == "300003"
    assert "content-encoding" not in answer.headers  # otherwise a browser would decompress it
    head = client.head(f"/api/v1/runs/r/traces/{NAME}")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "300003", b"")


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "step-000099-1.json.gz",
        "step-1.json.gz",
        f"{NAME}.txt",
        f" {NAME}",
        f"{NAME}%0a",
        "..%2fmetrics.jsonl",
        "..%2f..%2fr%2fmetrics.jsonl",
        "%2fetc%2fpasswd",
        f".%2f{NAME}",
        "step-000004-2.json.gz%00",
        "..",
        "%2e%2e",
    ],
)
def test_other_files_cannot_be_downloaded(server, traced, name):
    status, _, body = server.get_raw(f"/api/v1/runs/r/traces/{name.replace(' ', '%20')}")
    assert status == 404
    assert b"train" not in body
    assert b"loss" not in body


def test_linked_traces_are_not_served(client, traced, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    for name, target in (("step-000009-9.json.gz", tmp_path / "secret"), ("step-000009-8.json.gz", traced / NAME)):
        (traced / name).symlink_to(target)
        assert "no trace" in check_error(client.get(f"/api/v1/runs/r/traces/{name}"), 404, "no_such_trace")


def test_linked_traces_folder_is_not_served(client, traced, tmp_path):
    traced.rename(tmp_path / "moved")
    traced.symlink_to(tmp_path / "moved")
    assert client.get("/api/v1/runs/r/traces").json()["traces"] == []
    check_error(client.get(f"/api/v1/runs/r/traces/{NAME}"), 404, "no_such_trace")


def test_named_pipe_does_not_block(client, traced):
    os.mkfifo(traced / "step-000009-9.json.gz")
    check_error(client.get("/api/v1/runs/r/traces/step-000009-9.json.gz"), 404, "no_such_trace")


def test_unknown_run_has_no_traces(client):
    check_error(client.get("/api/v1/runs/nobody/traces"), 404, "no_such_run")
    check_error(client.get(f"/api/v1/runs/nobody/traces/{NAME}"), 404, "no_such_run")


def test_profiles_are_series_not_events(client, logs):
    profile = {"event": "profile", "time": 1_010.5, "global_step": 10, "profiling/forward": 0.25}
    write(logs / "r", [START, *(step(i, loss=1.0) for i in range(20)), profile, END])
    metrics = {item["name"]: item for item in client.get("/api/v1/runs/r/metrics").json()["metrics"]}
    assert (metrics["profiling/forward"]["kind"], metrics["profiling/forward"]["last_step"]) == ("profile", 10)
    (series,) = client.get("/api/v1/runs/r/series", params={"name": "profiling/forward"}).json()["series"]
    assert (series["lines"][0]["x"], series["lines"][0]["y"]) == ([10.0], [0.25])
    assert "profile" not in {item["event"] for item in client.get("/api/v1/runs/r/records").json()["records"]}


@pytest.mark.parametrize("steps", [0, 1001, 2.5, True])
def test_invalid_step_count_is_rejected(client, logs, steps):
    write(logs / "waiting", [START, *(step(i, loss=1.0) for i in range(20))])
    answer = client.post("/api/v1/runs/waiting/controls", json={"values": {"profile_steps": steps}})
    assert "from 1 to 1000" in check_error(answer, 409, "not_steerable")
    assert not (logs / "waiting" / "control.json").exists()


def test_actions_are_not_listed_as_controls(client, logs):
    asked = {"event": "event", "time": 1_001.0, "name": "control_ack", "control": "profile_steps", "status": "applied"}
    write(logs / "r", [START, step(0, loss=1.0), asked])
    answer = client.get("/api/v1/runs/r/controls").json()
    assert answer["requests"] == ["checkpoint_now", "dump_now", "profile_steps", "stop"]
    assert [control["name"] for control in answer["controls"]] == ["log_every"]
    assert [(item["control"], item["status"]) for item in answer["answers"]] == [("profile_steps", "applied")]
