"""Runs in nested and in several log folders: every route knows them by the same ids."""

from __future__ import annotations

import pytest

from tests.server.conftest import check_error
from tests.server.test_table import full_table, get, names, post
from tests.store import END, START, append, step, write

TRACE = "step-000001-1.json.gz"
SPAN = {"event": "span", "time": 1_050.0, "span_id": "00000000000000aa", "name": "load", "duration_s": 2.0}


def make_run(folder, loss=1.0, *, is_ended=True):
    steps = [step(i, loss=loss) for i in range(3)]
    return write(folder, [{**START, "run_id": folder.name}, SPAN, *steps, *([END] if is_ended else [])])


def listed(client):
    return sorted(run["name"] for run in get(client, "runs")["runs"])


def test_nested_run_is_served_by_every_route(tmp_path, serve, listen):
    folder = make_run(tmp_path / "sweep 1" / "a%2Fb" / "run-3")
    (folder.path / "traces").mkdir()
    (folder.path / "traces" / TRACE).write_bytes(b"\x1f\x8b")
    make_run(tmp_path / "run-3", 2.0)
    server = serve(tmp_path)
    client, name = server.client, "sweep 1/a%2Fb/run-3"
    assert listed(client) == sorted(names(full_table(client))) == ["run-3", name]
    at = "runs/sweep%201%2Fa%252Fb%2Frun-3"
    assert get(client, at)["name"] == name
    assert get(client, f"{at}/series", name="loss")["series"][0]["last"] == 1.0
    for route in ("metrics", "spans", "records", "alerts", "completions", "controls", "traces", "annotations"):
        assert get(client, f"{at}/{route}")
    assert get(client, f"{at}/spans/{SPAN['span_id']}")["records"]
    assert client.get(f"/api/v1/{at}/traces/{TRACE}").content == b"\x1f\x8b"
    assert client.get(f"/api/v1/{at}/export", params={"name": "loss"}).text.count("\n") == 4
    post(client, f"{at}/annotations", {"changes": [{"field": "note", "value": "deep"}]})
    assert names(full_table(client, filter="deep")) == [name]
    check_error(client.post(f"/api/v1/{at}/controls", json={"values": {"log_every": 10}}), 409, "not_steerable")
    for watched in ({"run": name}, {}):
        events = listen(f"{server.url}/api/v1/live", **watched)
        assert events.wait(lambda event, data: data["line"]["name"] == name)["line"]["state"] == "finished"
    done = post(client, "bulk", {"action": "trash", "runs": [name]})
    assert listed(client) == ["run-3"]
    restored = post(client, "bulk", {"action": "restore", "runs": [done["results"][0]["name"]]})
    assert restored["results"][0]["name"] == name


def test_runs_of_same_name_get_the_label_of_their_folder(tmp_path, serve, listen):
    first, second = tmp_path / "a" / "logs", tmp_path / "b" / "logs"
    for folder, names_of_runs in ((first, ("one", "same")), (second, ("two", "same", "a-logs:odd"))):
        for number, name in enumerate(names_of_runs):
            make_run(folder / name, float(number + (folder is second) * 10))
    ids = ["a-logs:same", "b-logs:a-logs:odd", "b-logs:same", "one", "two"]
    client = serve([first, second, first / "same"]).client
    assert listed(client) == sorted(names(full_table(client))) == ids
    # The same after a restart, whatever the order of the folders.
    server = serve([second, first])
    client = server.client
    assert listed(client) == ids
    page = full_table(client, column=["folder", "name", "loss"], sort="loss")
    assert [[row["name"], *row["values"]] for row in page["rows"]][:2] == [
        ["one", str(first), "one", 0.0],
        ["a-logs:same", str(first), "same", 1.0],
    ]
    for run_id in ids:
        assert get(client, f"runs/{run_id}")["name"] == run_id
    assert get(client, "runs/a-logs:one")["name"] == "one"
    message = check_error(client.get("/api/v1/runs/same"), 404, "no_such_run")
    assert "'a-logs:same'" in message
    assert "'b-logs:same'" in message
    post(client, "runs/b-logs:same/annotations", {"changes": [{"op": "add", "field": "tags", "value": "x"}]})
    assert (second / "same" / "annotations").exists()
    events = listen(f"{server.url}/api/v1/live", run="b-logs:same")
    events.wait(lambda event, data: data["line"]["name"] == "b-logs:same")
    done = post(client, "bulk", {"action": "trash", "runs": ["a-logs:same"]})["results"][0]
    assert listed(client) == ["b-logs:a-logs:odd", "one", "same", "two"]
    assert (second / "same").exists()
    restored = post(client, "bulk", {"action": "restore", "runs": [done["name"]]})["results"][0]
    assert restored["name"] == "a-logs:same"
    assert get(client, "runs")["log_dirs"] == [str(second), str(first)]


@pytest.mark.parametrize(
    "name", ["link/r", "r/inside", "..%2Flogs%2Fr", "r%2F", "%2Fr", "deep%2F..%2Fr", "a:r", "r%00"]
)
def test_no_id_leads_out_of_the_log_folder(tmp_path, serve, name):
    logs = tmp_path / "logs"
    make_run(tmp_path / "outside" / "r")
    make_run(logs / "r")
    make_run(logs / "r" / "inside")
    (logs / "deep").mkdir()
    (logs / "link").symlink_to(tmp_path / "outside")
    client = serve(logs).client
    assert listed(client) == names(full_table(client)) == ["r"]
    for route in ("", "/metrics", "/annotations"):
        check_error(client.get(f"/api/v1/runs/{name.replace('/', '%2F')}{route}"), 404)


def test_new_nested_run_appears_in_the_live_list(tmp_path, serve, listen):
    server = serve(tmp_path)
    events = listen(f"{server.url}/api/v1/live")
    folder = make_run(tmp_path / "sweep" / "x", is_ended=False)
    events.wait(lambda event, data: event == "changed" and data["line"]["name"] == "sweep/x")
    append(folder, [END])
    events.wait(lambda event, data: data.get("line", {}).get("state") == "finished")


def test_ui_serves_several_folders(logs, tmp_path, dashboard):
    make_run(logs / "one")
    make_run(tmp_path / "more" / "two")
    started = dashboard("--log-dir", str(tmp_path / "more"))
    assert f"{str(logs)!r}, {str(tmp_path / 'more')!r}" in started.first_line
