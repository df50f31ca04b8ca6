"""The captured code of runs."""

from __future__ import annotations

import math

from tachograph.journal import RunFolder
from tachograph.reader.captured_code import write_code_file
from tests.server.conftest import check_error
from tests.store import START, write


def write_run(path, config, patch):
    write(path, [])
    name = write_code_file(RunFolder(path), patch, ".patch")
    code = {"event": "code", "time": 1_001.0, "diff": {"file": name, "num_files": 1}, "determinism": {"torch_seed": 1}}
    write(path, [{**START, "config": config}, code])


def test_compare_two_runs_and_download_a_patch(logs, client):
    write_run(logs / "r", {"lr": math.nan, "seed": 1}, b"diff --git a/x b/x\n")
    write_run(logs / "other", {"lr": 0.5, "seed": 1}, b"diff --git a/x b/x\nnew\n")
    found = client.get("/api/v1/runs/r/diff/other").json()
    assert found["config"] == [{"name": "lr", "first": "NaN", "second": 0.5}]
    assert [each["name"] for each in found["git"]] == ["patch"]
    assert "r: no packages: it was not captured" in found["notes"]
    assert client.get("/api/v1/runs/r").json()["code"]["diff"]["num_files"] == 1
    answer = client.get("/api/v1/runs/r/patch")
    assert answer.content == b"diff --git a/x b/x\n" and "attachment" in answer.headers["content-disposition"]
    check_error(client.get("/api/v1/runs/r/diff/nosuch"), 404, "no_such_run")


def test_odd_code_records_are_harmless(logs, client):
    for odd in ({"diff": {"file": "../../metrics.jsonl"}, "files": 3, "packages": {"file": 7}}, {"diff": "x"}, {}):
        write(logs / "r", [START, {"event": "code", "time": "late", **odd}])
        assert client.get("/api/v1/runs/r/diff/r").status_code == 200
        check_error(client.get("/api/v1/runs/r/patch"), 404, "no_patch")
