"""Verdicts over the API."""

from __future__ import annotations

from tests.comparison.journals import write_run
from tests.server.conftest import check_error


def test_groups_of_runs_are_judged(logs, client):
    for number in range(3):
        write_run(logs, f"old-{number}", seed=number)
        write_run(logs, f"new-{number}", seed=10 + number, factor=1.05, start={"config": {"lr": "NaN"}})
    sides = {"run": [f"new-{number}" for number in range(3)], "against": [f"old-{number}" for number in range(3)]}
    page = client.get("/api/v1/compare", params=sides).json()
    assert page["indexed"] == 1
    assert page["report"]["headline"].startswith("Slower by 5.")
    speed = page["report"]["metrics"][0]
    assert (speed["name"], speed["verdict"], speed["runs_a"]) == ("step_time", "slower", 3)
    line = page["lines"][0]
    assert (line["title"], line["sign"]) == ("step time", "bad")
    assert line["difference"].startswith("+5.")
    assert page["report"]["config_diff"][0]["second"] == ["NaN"]


def test_both_sides_are_needed(logs, client):
    write_run(logs, "a")
    check_error(client.get("/api/v1/compare", params={"run": ["a"]}), 400, "bad_query")
    check_error(client.get("/api/v1/compare", params={"run": ["a"], "against": ["nosuch"]}), 404, "no_such_run")
