"""A team's server with a column store: it is filled from what arrives, and answers while journals are read."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.exceptions import ColumnStoreError
from tachograph.journal import RunFolder
from tachograph.server._column_series import list_column_metrics, read_column_series
from tachograph.server._models import SeriesQuery
from tachograph.server.columns import ColumnStore, SeriesRequest
from tachograph.store import StoredRun, View
from tests.conftest import wait_for
from tests.remote.conftest import Team, send_all
from tests.server.columns.conftest import ENGINES, address
from tests.store import END, START, append, step, write


@pytest.fixture(params=ENGINES)
def team(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Team]:
    """A team's server that fills an empty database, on each engine."""
    server = request.getfixturevalue("old_server" if request.param == "18.16" else "new_server")
    found = Team(tmp_path / "data", store=address(server))
    yield found
    found.client.close()
    for connection in found.connections:
        connection.close()
    found.stop()


def send(team: Team, folder: RunFolder) -> None:
    send_all(team.sender(folder))


def store_report(team: Team) -> dict[str, object]:
    report: dict[str, dict[str, object]] = team.client.get("/readyz", headers=team.headers("read")).json()
    return report["store"]


def lines(team: Team, **parameters: object) -> list[object]:
    answer = team.client.get(
        "/api/v1/runs/default%2Frun/series", params={"name": "loss", **parameters}, headers=team.headers("read")
    )
    assert answer.status_code == 200, answer.text
    return [(line["x"], line["y"]) for line in answer.json()["series"][0]["lines"]]


def test_received_runs_are_inserted_and_drawn(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    records = [step(number, loss=1 / (number + 1)) for number in range(3_000)]
    send(team, write(tmp_path / "logs" / "run", [{**START, "run_id": "a" * 16}, *records, END]))
    wait_for(lambda: store_report(team)["lag_s"] == 0 and "store_rows 0\n" not in metrics(team))
    from_files = lines(team, points=500)
    monkeypatch.setattr("tachograph.store.StoredRun.indexed_share", 0.5)  # as while a long journal is being read
    monkeypatch.setattr("tachograph.store.StoredRun.num_bytes_read", 100)
    answered = []
    original = ColumnStore.series
    monkeypatch.setattr(ColumnStore, "series", lambda *a, **options: answered.append(a) or original(*a, **options))
    # The lag is 0 as soon as a part of the run is inserted and no more has arrived.
    wait_for(lambda: lines(team, points=500) == from_files, "all rows are inserted")
    assert lines(team, points=500, low=100, high=200) == [(xs, ys) for xs, ys in lines(team, low=100, high=200)]
    assert lines(team, points=500, x="relative")
    assert answered


def test_runs_that_are_not_read_are_drawn_from_tables(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(4)
    names = [f"r{number}" for number in range(4)]
    for number, name in enumerate(names):
        first = [step(at, loss=rng.choice([rng.gauss(0, 1), math.nan]), acc=float(at)) for at in range(50 * number)]
        again = [{**START, "time": 5_000.0, "resumed": True}, *(step(at, loss=float(at)) for at in range(40, 60))]
        run_id = f"{number}" * 16
        send(team, write(tmp_path / "logs" / name, [{**START, "run_id": run_id}, *first, *again, END]))
    wait_for(lambda: store_report(team)["lag_s"] == 0)
    run_names = [f"default/{name}" for name in names]

    def get(path: str, **parameters: object) -> dict[str, Any]:
        query = {"run": run_names, **parameters}
        answer = team.client.get(f"/api/v1/{path}", params=query, headers=team.headers("read"))
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    def series(**view: object) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = get("series", name=["loss", "acc", "gone"], **view)["runs"]
        return runs

    def metric_names() -> list[set[str]]:
        page = get("metrics")
        return [{page["metrics"][index]["name"] for index in run["metrics"]} for run in page["runs"]]

    views = [{}, {"points": 20}, {"low": 10, "high": 30}, {"x": "time"}]
    with monkeypatch.context() as unread:
        unread.setattr(StoredRun, "refresh", lambda run, max_s=math.inf: False)  # as if the journals were very long
        # Other parameters each time: responses are cached until more of the journal is read.
        num_points = itertools.count(16)
        wait_for(
            lambda: [len(run["series"][0]["lines"]) for run in series(points=next(num_points))] == [1, 2, 2, 2],
            "all rows are inserted",
        )
        assert {run["indexed"] for run in series()} == {0.0}
        from_tables = [series(**view) for view in views]
        assert metric_names() == [{"loss"}, *[{"loss", "acc"}] * 3]
        assert [metric["lines"] for metric in series(x="relative")[3]["series"]] == [[], [], []]  # the start is unread
    wait_for(lambda: all(run["indexed"] == 1.0 for run in series()))
    for view, runs in zip(views, from_tables, strict=True):
        assert [run["series"] for run in series(**view)] == [run["series"] for run in runs], view
    assert metric_names() == [{"loss"}, *[{"loss", "acc"}] * 3]


def test_tables_that_are_behind_do_not_answer(store: ColumnStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write(tmp_path / "logs" / "r", [{**START, "run_id": "a"}, *(step(at, loss=float(at)) for at in range(9))])
    store.inserter(str(tmp_path / "logs")).insert_all()
    run = StoredRun(folder)
    query = SeriesQuery(name=["loss", "acc"])
    [loss, acc] = read_column_series([run], query, 100, lambda _: store)["r"]
    assert loss.lines[0].y == [float(at) for at in range(9)]
    assert (acc.lines, acc.reason) == ([], "no metric 'acc' in this run")
    assert list_column_metrics([run], lambda _: store) == {"r": {"loss": "step"}}
    assert read_column_series([run], query, 100, lambda _: None) == {}
    assert read_column_series([run], SeriesQuery(name=["loss"], x="epoch"), 100, lambda _: store) == {}
    append(folder, [step(9, loss=-1.0)])
    run.refresh()
    append(folder, [step(10, loss=-2.0)])
    monkeypatch.setattr(StoredRun, "indexed_share", 0.9)
    assert read_column_series([run], query, 100, lambda _: store) == {}
    assert list_column_metrics([run], lambda _: store) == {}


def test_many_points_are_left_to_the_files(store: ColumnStore, tmp_path: Path):
    for number in range(3):
        records = [{**START, "run_id": f"id{number}"}, *(step(at, loss=1.0) for at in range(100))]
        write(tmp_path / "logs" / f"r{number}", records)
    store.inserter(str(tmp_path / "logs")).insert_all()
    requests = [SeriesRequest(f"id{number}", ("loss",), View()) for number in range(3)]
    first, second, third = store.series(requests, usual_points=math.inf, max_points=250)
    assert isinstance(first, dict)
    assert first == second
    assert isinstance(third, ColumnStoreError)
    assert "100 more points are too many" in str(third)


def metrics(team: Team) -> str:
    return team.client.get("/metrics", headers=team.headers("read")).text


def test_server_starts_and_answers_without_clickhouse(tmp_path: Path):
    team = Team(tmp_path / "data", store="clickhouse://127.0.0.1:9/tacho")
    try:
        send(team, write(tmp_path / "logs" / "run", [{**START, "run_id": "a" * 16}, step(1, loss=0.5), END]))
        assert lines(team) == [([1], [0.5])]
        wait_for(lambda: store_report(team)["error"])
        assert json.loads(team.client.get("/readyz").content)["status"] == "ok"
    finally:
        team.client.close()
        for connection in team.connections:
            connection.close()
        team.stop()
