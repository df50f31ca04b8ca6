"""The table of runs, annotations and actions on several runs, over the API."""

from __future__ import annotations

import csv
import io
import math
import time

import pytest

from tests.conftest import HANG_S
from tests.server.conftest import check_error
from tests.store import END, START, step, write


@pytest.fixture
def client(tmp_path, serve):
    for number in range(4):
        config = {"lr": 10.0 ** -(3 + number // 2), "seed": number % 2, "same": 1}
        start = {**START, "run_id": f"id{number}", "time": 1_000.0 + number, "config": config, "tags": ["base"]}
        losses = [2.0, 1.0 + number, math.nan if number == 3 else 1.5 + number]
        steps = [step(i, val_loss=loss) for i, loss in enumerate(losses)]
        write(tmp_path / f"run-{number}", [start, *steps, END])
    return serve(tmp_path).client


def get(client, path, **parameters):
    response = client.get(f"/api/v1/{path}", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def post(client, path, body, status=200):
    response = client.post(f"/api/v1/{path}", json=body)
    assert response.status_code == status, response.text
    return response.json()


def names(page):
    return [row["name"] for row in page["rows"]]


def full_table(client, **parameters):
    """Ask until all summaries are computed."""
    deadline_s = time.monotonic() + HANG_S
    while (page := get(client, "table", **parameters))["indexed"] < 1:
        assert time.monotonic() < deadline_s
    return page


def test_table_filters_sorts_and_returns_columns(client):
    page = full_table(client, filter="config.lr=1e-3", column=["val_loss.min", "config.seed", "started", "config.same"])
    assert [(row["name"], row["values"]) for row in page["rows"]] == [
        ("run-1", [2.0, 1, 1_001.0, 1]),
        ("run-0", [1.0, 0, 1_000.0, 1]),
    ]
    assert (page["num_matching"], page["num_runs"], page["problems"]) == (2, 4, [])
    columns = {column["field"]: column for column in page["columns"]}
    assert columns["val_loss.min"] == {
        "field": "val_loss.min", "kind": "number", "direction": -1, "best": "run-0", "differs": True,
        "low": 1.0, "high": 2.0,
    }  # fmt: skip
    assert columns["started"]["kind"] == "time"
    assert not columns["config.same"]["differs"]
    assert names(full_table(client, sort="val_loss.max")) == ["run-0", "run-1", "run-2", "run-3"]
    assert names(full_table(client, sort="-val_loss.max", limit=1, offset=1)) == ["run-2"]
    assert full_table(client, filter="run-3", column=["val_loss.last"])["rows"][0]["values"] == ["NaN"]


def test_lines_of_changed_runs_are_made_again(client, tmp_path):
    def lines():
        page = full_table(client, sort="name", column=["name", "val_loss.last", "note", "state"])
        return [(row["name"], row["place"], *row["values"]) for row in page["rows"]]

    before = [
        (f"run-{number}", number, f"run-{number}", "NaN" if number == 3 else 1.5 + number, None, "finished")
        for number in range(4)
    ]
    assert lines() == lines() == before
    post(client, "runs/run-2/annotations", {"changes": [{"field": "note", "value": "best so far"}]})
    noted = [(*before[2][:4], "best so far", "finished") if number == 2 else before[number] for number in range(4)]
    assert lines() == lines() == noted
    # A run that started before all others changes their places, and a repeated one has other values.
    start = {**START, "run_id": "earlier", "time": 1.0}
    write(tmp_path / "run-4", [start, step(0, val_loss=7.0), END])
    write(tmp_path / "run-0", [{**START, "run_id": "again", "time": 1_000.0}, step(0, val_loss=8.0), step(1), END])
    after = [(name, place + 1, *values) for name, place, *values in noted]
    after[0] = ("run-0", 1, "run-0", 8.0, None, "finished")
    assert lines() == lines() == [*after, ("run-4", 0, "run-4", 7.0, None, "finished")]


def test_place_of_a_run_is_its_order_of_start_among_all(client):
    page = get(client, "table", filter="config.lr=1e-3", sort="name")
    assert [(row["name"], row["place"]) for row in page["rows"]] == [("run-0", 0), ("run-1", 1)]
    page = get(client, "table", offset=1, limit=2)
    assert [(row["name"], row["place"]) for row in page["rows"]] == [("run-2", 2), ("run-1", 1)]


def test_problems_of_an_expression_have_a_position(client):
    page = full_table(client, filter="steps > ")
    assert page["rows"] == []
    assert page["problems"] == [{"message": "expected a value after >", "position": 8}]
    full_table(client, column=["val_loss.min"])
    page = full_table(client, filter="run config.lrr>1", column=["val_los.min"])
    assert [problem["position"] for problem in page["problems"]] == [4, None]
    assert "config.lr" in page["problems"][0]["message"]
    assert "val_loss.min" in page["problems"][1]["message"]


def test_groups_have_mean_spread_and_best(client):
    full_table(client, column=["val_loss.min"])
    page = get(client, "table/groups", by=["config"], column=["val_loss.min"])
    assert page["by"] == ["config.lr"]
    assert [(group["key"], group["runs"]) for group in page["groups"]] == [
        ([1e-4], ["run-3", "run-2"]),
        ([1e-3], ["run-1", "run-0"]),
    ]
    assert page["groups"][1]["cells"][0]["mean"] == 1.5
    assert page["groups"][1]["cells"][0]["best_run"] == "run-0"
    assert client.get("/api/v1/table/groups", params={"by": list("abcd")}).status_code == 400


def test_fields_are_listed_for_completion(client):
    changes = [{"op": "add", "field": "tags", "value": "paper"}, {"field": "note", "value": "x"}]
    post(client, "runs/run-0/annotations", {"changes": changes})
    full_table(client, column=["config.lr"])
    page = get(client, "table/fields")
    fields = {field["field"]: field for field in page["fields"]}
    assert fields["config.lr"] == {
        "field": "config.lr", "kind": "number", "num_runs": 4, "differs": True, "varies": True, "is_label": False,
        "values": [],
    }  # fmt: skip
    assert fields["state"]["values"] == ["finished"]
    assert fields["tags"]["values"] == ["base", "paper"]
    assert (fields["tags"]["kind"], fields["tags"]["differs"]) == ("list", True)
    assert fields["note"]["num_runs"] == 1
    assert fields["note"]["differs"]
    assert not fields["config.same"]["differs"]
    assert "val_loss.last" in fields
    assert "val_loss.min" not in fields
    assert "at_min" in page["aggregates"]
    assert "goodput" not in fields


def test_fields_of_runs_that_match_tell_what_varies(client, tmp_path):
    for index, (arch, wd) in enumerate((("resnet18", 0.0), ("resnet50", 0.0), ("resnet50", 0.1))):
        config = {"arch": arch, "wd": wd, "seed": index, "out_dir": f"/tmp/{index}", "data_path": f"/data/{index}"}
        write(tmp_path / f"classifier-{index}", [{**START, "run_id": f"c{index}", "config": config}, step(0), END])
    full_table(client, column=["config.lr"])
    page = get(client, "table/fields", filter="config.arch:resnet50")
    config = {field["field"]: field for field in page["fields"] if field["field"].startswith("config.")}
    assert "config.lr" not in config
    assert not config["config.arch"]["varies"]
    assert {name for name, field in config.items() if field["varies"] and not field["is_label"]} == {
        *("config.wd", "config.data_path"),
    }
    assert {name for name, field in config.items() if field["is_label"]} == {"config.seed", "config.out_dir"}
    assert get(client, "table/fields", filter="steps > ")["fields"] == []


def test_annotations_are_changed_and_undone(client):
    changes = [
        {"op": "set", "field": "note", "value": "first"},
        {"op": "add", "field": "tags", "value": "paper"},
        {"op": "mark", "global_step": 2, "text": "here"},
    ]
    done = post(client, "runs/run-0/annotations", {"changes": changes})
    assert done["annotations"]["values"] == {"note": "first"}
    assert done["annotations"]["tags"] == ["base", "paper"]
    assert done["annotations"]["marks"][0]["global_step"] == 2
    assert get(client, "runs/run-0/annotations") == done["annotations"]
    assert names(full_table(client, filter="tag:paper")) == ["run-0"]
    undone = post(client, "runs/run-0/annotations", {"changes": done["undo"]})
    assert undone["annotations"] == {"values": {}, "tags": ["base"], "marks": []}
    assert client.get("/api/v1/runs/nothing/annotations").status_code == 404
    bad = post(client, "runs/run-0/annotations", {"changes": [{"field": "rating", "value": 9}]}, 409)
    assert "0 to 5" in bad["error"]["message"]


def test_bulk_actions_report_each_run_and_can_be_undone(client):
    change = {"op": "set", "field": "archived", "value": True}
    done = post(client, "bulk", {"runs": ["run-0", "nothing", "run-1"], "changes": [change]})
    assert [(result["run"], result["error"] is None) for result in done["results"]] == [
        ("run-0", True),
        ("nothing", False),
        ("run-1", True),
    ]
    assert done["num_failed"] == 1
    assert names(full_table(client)) == ["run-3", "run-2"]
    assert names(full_table(client, archived="only")) == ["run-1", "run-0"]
    for result in done["results"]:
        if result["undo"]:
            post(client, "bulk", {"runs": [result["run"]], "changes": result["undo"]})
    assert len(names(full_table(client))) == 4


def test_bulk_trash_is_undone_by_restore(client):
    done = post(client, "bulk", {"action": "trash", "filter": "config.lr<1e-3"})
    assert names(full_table(client)) == ["run-1", "run-0"]
    assert {run["name"] for run in get(client, "trash")["runs"]} == {"run-2", "run-3"}
    restored = post(client, "bulk", {"action": "restore", "runs": [result["name"] for result in done["results"]]})
    assert {result["name"] for result in restored["results"]} == {"run-2", "run-3"}
    assert len(names(full_table(client))) == 4


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"runs": ["run-0"]},
        {"runs": ["run-0"], "filter": "x", "action": "trash"},
        {"filter": "x", "action": "restore"},
        {"filter": "steps >", "action": "trash"},
        {"filter": " ", "action": "trash"},
        {"runs": ["run-0"], "action": "delete"},
    ],
)
def test_incomplete_bulk_requests_are_refused(client, body):
    assert client.post("/api/v1/bulk", json=body).status_code in {400, 409}
    assert len(names(full_table(client))) == 4


def test_pinned_runs_come_first(client):
    post(client, "runs/run-1/annotations", {"changes": [{"field": "pinned", "value": True}]})
    assert names(full_table(client)) == ["run-1", "run-3", "run-2", "run-0"]
    assert names(full_table(client, sort="val_loss.max", pin=["run-2"])) == ["run-1", "run-2", "run-0", "run-3"]
    assert names(full_table(client, pinned_first="false")) == ["run-3", "run-2", "run-1", "run-0"]


def test_table_is_downloaded_as_csv(client):
    changes = [{"field": "note", "value": '=HYPERLINK("x"),\n2'}, {"op": "add", "field": "tags", "value": "paper"}]
    post(client, "runs/run-0/annotations", {"changes": changes})
    wanted = ["val_loss.min", "val_loss.last", "config.lr", "note", "tags", "archived", "nothing"]
    response = client.get("/api/v1/table.csv", params={"column": wanted, "sort": "config.seed", "filter": "run"})
    assert response.status_code == 200
    assert response.headers["content-disposition"] == 'attachment; filename="runs.csv"'
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert list(csv.reader(io.StringIO(response.text))) == [
        ["name", *wanted],
        ["run-2", "2.0", "3.5", "0.0001", "", "base", "false", ""],
        ["run-0", "1.0", "1.5", "0.001", '\'=HYPERLINK("x"),\n2', "base, paper", "false", ""],
        ["run-3", "2.0", "nan", "0.0001", "", "base", "false", ""],
        ["run-1", "2.0", "2.5", "0.001", "", "base", "false", ""],
    ]
    facts = client.get("/api/v1/table.csv", params={"limit": 1}).text.splitlines()
    assert facts[0].startswith("name,state,")
    assert len(facts) == 2
    bad = client.get("/api/v1/table.csv", params={"filter": "steps >"})
    assert "expected a value" in check_error(bad, 409, "bad_filter")


def test_view_is_saved_changed_and_deleted(client):
    assert get(client, "views") == {"views": []}
    body = {"name": "Best", "filter": "val_loss.min<2", "columns": ["config.lr"], "sort": "-steps", "widths": {"a": 1}}
    saved = client.put("/api/v1/views/best", json=body)
    assert saved.status_code == 200, saved.text
    view = saved.json()
    assert view["slug"] == "best"
    assert "widths" in view["problems"][0]
    assert {key: view[key] for key in body} == body
    assert get(client, "views/best") == view
    # A client can change and send back what it got.
    assert client.put("/api/v1/views/best", json={**view, "sort": ""}).json() == {**view, "sort": ""}
    assert [found["slug"] for found in get(client, "views")["views"]] == ["best"]
    assert client.delete("/api/v1/views/best").json()["filter"] == "val_loss.min<2"
    check_error(client.get("/api/v1/views/best"), 404, "no_such_view")
    check_error(client.delete("/api/v1/views/best"), 404, "no_such_view")


def test_view_must_be_json_of_our_own_pages(client):
    check_error(client.put("/api/v1/views/v", json={"columns": "x"}), 400, "bad_body")
    check_error(client.put("/api/v1/views/V", json={}), 409, "not_saved")
    check_error(client.put("/api/v1/views/v", content=b"{}"), 415, "not_json")
    foreign = {"Origin": "https://elsewhere.example"}
    check_error(client.put("/api/v1/views/v", json={}, headers=foreign), 403, "wrong_origin")
    client.put("/api/v1/views/v", json={})
    check_error(client.delete("/api/v1/views/v", headers=foreign), 403, "wrong_origin")
    assert len(get(client, "views")["views"]) == 1


def test_page_of_another_site_cannot_change_runs(client):
    body = {"action": "trash", "runs": ["run-0"]}
    response = client.post("/api/v1/bulk", json=body, headers={"Origin": "https://elsewhere.example"})
    assert response.status_code == 403
    assert len(names(full_table(client))) == 4
