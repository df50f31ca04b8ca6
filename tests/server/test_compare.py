"""Verdicts over the API."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tachograph.cli._main import main
from tests.comparison.journals import write_run
from tests.conftest import wait_for
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


def test_noise_is_learned_as_the_command_does(logs, client):
    start = {"perf_tag": "nightly"}
    for number in range(7):
        write_run(logs, f"night-{number}", seed=number, start=start)
    write_run(logs, "failed", seed=8, status="failed", factor=3.0, start=start)
    for part in range(2):  # two attempts of one training count once
        write_run(logs, f"part-{part}", seed=9 + part, start={**start, "session_tag": "long"})
    write_run(logs, "new", seed=30, factor=1.02, start=start)
    write_run(logs, "later", seed=40, factor=2.0, start=start)
    sides = {"run": ["new"], "against": ["night-6"]}

    def judged():
        page = client.get("/api/v1/compare", params=sides).json()
        return page if page["indexed"] == 1 else None

    page = wait_for(judged)
    speed = page["report"]["metrics"][0]
    assert (speed["verdict"], speed["noise_source"]) == ("slower", "7 earlier runs")
    assert "step time 0.0" in page["noise"]
    assert "(7 earlier runs)" in page["noise"]
    arguments = ["compare", "--log-dir", str(logs), "new", "night-6", "later", "--json"]
    printed = json.loads(CliRunner().invoke(main, arguments).output)["comparisons"][0]
    assert printed == page["report"]


def test_both_sides_are_needed(logs, client):
    write_run(logs, "a")
    check_error(client.get("/api/v1/compare", params={"run": ["a"]}), 400, "bad_query")
    check_error(client.get("/api/v1/compare", params={"run": ["a"], "against": ["nosuch"]}), 404, "no_such_run")
