"""A team's server with a column store: it is filled from what arrives, and answers while journals are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tachograph.journal import RunFolder
from tests.conftest import wait_for
from tests.remote.conftest import Team, send_all
from tests.server.columns.conftest import ENGINES, address
from tests.store import END, START, step, write


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
    answered = []
    original = type(team.app._feeder.store).run  # type: ignore[union-attr]
    monkeypatch.setattr(type(team.app._feeder.store), "run", lambda *a: answered.append(a) or original(*a))  # type: ignore[union-attr]
    # The lag is 0 as soon as a part of the run is inserted and no more has arrived.
    wait_for(lambda: lines(team, points=500) == from_files, "all rows are inserted")
    assert lines(team, points=500, low=100, high=200) == [(xs, ys) for xs, ys in lines(team, low=100, high=200)]
    assert lines(team, points=500, x="relative")
    assert answered


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
