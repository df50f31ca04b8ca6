"""The alerts page of the API: one entry per alert, bounded, and robust against malformed journals."""

from __future__ import annotations

import math

import msgspec
import pytest

from tachograph.server._models import AlertsPage
from tests.conftest import wait_for
from tests.server.conftest import check_error
from tests.store import END, START, append, step, write

RUN = "/api/v1/runs/r"
MOST_BYTES = 3_000_000


def alert(number=1, status="opened", at=10, **more):
    return {
        "event": "alert",
        "time": 1_000.0 + at,
        "global_step": at,
        "id": f"a{number}",
        "rule": "loss_spike",
        "status": status,
        "severity": "warning",
        "title": f"Loss spike at step {at}",
        **more,
    }


def get_alerts(client):
    """Return the response, decoded strictly with the documented types."""
    wait_for(lambda: client.get(RUN).json()["indexed"] == 1)
    response = client.get(f"{RUN}/alerts")
    assert response.status_code == 200, response.text
    assert len(response.content) < MOST_BYTES
    return msgspec.json.decode(response.content, type=AlertsPage)


def test_run_without_alerts_lists_none(client):
    found = get_alerts(client)
    assert (found.num_open, found.num_critical, found.num_left_out, found.alerts) == (0, 0, 0, [])
    check_error(client.get("/api/v1/runs/nowhere/alerts"), 404, "no_such_run")


def test_records_of_one_finding_form_one_alert(logs, client):
    evidence = {"metric": "train_loss", "value": math.nan, "level": [1.5, math.inf], "word": "NaN"}
    records = [
        alert(at=10, evidence={"metric": "train_loss", "value": 8.1}, meaning="Bad data.", advice=["Look.", "Clip."]),
        alert(at=12, status="updated", severity="critical", evidence=evidence, occurrence={"step": 12}),
        alert(at=30, status="resolved", outcome="Back at the level before."),
        alert(2, at=31),
    ]
    folder = write(logs / "r", [START, step(0, train_loss=1.0), *records])
    found = get_alerts(client)
    assert (found.num_open, found.num_critical, found.num_left_out) == (1, 0, 0)
    assert [(item.id, item.is_open) for item in found.alerts] == [("a2", True), ("a1", False)]
    first = found.alerts[1]
    assert (first.severity, first.opened_step, first.resolved_step, first.resolved_time) == ("critical", 10, 30, 1_030)
    assert (first.meaning, first.advice, first.outcome) == (
        "Bad data.",
        ["Look.", "Clip."],
        "Back at the level before.",
    )
    assert (first.num_occurrences, first.occurrences) == (2, [{"step": 12}])
    assert first.evidence == {"metric": "train_loss", "value": "NaN", "level": [1.5, "Infinity"], "word": "\\NaN"}
    append(folder, [alert(3, severity="critical", at=40), alert(4, severity="info", at=41)])
    found = get_alerts(client)
    assert [item.id for item in found.alerts] == ["a3", "a2", "a4", "a1"]  # open alerts by severity, then closed ones
    assert (found.num_open, found.num_critical) == (3, 1)


def test_resume_closes_alerts_of_earlier_attempts(logs, client):
    write(logs / "r", [START, alert(), {**START, "time": 2_000.0, "resumed": True}, alert(2)])
    found = get_alerts(client)
    assert [(item.id, item.is_open, item.resolved_time, item.attempt) for item in found.alerts] == [
        ("a2", True, None, 1),
        ("a1", False, None, 0),
    ]


def test_summary_counts_alerts_older_than_the_tail(logs, client):
    records = [START, alert(severity="critical"), alert(2), *(step(i, loss=1.0) for i in range(30_000))]
    write(logs / "r", records)
    wait_for(lambda: client.get(RUN).json()["indexed"] == 1.0)
    detail = client.get(RUN).json()
    assert (detail["indexed"], detail["num_open_alerts"], detail["num_critical_alerts"]) == (1.0, 2, 1)


MALFORMED = [
    {"event": "alert"},
    {"event": "alert", "time": "now", "global_step": "many", "id": None, "rule": None, "title": None},
    {"event": "alert", "time": math.nan, "global_step": 2**80, "id": [1, {"a": 2}], "rule": 7, "severity": ["bad"]},
    alert(severity="apocalyptic", status=3, title={"a": 1}, message=5, meaning=[1], advice="one", evidence="text"),
    alert(advice=[None, 1, {"a": "b"}], evidence={"": None, "metric": 7, "n": 10**300}, occurrence=[1], outcome=0),
    alert(evidence={"deep": [[[[[[1]]]]]]}, occurrence={"step": math.inf, "deep": {"a": {"b": {"c": {"d": 1}}}}}),
    alert(id="x" * 100_000, rule="y" * 100_000, title="z" * 100_000, message="ü" * 100_000, advice=["v" * 9_999] * 999),
    alert(evidence={f"name{i}" * 100: ["w" * 1_000] * 40 for i in range(40)}),
]


@pytest.mark.parametrize("record", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_alerts_give_valid_response(logs, client, record):
    write(logs / "r", [START, record, record])
    found = get_alerts(client)
    assert len(found.alerts) == found.num_open == 1
    (item,) = found.alerts
    assert len(item.title) <= 300
    assert len(msgspec.json.encode(item)) < 500_000
    assert client.get(RUN).json()["num_open_alerts"] == 1


def test_deeply_nested_evidence_is_shortened(logs, client):
    deep = b'{"event":"alert","time":1,"id":"a","evidence":{"a":' + b"[" * 300 + b"]" * 300 + b"}}"
    write(logs / "r", [START, deep])
    assert get_alerts(client).alerts[0].evidence == {"a": [["…"]]}


@pytest.mark.parametrize("status", ["opened", "resolved"])
def test_excess_alerts_are_counted_not_listed(logs, client, status):
    many = (alert(i, status, at=i, severity="critical" if i == 9_999 else "warning") for i in range(10_000))
    write(logs / "r", [START, *many, END])
    found = get_alerts(client)
    assert (len(found.alerts), found.num_left_out) == (200, 9_800)
    assert found.alerts[0].id == "a9999"  # the most severe, then the newest
    assert (found.num_open, found.num_critical) == ((500, 1) if status == "opened" else (0, 0))


def test_response_size_of_large_alerts_is_limited(logs, client):
    much = {
        "message": "m" * 20_000,
        "advice": ["a" * 5_000] * 10,
        "evidence": {f"e{i}": "x" * 999 for i in range(99)},
    }
    write(logs / "r", [START, *(alert(i, **much) for i in range(150))])
    found = get_alerts(client)
    assert 0 < len(found.alerts) < 150
    assert len(found.alerts) + found.num_left_out == found.num_open == 150
