"""The API: every route, its errors, and the completeness of its data."""

from __future__ import annotations

import csv
import io
import json
import math
from urllib.parse import quote

import pytest

import tachograph
from tests.conftest import wait_for
from tests.server.conftest import check_error
from tests.store import END, START, append, step, write

RUN = "/api/v1/runs/r"
GETS = ["", "/metrics", "/series?name=loss", "/export?name=loss", "/spans", "/records", "/alerts", "/controls"]


def merged(lines):
    return {(line["stream"], line["attempt"]): (line["x"], line["y"]) for line in lines}


def test_health_and_list_of_runs(client):
    assert client.get("/healthz").json() == {"status": "ok", "version": tachograph.__version__}
    found = client.get("/api/v1/runs").json()
    assert [(run["name"], run["state"], run["step"]) for run in found["runs"]] == [("r", "finished", 19)]


def test_run_detail_is_complete(logs, client):
    start = {
        **START,
        "config": {"lr": math.nan, "text": "NaN", "deep": {"a": [math.inf]}},
        "git": {"commit": "abc"},
        "model": "small",
        "host": "here",
    }
    write(logs / "r", [start, step(0, loss=1.0), b"not JSON", {"event": "checkpoint", "time": 1_001.0, "path": "x"}])
    found = client.get(RUN).json()
    assert found["config"] == {"lr": "NaN", "text": "\\NaN", "deep": {"a": ["Infinity"]}}
    assert (found["git"], found["facts"], found["system"]) == ({"commit": "abc"}, {"model": "small"}, {"host": "here"})
    assert found["num_records"] == {"start": 1, "step": 1, "checkpoint": 1}
    assert (found["num_bad_lines"], found["run_id"], found["state"]) == (1, "0123", "stale")
    assert [attempt["num_steps"] for attempt in found["attempts"]] == [1]
    assert [record["path"] for record in found["checkpoints"]] == ["x"]


def test_facts_found_after_the_start_are_shown(logs, client):
    found = {"event": "event", "time": 1_001.0, "name": "instrumented", "framework": "pytorch", "method": "watch"}
    facts = {"total_params": 49, "trainable_params": 7, "batch_size": 1}
    write(logs / "r", [{**START, "batch_size": 8}, {**found, **facts, "version": "2"}])
    assert client.get(RUN).json()["facts"] == {"total_params": 49, "trainable_params": 7, "batch_size": 8}


def test_facts_of_earlier_attempts_are_not_shown(logs, client):
    found = {"event": "event", "time": 1_001.0, "name": "instrumented", "total_params": 49}
    write(logs / "r", [START, found, {**START, "time": 2_000.0, "resumed": True}])
    assert client.get(RUN).json()["facts"] == {}


def test_checkpoints_are_built_from_span_events(logs, client):
    saved = {"event": "event", "time": 1_001.0, "name": "save_checkpoint_success", "current_iteration": 7}
    write(
        logs / "r", [START, step(0, loss=1.0), {**saved, "checkpoint_directory": "out/7", "checkpoint_size": 12}, saved]
    )
    found = client.get(RUN).json()["checkpoints"]
    assert [(one["global_step"], one["checkpoint_path"], one["size_bytes"]) for one in found] == [(7, "out/7", 12)]


def test_metrics_encode_nan_and_infinity_as_strings(logs, client):
    write(logs / "r", [START, step(0, a=1.0, b=math.inf), step(1, a=math.nan, b=-math.inf)])
    found = {metric["name"]: metric for metric in client.get(f"{RUN}/metrics").json()["metrics"]}
    assert (found["a"]["last"], found["a"]["low"], found["a"]["count"], found["a"]["num_not_finite"]) == (
        "NaN",
        1.0,
        2,
        1,
    )
    assert (found["b"]["last"], found["b"]["low"], found["b"]["high"]) == ("-Infinity", None, None)


@pytest.mark.parametrize(
    ("axis", "x"),
    [("step", [0, 1, 2]), ("time", [1_000, 1_001, 1_002]), ("relative", [0, 1, 2]), ("epoch", [0.0, 0.1, 0.2])],
)
def test_series_on_each_axis(shared_client, axis, x):
    view = {"name": "loss", "x": axis, "high": x[1]}
    (found,) = shared_client.get(f"{RUN}/series", params=view).json()["series"]
    assert found["lines"][0]["x"] == pytest.approx(x)
    assert found["lines"][0]["y"] == pytest.approx([1, 1 / 2, 1 / 3])


def test_several_series_with_an_unknown_one(client):
    found = client.get(f"{RUN}/series", params={"name": ["loss", "nothing", "epoch", "loss"]}).json()
    assert [(item["name"], len(item["lines"])) for item in found["series"]] == [
        ("loss", 1),
        ("nothing", 0),
        ("epoch", 1),
    ]


def test_gaps_are_null_and_have_marks(logs, client):
    write(logs / "r", [START, step(0, a=1.0), step(1, a=math.nan), step(2, a=3.0)])
    (found,) = client.get(f"{RUN}/series", params={"name": "a"}).json()["series"]
    assert (found["lines"][0]["x"], found["lines"][0]["y"]) == ([0, 1, 2], [1, None, 3])
    assert found["marks"] == [{"x": 1, "kind": "NaN", "count": 1}]


def test_incremental_responses_add_up_to_the_whole(logs, client):
    folder = write(logs / "r", [START])
    known, cursor = {}, None
    for begin in range(0, 60, 7):
        number = (
            {**START, "resumed": True}
            if begin == 28
            else {"event": "validation", "time": 1e4 + begin, "global_step": begin, "a": 9.0}
        )
        append(folder, [*(step(i, a=float(i)) for i in range(begin, begin + 7)), number])
        after = {} if cursor is None else {"after": cursor}
        found = client.get(f"{RUN}/series", params={"name": "a", "points": 20_000, **after}).json()
        assert found["is_whole"] is (cursor is None)
        cursor = found["cursor"]
        for key, (x, y) in merged(found["series"][0]["lines"]).items():
            known.setdefault(key, ([], []))[0].extend(x)
            known[key][1].extend(y)
    whole = client.get(f"{RUN}/series", params={"name": "a", "points": 20_000}).json()
    assert known == merged(whole["series"][0]["lines"])
    assert whole["cursor"] == cursor
    nothing = client.get(f"{RUN}/series", params={"name": "a", "after": cursor}).json()["series"][0]
    assert (nothing["lines"], nothing["marks"]) == ([], [])


def test_gap_before_new_points_is_reported(logs, client):
    folder = write(logs / "r", [START, step(0, a=1.0)])
    cursor = client.get(f"{RUN}/series", params={"name": "a"}).json()["cursor"]
    append(folder, [step(1, a=math.nan), step(2, a=3.0)])
    (new,) = client.get(f"{RUN}/series", params={"name": "a", "after": cursor}).json()["series"]
    assert new["lines"][0]["y"] == [None, 3.0]


def test_cursor_of_another_journal_returns_everything(logs, client):
    cursor = client.get(f"{RUN}/series", params={"name": "loss"}).json()["cursor"]
    (logs / "r" / "metrics.jsonl").unlink()
    write(logs / "r", [START, step(5, loss=7.0)])
    found = client.get(f"{RUN}/series", params={"name": "loss", "after": cursor}).json()
    assert found["is_whole"]
    found = client.get(f"{RUN}/series", params={"name": "loss"}).json()
    assert found["series"][0]["lines"][0]["y"] == [7.0]


def test_cursor_of_another_server_returns_everything(logs, server, serve):
    cursor = server.client.get(f"{RUN}/series", params={"name": "loss"}).json()["cursor"]
    server.client.close()
    (logs / "r" / "metrics.jsonl").unlink()
    write(logs / "r", [{**START, "time": 7.0}, *(step(i, loss=7.0) for i in range(30))])
    found = serve(logs).client.get(f"{RUN}/series", params={"name": "loss", "after": cursor}).json()
    assert found["is_whole"]


@pytest.mark.parametrize("url", ["/api/v1/runs", "/healthz", *(RUN + path for path in GETS if "export" not in path)])
def test_unchanged_response_returns_304(shared_client, url):
    first = shared_client.get(url)
    again = shared_client.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert again.headers["cache-control"] == "no-cache"
    assert shared_client.get(url, headers={"If-None-Match": '"another"'}).status_code == 200


def test_changed_state_changes_etag(logs, client):
    first = client.get(RUN)
    append(write(logs / "r", [START]), [step(1, loss=1.0)])
    assert client.get(RUN, headers={"If-None-Match": first.headers["etag"]}).status_code == 200


@pytest.fixture
def awkward(logs):
    """Values and names that are difficult for a file format."""
    values = [1.0, math.nan, math.inf, -math.inf, 0.1 + 0.2, 5e-324, -0.0, 1e300, 3]
    name = 'a "b", c\nd'
    records = [step(i, **{name: value, "=cmd()": value}) for i, value in enumerate(values)]
    write(
        logs / "odd",
        [
            START,
            *records,
            {**START, "resumed": True},
            step(2, **{name: 8.0}),
            {"event": "step", "global_step": 3, name: 9.0},
        ],
    )
    return name, [*((0, i, float(value)) for i, value in enumerate(values)), (1, 2, 8.0), (1, 3, 9.0)]


def test_csv_export_is_complete_and_exact(client, awkward):
    name, expected = awkward
    answer = client.get("/api/v1/runs/odd/export", params={"name": [name, "=cmd()"]})
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    found = [(int(row["attempt"]), int(row["step"]), float(row["value"])) for row in rows if row["name"] == name]
    assert repr(found) == repr(expected)
    others = {row["name"] for row in rows} - {name}
    assert others == {"'=cmd()"}  # not a spreadsheet formula
    assert len(rows) == len(expected) + 9


def test_json_export_is_complete_and_exact(client, awkward):
    name, expected = awkward
    answer = client.get("/api/v1/runs/odd/export", params={"name": name, "format": "json"})
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert repr([(row["attempt"], row["step"], float(row["value"])) for row in rows]) == repr(expected)
    assert [row["time"] for row in rows[-2:]] == [1_002.0, None]
    assert {row["epoch"] for row in rows} == {None}


def test_large_export_is_complete(logs, client):
    write(logs / "long", [START, *(step(i, a=float(i)) for i in range(25_000)), END])
    wait_for(lambda: client.get("/api/v1/runs/long").json()["indexed"] == 1.0)
    rows = client.get("/api/v1/runs/long/export", params={"name": "a", "low": 10, "high": 24_000}).text.splitlines()[1:]
    assert [float(row.split(",")[-1]) for row in rows] == [float(i) for i in range(10, 24_001)]


def test_spans_and_records_of_one_span(logs, client):
    span = {"event": "span", "time": 1_003.0, "span_id": "00000000000000aa", "name": "load", "duration_s": 2.0}
    inside = {"event": "event", "time": 1_002.0, "name": "read", "span_id": "00000000000000aa"}
    write(logs / "r", [START, inside, span])
    found = client.get(f"{RUN}/spans").json()
    assert (found["names"], found["id"], found["start"], found["duration_s"]) == (
        ["load"],
        ["00000000000000aa"],
        [1_001.0],
        [2.0],
    )
    assert client.get(f"{RUN}/spans/{found['id'][0]}").json() == {"records": [inside, span]}
    check_error(client.get(f"{RUN}/spans/unknown"), 404, "no_such_span")


def test_records_are_newest_first(logs, client):
    events = [{"event": "event", "time": 2_000.0 + i, "name": f"e{i % 3}", "number": i} for i in range(50)]
    write(logs / "r", [START, *events, {"event": "alert", "time": 5_000.0, "value": math.nan}])
    found = client.get(f"{RUN}/records").json()
    assert [record["event"] for record in found["records"][:2]] == ["alert", "event"]
    assert found["records"][0]["value"] == "NaN"
    assert found["num_records"] == {"start": 1, "event": 50, "alert": 1}
    some = client.get(f"{RUN}/records", params={"kind": "event", "limit": 3}).json()["records"]
    assert [record["number"] for record in some] == [49, 48, 47]


@pytest.mark.parametrize(
    "query",
    ["", "?name=", "?name=a&points=15", "?name=a&points=20001", "?name=a&points=x", "?name=a&points=1&points=2",
     "?name=a&x=no", "?name=a&low=nan", "?name=a&low=inf", "?name=a&high=1e19", "?name=a&low=x", "?name=a&after=x",
     "?name=a&after=" + "9" * 3_000, "?name=a&after=0-step:-1", "?name=a&unknown=1", "?NAME=a", "?name=" + "a" * 513,
     "?" + "&".join(["name=a"] * 65), "?" + "&".join(["name=a"] * 501), "?name=a&%00=1", "?name=a&" + "é" * 100 + "=1"],
)  # fmt: skip
def test_invalid_query_is_rejected(shared_client, query):
    check_error(shared_client.get(f"{RUN}/series{query}"), 400, "bad_query")


@pytest.mark.parametrize("query", ["?x=1", "?" + "&".join(["run=a"] * 65), "?" + "&".join(["run=a"] * 501), "?runs=a"])
def test_invalid_live_query_is_rejected(shared_client, query):
    check_error(shared_client.get(f"/api/v1/live{query}"), 400, "bad_query")


@pytest.mark.parametrize("path", GETS)
def test_unknown_run_is_reported(shared_client, path):
    message = check_error(shared_client.get(f"/api/v1/runs/nobody{path}"), 404, "no_such_run")
    assert "nobody" in message


def test_similar_run_name_is_suggested(client):
    client.get("/api/v1/runs")
    assert "did you mean 'r'" in check_error(client.get("/api/v1/runs/r2"), 404)


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing", "/api", "/api/v2/runs", "/api/v1/runs/r/nothing", "/x/y/z", "/.stamp", "/assets/x.js"]
)
def test_unknown_path_returns_404(shared_client, path):
    check_error(shared_client.get(path), 404, "not_found")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["/healthz", "/api/v1/runs", RUN, f"{RUN}/series", "/api/v1/live", "/", "/api/v1/openapi.json"]
)
def test_wrong_method_returns_405(shared_client, method, path):
    answer = shared_client.request(method, path, content=b"{}", headers={"Content-Type": "application/json"})
    check_error(answer, 405, "wrong_method")
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE"])
def test_wrong_method_is_rejected_before_its_body(shared_client, method):
    check_error(shared_client.request(method, "/api/v1/runs"), 405, "wrong_method")


def test_wrong_method_response_lists_allowed_methods(shared_client):
    answer = shared_client.options(f"{RUN}/controls")
    check_error(answer, 405)
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_logout_rejects_get(shared_client):
    check_error(shared_client.get("/api/v1/logout"), 405, "wrong_method")


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/runs", RUN, f"{RUN}/series?name=loss", "/api/v1/openapi.json"])
def test_head_is_get_without_body(shared_client, path):
    get, head = shared_client.get(path), shared_client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length", "etag", "cache-control"):
        assert head.headers.get(name) == get.headers.get(name)


@pytest.mark.parametrize("value", ["bytes=99999999-", "bytes=x", "bytes=-0", "bytes=5-2", "lines=1-2"])
def test_invalid_range_returns_error_body(shared_client, value):
    answer = shared_client.get("/", headers={"Range": value})
    if answer.status_code >= 400:
        check_error(answer, answer.status_code)


@pytest.mark.parametrize(
    "record",
    [
        {"global_step": 10**30},
        {"time": 10**400},
        {"time": None},
        {"epoch": 10**400},
        {"global_step": 1.5},
        {"a": 10**400},
        {"global_step": -(2**63) - 1},
    ],
    ids=lambda record: f"{next(iter(record))} {str(next(iter(record.values())))[:8]}",
)
def test_malformed_record_causes_no_server_error(logs, client, record):
    write(logs / "r", [START, step(0, a=1.0), {**step(1, a=2.0), **record}])
    for path in ["", "/metrics", "/series?name=a", "/export?name=a", "/records", "/controls"]:
        assert client.get(RUN + path).status_code == 200, path
    assert client.get("/api/v1/runs").status_code == 200


def test_every_listed_name_can_be_requested(logs, client):
    names = [
        "100%",
        "a b",
        "<b>",
        "emoji 🦊",
        "right\u202eleft",
        "q'\"",
        "#?&=+;",
        "%2e%2e",
        "line\nbreak",
        "a" * 255,
        "x..",
    ]
    for name in names:
        write(logs / name, [START, step(0, a=1.0)])
    assert {run["name"] for run in client.get("/api/v1/runs").json()["runs"]} == {"r", *names}
    for name in names:
        assert client.get(f"/api/v1/runs/{quote(name, safe='')}").json()["name"] == name
        assert client.get(f"/api/v1/runs/{quote(name, safe='')}/series", params={"name": "a"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"{}", b'{"values": {}}', b'{"values": {"": 1}}', b'{"values": {"a": "text"}}', b"\xff",
     b'{"values": {"a": null}}', b'{"values": {"a": 1}, "more": 1}', b'{"values": {"a": 1e400}}', b"[" * 10_000,
     b'{"values": {"a": NaN}}', b'{"values": {"a": [1]}}'],
)  # fmt: skip
def test_invalid_body_is_rejected(shared_client, body):
    answer = shared_client.post(f"{RUN}/controls", content=body, headers={"Content-Type": "application/json"})
    check_error(answer, 400, "bad_body")
