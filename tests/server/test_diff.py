"""How several runs differ, and which config keys go with a result, over the API."""

from __future__ import annotations

import math
import time

import pytest

from tachograph.journal import RunFolder
from tachograph.reader.captured_code import write_code_file
from tests.conftest import HANG_S
from tests.server.conftest import check_error
from tests.store import END, START, step, write


def get(client, path, **parameters):
    """Ask until all summaries are computed."""
    deadline_s = time.monotonic() + HANG_S
    while True:
        response = client.get(f"/api/v1/{path}", params=parameters)
        assert response.status_code == 200, response.text
        if (page := response.json())["indexed"] >= 1:
            return page
        assert time.monotonic() < deadline_s


def write_run(path, config, loss, *, packages="", patch=b""):
    folder = write(path, [])
    code = {"event": "code", "time": 1_001.0}
    if packages:
        code["packages"] = {"file": write_code_file(folder, packages.encode(), ".txt")}
    if patch:
        code["diff"] = {"file": write_code_file(folder, patch, ".patch"), "num_files": 1}
    write(path, [{**START, "config": config}, code, step(1, val_loss=loss), END])


def test_diff_shows_config_beside_results(logs, client):
    common = {"model": {"layers": 2, "width": 64}, "data_path": "/data/a"}
    write_run(logs / "a", {**common, "lr": 0.1, "output_dir": "/out/a"}, 2.0, packages="numpy==1.26\ntorch==2.1\n")
    write_run(
        logs / "b",
        {**common, "lr": math.nan, "run_name": "b"},
        1.0,
        packages="numpy==1.26\ntorch==2.2\n",
        patch=b"diff --git a/x b/x\n",
    )
    write_run(logs / "c", {"model": {"layers": 4, "width": 64}, "data_path": "/data/b", "lr": 0.1}, math.inf)
    page = get(client, "diff", run=["a", "b", "c"])
    assert [(run["name"], run["has_patch"]) for run in page["runs"]] == [("a", False), ("b", True), ("c", False)]
    assert {key["name"]: key["values"] for key in page["config"]} == {
        "model.layers": [2, 2, 4],
        "data_path": ["/data/a", "/data/a", "/data/b"],
        "lr": [0.1, "NaN", 0.1],
    }
    assert (page["num_equal"], page["num_ignored"]) == (1, 2)
    assert page["results"] == [
        {"field": "val_loss.best", "direction": -1, "best": "b", "values": [2.0, 1.0, None]},
    ]
    # A run of which the packages are unknown differs in none.
    assert page["packages"] == [{"name": "torch", "values": ["2.1", "2.2", None]}]
    assert "c: no packages: it was not captured" in page["notes"]
    assert [each["name"] for each in page["git"]] == ["patch"]

    page = get(client, "diff", filter="config.model.layers=2", all=True, code=False, column=["val_loss", "steps"])
    assert [run["name"] for run in page["runs"]] == ["a", "b"] and page["packages"] == []
    keys = {key["name"]: key for key in page["config"]}
    assert keys["output_dir"] == {"name": "output_dir", "values": ["/out/a", None], "differs": True, "is_ignored": True}
    assert keys["model.width"] == {"name": "model.width", "values": [64], "differs": False, "is_ignored": False}
    assert [each["field"] for each in page["results"]] == ["val_loss", "steps"]
    page = get(client, "diff", run=["a", "nosuch"])
    assert ([run["name"] for run in page["runs"]], page["missing"]) == (["a"], ["nosuch"])
    check_error(client.get("/api/v1/diff", params={"run": ["nosuch", "../a"]}), 404, "no_such_run")
    check_error(client.get("/api/v1/diff", params={"run": "a", "filter": "b"}), 409, "incomplete")
    check_error(client.get("/api/v1/diff", params={"filter": "lr>>"}), 409, "bad_filter")


def test_diff_of_source_files_counts_versions(logs, client):
    for name, text in (("a", b"x = 1\n"), ("b", b"x = 2\n"), ("c", b"x = 1\n")):
        folder = write(logs / name, [])
        file = write_code_file(RunFolder(logs / name), text, ".py")
        source = b'[{"path":"train.py","file":"%s","size_bytes":6}]' % file.encode()
        listed = write_code_file(folder, source, ".json")
        write(logs / name, [START, {"event": "code", "time": 1_001.0, "files": {"file": listed}}, END])
    page = get(client, "diff", run=["a", "b", "c"])
    assert page["files"] == [{"path": "train.py", "versions": [1, 2, 1]}]


@pytest.fixture
def sweep(logs):
    """Write 32 runs: the loss follows `lr`, except that neighbours are swapped; one of them has no finite loss."""
    for number in range(32):
        rank = number + 1 if number % 2 == 0 else number - 1
        config = {
            "lr": 10.0 ** (number / 10),
            "steps": 1_000 - number,
            "optimizer": "sgd" if number % 2 else "adam",
            "schedule": ("a", "b", "c")[number % 3],
            "seed": number,
            "output_dir": f"/out/{number}",
        }
        loss = math.nan if number == 31 else 1.0 + rank
        write(logs / f"run-{number:02d}", [{**START, "config": config}, step(1, val_loss=loss), END])


def test_importance_is_the_explained_share(sweep, client):
    page = get(client, "importance", filter="config.lr>0", metric="val_loss.min")
    ranking = page["ranking"]
    assert (ranking["num_runs"], ranking["num_missing"]) == (31, 1)
    assert ranking["reason"] is None and page["direction"] == -1
    first = ranking["keys"][0]
    assert (first["key"], first["together"]) == ("lr", ["steps"])
    assert 0.8 < first["low"] <= first["share"] <= first["high"] <= 1.0
    assert ranking["explained_share"] > 0.8
    assert [each["key"] for each in ranking["not_ranked"]] == ["seed"]


def test_importance_needs_enough_runs(sweep, client):
    names = [f"run-{number:02d}" for number in range(7)]
    ranking = get(client, "importance", run=names)["ranking"]
    assert (ranking["field"], ranking["keys"]) == ("val_loss.best", [])
    assert ranking["reason"] == "Too few runs: 7 have a result; at least 8 are needed."
    check_error(client.get("/api/v1/importance", params={"run": names, "metric": "nosuch.min"}), 404, "no_such_metric")
