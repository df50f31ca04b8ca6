"""The completions page of the API: complete, bounded, and robust against malformed journals."""

from __future__ import annotations

import math

import msgspec
import pytest

from tachograph.server._models import CompletionsPage
from tests.conftest import wait_for
from tests.server.conftest import check_error
from tests.store import END, START, append, opened, segments, step, write

RUN = "/api/v1/runs/r"


def record(at, *rows, table="completions", **more):
    columns = list(dict.fromkeys(["step", *(name for row in rows for name in row)]))
    fields = {"global_step": at, "table": table, "columns": columns, "rows": list(rows), **more}
    return {"event": "completions", "time": 1_000.0 + at, **fields}


def sample(at, **cells):
    return {"step": at, "prompt": f"prompt {at}", "completion": f"Answer {at}", **cells}


def get_completions(client, **query):
    """Return the response, decoded strictly with the documented types."""
    wait_for(lambda: client.get(RUN).json()["indexed"] == 1)
    response = client.get(f"{RUN}/completions", params=query)
    assert response.status_code == 200, response.text
    assert len(response.content) < 6_000_000
    return msgspec.json.decode(response.content, type=CompletionsPage)


def test_run_without_completions_is_empty(client):
    found = get_completions(client)
    assert (found.rows, found.columns, found.steps, found.tables) == ([], [], [], [])
    assert (found.num_rows, found.num_rows_of_steps, found.num_dropped, found.is_whole) == (0, 0, 0, True)
    check_error(client.get("/api/v1/runs/nowhere/completions"), 404, "no_such_run")


def test_rows_are_newest_first_with_all_columns(logs, client):
    folder = write(
        logs / "r",
        [
            START,
            step(0, train_loss=1.0),
            record(10, sample(5, reward=0.5), sample(10, reward=math.nan), sample(10, reward=1.5), num_dropped=3),
            record(20, sample(20, advantage=-1.0)),
        ],
    )
    found = get_completions(client)
    assert found.columns == ["step", "prompt", "completion", "reward", "advantage"]
    assert [(row["step"], row.get("reward")) for row in found.rows] == [(20, None), (10, "NaN"), (10, 1.5), (5, 0.5)]
    assert "reward" not in found.rows[0]
    assert (found.steps, found.num_rows, found.num_rows_of_steps, found.num_dropped) == ([5, 10, 20], 4, 4, 3)
    assert (found.is_whole, found.tables) == (True, ["completions"])
    append(folder, [record(30, sample(30, label="desirable"))])
    later = get_completions(client)
    assert later.version != found.version
    assert (later.rows[0]["step"], later.columns[-1], later.num_rows) == (30, "label", 5)


def test_rows_are_filtered_by_step(logs, client):
    write(logs / "r", [START, *(record(at, sample(at - 5), sample(at)) for at in range(10, 110, 10)), END])
    assert [row["step"] for row in get_completions(client, step_min=40, step_max=50).rows] == [50, 45, 40]
    only = get_completions(client, step_min=45, step_max=45)
    assert [row["step"] for row in only.rows] == [45]
    assert (only.num_rows, only.num_rows_of_steps, len(only.steps)) == (20, 1, 20)
    assert get_completions(client, step_min=1_000).rows == []
    limited = get_completions(client, limit=3)
    assert ([row["step"] for row in limited.rows], limited.is_whole) == ([100, 95, 90], False)
    assert get_completions(client, limit=20).is_whole


def test_search_covers_all_texts_ignoring_case(logs, client):
    rows = [sample(at, completion="the GREYJACKET" if at == 7 else "nothing", number=at) for at in range(20)]
    rows[3]["note"] = "Straße"
    write(logs / "r", [START, *(record(row["step"], row) for row in rows), END])
    assert [row["step"] for row in get_completions(client, search="greyJacket").rows] == [7]
    assert [row["step"] for row in get_completions(client, search="STRASSE").rows] == [3]
    assert get_completions(client, search="greyjacket", step_min=8).rows == []
    assert [row["step"] for row in get_completions(client, search="prompt 1").rows] == [*range(19, 9, -1), 1]


def test_rows_are_filtered_by_table(logs, client):
    write(
        logs / "r", [START, record(1, sample(1)), record(2, {"step": 2, "probe": "x"}, table="probes", num_dropped=4)]
    )
    assert get_completions(client).tables == ["completions", "probes"]
    probes = get_completions(client, table="probes")
    assert (probes.columns, probes.rows, probes.num_dropped) == (["step", "probe"], [{"step": 2, "probe": "x"}], 4)
    assert get_completions(client, table="completions").num_dropped == 0
    assert get_completions(client, table="other").rows == []


ODD = [
    {"event": "completions"},
    {"event": "completions", "time": "now", "global_step": "many", "table": 7, "columns": "all", "rows": "none"},
    {"event": "completions", "time": 1.0, "columns": [1, None, "a"], "rows": [1, None, "x", [], {}]},
    {"event": "completions", "time": 1.0, "rows": [{"step": "many", "a": {"b": [1, {"c": math.inf}]}, "d": None}]},
    {"event": "completions", "time": 1.0, "global_step": 2**80, "rows": [{"step": 2**80}], "num_dropped": "some"},
    {"event": "completions", "time": 1.0, "rows": [{"step": True, "x": 1}], "num_dropped": -5},
    {"event": "completions", "time": 1.0, "rows": [{f"column{i}": i for i in range(5_000)}], "table": "t" * 9_999},
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_malformed_records_give_valid_response(logs, client, odd):
    write(logs / "r", [START, odd, record(3, sample(3)), END])
    found = get_completions(client)
    assert found.rows[0]["step"] == 3
    assert found.num_rows == len(found.rows)
    assert len(found.columns) <= 500
    assert found.num_dropped == 0
    assert found.steps == [3]


def test_step_filter_excludes_rows_without_step(logs, client):
    bare = {"event": "completions", "time": 1.0, "rows": [{"completion": "no step"}]}
    write(logs / "r", [START, bare, record(3, {"completion": "of the record"})])
    assert [row.get("step") for row in get_completions(client).rows] == [3, None]
    assert [row["completion"] for row in get_completions(client, step_min=0).rows] == ["of the record"]


def test_unreadable_lines_do_not_shift_rows(logs, client):
    torn = b'{"event":"completions","rows":[{"step":1,"completion":"torn'
    lines = [START, torn, record(1, sample(1)), b"", b"[]", record(2, sample(2)), torn, record(3, sample(3))]
    write(logs / "r", lines)
    assert [row["step"] for row in get_completions(client).rows] == [3, 2, 1]


def test_replaced_journal_shows_its_own_rows(logs, client):
    write(logs / "r", [START, record(1, sample(1)), record(2, sample(2))])
    assert len(get_completions(client).rows) == 2
    write(logs / "r", [{**START, "run_id": "other", "time": 5_000.0}, record(9, sample(9))])
    assert [row["step"] for row in get_completions(client).rows] == [9]


def test_response_size_is_limited(logs, client):
    big = dict.fromkeys(("prompt", "completion", "chosen"), "x" * 8_000)
    write(logs / "r", [START, *(record(at, *({"step": at, **big} for _ in range(40))) for at in range(30)), END])
    found = get_completions(client, limit=1_000)
    assert 100 < len(found.rows) < 1_000
    assert (found.is_whole, found.num_rows, found.rows[0]["step"]) == (False, 1_200, 29)


def test_many_steps_are_thinned_out_with_both_ends(logs, client):
    write(logs / "r", [START, *(record(at, sample(at)) for at in range(5_000)), END])
    found = get_completions(client)
    assert len(found.steps) == 2_000
    assert (found.steps[0], found.steps[-1]) == (0, 4_999)
    assert found.steps == sorted(set(found.steps))
    assert found.num_rows == 5_000


def test_completions_are_not_events_or_points(logs, client):
    write(logs / "r", [START, record(1, sample(1)), step(1, train_loss=1.0)])
    records = client.get(f"{RUN}/records").json()
    assert records["num_records"]["completions"] == 1
    assert [item["event"] for item in records["records"]] == ["start"]
    assert [item["name"] for item in client.get(f"{RUN}/metrics").json()["metrics"]] == ["train_loss"]


def test_segments_store_positions_not_texts(logs):
    text = "unheard-of " * 500
    many = [item for at in range(600) for item in (step(at, loss=1.0), record(at, sample(at, note=text)))]
    folder = write(logs / "r", [START, *many, END])
    run = opened(folder, segment_bytes=100_000)
    assert len(segments(folder)) > 2
    cached = b"".join(path.read_bytes() for path in folder.cache.iterdir())
    assert b"unheard-of" not in cached
    again = opened(folder, segment_bytes=100_000)
    assert [location.offset for location in again.completions.locations()] == [
        location.offset for location in run.completions.locations()
    ]
    data = folder.journal.read_bytes()
    for at, location in enumerate(again.completions.locations()):
        assert msgspec.json.decode(data[location.offset : location.offset + location.size_bytes])["global_step"] == at
        assert (location.steps, location.num_rows(), location.columns[-1]) == ([(at, 1)], 1, "note")
