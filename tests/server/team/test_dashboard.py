"""The API of a team's server as its dashboard uses it: sessions, roles, how far runs were received, live events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tachograph.catalog import list_trash
from tachograph.journal import RunFolder
from tests.conftest import HANG_S, wait_for
from tests.remote.conftest import Team, send_all
from tests.server.conftest import Events, check_error
from tests.store import append, step

MakeRun = Callable[..., RunFolder]
RUN = "/api/v1/runs/default%2Frun"
RUN_ID = "0123456789abcdef"


@pytest.fixture
def listen(team: Team) -> Iterator[Callable[..., Events]]:
    opened: list[Events] = []

    def start(*scopes: str, **params: Any) -> Events:
        opened.append(Events(f"{team.url}/api/v1/live", team.headers(*scopes), **params))
        return opened[-1]

    yield start
    for events in opened:
        events.close()


def send_beat(team: Team, *, lag_bytes: int = 0, ahead_s: float = 0.0) -> None:
    """Report as the client of the run does."""
    headers = {**team.headers("write"), "Tacho-Now": str(time.time() + ahead_s)}
    url = f"/api/v1/ingest/runs/{RUN_ID}/beat"
    assert team.client.put(url, json={"lag_bytes": lag_bytes}, headers=headers).status_code == 200


def test_key_is_exchanged_for_a_session_that_ends_with_logout(team: Team):
    token = team.token("read", "control", name="ada", project="nlp")
    with httpx.Client(base_url=team.url, timeout=HANG_S) as browser:
        assert browser.get("/api/v1/login").json() == {"needs": "access_key"}
        check_error(browser.get("/api/v1/whoami"), 401)
        assert "access key" in check_error(browser.post("/api/v1/login", json={"token": token[:-1]}), 401)
        assert browser.post("/api/v1/login", json={"token": token}).status_code == 204
        found = browser.get("/api/v1/whoami").json()
        assert (found["name"], found["scopes"], found["project"]) == ("ada", ["control", "read"], "nlp")
        assert browser.post("/api/v1/logout", json={}).status_code == 204
        assert not browser.cookies
        check_error(browser.get("/api/v1/whoami"), 401)


def test_run_reports_how_far_it_was_received(team: Team, make_run: MakeRun, listen: Callable[..., Events]):
    folder = make_run(ends=False)
    send_all(team.sender(folder))
    events = listen("read", run="default/run")
    first = events.wait(lambda event, data: event == "changed" and data["copy"] is not None)
    assert first["copy"]["lag_bytes"] == 0
    send_beat(team, lag_bytes=2_300_000, ahead_s=12.0)
    later = events.wait(lambda event, data: event == "changed" and data["copy"]["lag_bytes"] == 2_300_000)
    assert later["copy"]["seen"] >= first["copy"]["seen"]
    assert later["version"] == first["version"]  # nothing was recorded: pages fetch nothing
    detail = team.client.get(RUN, headers=team.headers("read")).json()
    assert detail["copy"] == later["copy"]
    assert detail["copy"]["skew_s"] == pytest.approx(12.0, abs=HANG_S)


def test_run_recorded_on_the_server_is_no_copy(team: Team, make_run: MakeRun):
    make_run().path.rename(team.data_dir / "own")
    assert team.client.get("/api/v1/runs/own", headers=team.headers("read")).json()["copy"] is None


def test_live_events_reach_clients_of_all_projects_and_of_one(
    team: Team, make_run: MakeRun, listen: Callable[..., Events]
):
    folder = make_run(ends=False)
    key = team.token("write", name="ci", project="nlp")
    sender = team.sender(folder, key)
    send_all(sender)
    everything, named = listen("read"), listen("read", run="nlp/run")
    events = Events(f"{team.url}/api/v1/live", team.headers("read", name="nlp", project="nlp"), run="run")
    append(folder, [step(50)])
    wait_for(lambda: sender.poll(flush=True, ignore_pause=True) >= 0 and sender.is_complete)
    for stream, name in ((everything, "nlp/run"), (named, "nlp/run"), (events, "run")):
        stream.wait(lambda event, data, name=name: data["line"]["name"] == name and data["line"]["step"] == 50)
    events.close()


def test_live_stream_ends_when_its_key_is_revoked(team: Team, make_run: MakeRun, listen: Callable[..., Events]):
    send_all(team.sender(make_run()))
    streams = [listen("read", run="default/run"), listen("read")]
    others = listen("control", "read")
    for events in (*streams, others):
        events.wait(lambda event, data: event == "changed")
    team.app.keys.revoke("read")
    wait_for(lambda: all(events.is_over for events in streams), "the end of the streams")
    assert not others.is_over


@pytest.mark.parametrize("is_accepted", [False, True])
def test_controls_say_why_a_run_accepts_no_requests(team: Team, make_run: MakeRun, is_accepted: bool):
    send_all(team.sender(make_run(ends=False), remote_control=is_accepted))
    page = team.client.get(f"{RUN}/controls", headers=team.headers("read")).json()
    if is_accepted:
        assert page["problem"] is None
    else:
        assert "remote_control=True" in page["problem"]


def test_changes_carry_the_name_of_the_key(team: Team, make_run: MakeRun):
    send_all(team.sender(make_run()))
    headers = team.headers("admin", name="ada")
    mark = {"op": "mark", "global_step": 1, "text": "odd"}
    answer = team.client.post(f"{RUN}/annotations", json={"changes": [mark]}, headers=headers)
    assert [found["by"] for found in answer.json()["annotations"]["marks"]] == ["ada"]
    body = {"action": "trash", "runs": ["default/run"]}
    assert team.client.post("/api/v1/bulk", json=body, headers=headers).json()["num_failed"] == 0
    assert [run.by for run in list_trash(str(team.data_dir))] == ["ada"]
