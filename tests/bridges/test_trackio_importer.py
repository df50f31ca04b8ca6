"""`tacho import trackio`: databases written by the real package, offline, read without it."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
import textwrap

import pytest

import tachograph
from tachograph.importers import describe, import_runs
from tests.cli.test_cli import tacho
from tests.conftest import lines_of
from tests.importers.test_import import KILLS, check_killed_import

SCRIPT = """
    import json, sys
    import numpy as np
    import trackio

    for project, options, begin, end in json.loads(sys.argv[1]):
        run = trackio.init(project=project, auto_log_cpu=False, auto_log_gpu=False, embed=False, **options)
        for step in range(begin, end):
            special = {"bad": float("nan"), "up": float("inf")} if step == 1 else {}
            trackio.log({"loss": 1 / (step + 1), "event": 2, "nested": {"a": step}, **special}, step=step)
        if begin == 0:
            table = trackio.Table(columns=["a"], data=[[1]])
            histogram = trackio.Histogram([1, 2, 2], num_bins=2)
            picture = trackio.Image(np.full((8, 8, 3), 9, np.uint8), caption="a fox")
            trackio.log({"hist": histogram, "table": table, "picture": picture, "loss": 9.0, "note": "text"}, step=end)
            trackio.log_system({"cpu": 50.0})
            trackio.alert("attention", "the loss")
        trackio.finish()
"""


def write_runs(folder, *runs):
    environment = {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "CI": "1"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), json.dumps(runs)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


CONFIG = {"lr": 0.5, "model": {"depth": 2}, "api_key": "opaque"}


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """Two projects, the first of which has two runs."""
    return write_runs(
        tmp_path_factory.mktemp("trackio"),
        ["jackets", {"name": "first", "config": CONFIG, "group": "g"}, 0, 5],
        ["jackets", {"name": "second"}, 3, 6],
        ["coats", {"name": "third"}, 3, 4],
    )


def test_trackio_projects_become_runs(projects, logs):
    reports = {
        report["run"]: report
        for report in json.loads(tacho("import", "trackio", projects, "--log-dir", logs, "--json"))
    }
    assert sorted(reports) == ["first", "second", "third"]
    assert reports["first"]["left_out"] == {"table": 1, "value that is not a number": 1}
    history = tachograph.read(logs / "first")
    (picture,) = history.media.items()
    assert (picture.name, picture.step, picture.caption, picture.fields["width"]) == ("picture", 5, "a fox", 8)
    assert picture.path is not None
    start = next(history.records("start"))
    assert (start["project"], start["group"], start["imported_from"]["format"]) == ("jackets", "g", "trackio")
    assert history.config == {**CONFIG, "api_key": "[masked]"}
    loss = history.series("loss")
    assert (list(loss.steps), list(loss.values)) == ([0, 1, 2, 3, 4, 5], [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 9])
    assert start["time"] <= loss.times[0] <= loss.times[-1]
    assert list(history.series("nested/a").values) == [0, 1, 2, 3, 4]
    assert list(history.series("event_").values) == [2] * 5
    (row,) = [row for row in history.records("step") if "bad" in row]
    assert math.isnan(row["bad"]) and row["up"] == math.inf
    events = {record["name"]: record for record in history.records("event")}
    assert (events["histogram"]["tag"], events["histogram"]["counts"]) == ("hist", [1, 2])
    assert (events["alert"]["title"], events["alert"]["text"]) == ("attention", "the loss")
    assert [record["cpu"] for record in history.records("system")] == [50.0]
    assert str(history.state) == "stale"
    assert describe(projects) == describe(projects / "coats.db") == "trackio"


def test_trackio_run_that_has_grown_gets_only_what_is_new(tmp_path, logs):
    folder = write_runs(tmp_path / "trackio", ["p", {"name": "a", "config": {"lr": 1}}, 0, 4])
    import_runs("trackio", [folder], str(logs))
    (report,) = import_runs("trackio", [folder], str(logs))
    assert report.outcome == "unchanged"
    write_runs(folder, ["p", {"name": "a", "resume": "must", "config": {"lr": 1}}, 10, 13])
    (dry,) = import_runs("trackio", [folder / "p.db"], str(logs), dry_run=True)
    (report,) = import_runs("trackio", [folder / "p.db"], str(logs))
    assert (report.outcome, report.num_rows, dry.num_rows) == ("updated", 3, 3)
    steps = [record["global_step"] for record in lines_of(logs / "a") if record["event"] == "step"]
    assert steps == [0, 1, 2, 3, 4, 10, 11, 12]


@pytest.mark.parametrize("kill", [KILLS[0], KILLS[4], KILLS[8]])
def test_killed_import_of_trackio_continues(tmp_path, script, kill):
    folder = write_runs(tmp_path / "trackio", ["p", {"name": "a"}, 0, 300])
    check_killed_import(script, "trackio", folder / "p.db", tmp_path, kill, 5_000)


def test_rewritten_or_damaged_trackio_database_is_noticed(tmp_path, logs):
    folder = write_runs(tmp_path / "trackio", ["p", {"name": "a"}, 0, 5])
    with sqlite3.connect(folder / "p.db") as database:
        database.execute("UPDATE metrics SET metrics = '{\"loss' WHERE step = 2")
    database.close()
    (report,) = import_runs("trackio", [folder], str(logs))
    assert [(item.where, item.reason) for item in report.damage] == [("row 3 of metrics", "is not a JSON object")]
    assert report.metrics["loss"] == 5
    with sqlite3.connect(folder / "p.db") as database:
        database.execute("DELETE FROM metrics WHERE step > 1")
    database.close()
    (report,) = import_runs("trackio", [folder], str(logs))
    assert "has changed since it was imported" in report.error


def test_database_of_an_older_trackio_is_read(tmp_path, logs):
    """Before 0.20 or so, runs were identified by their names."""
    with sqlite3.connect(tmp_path / "old.db") as database:
        database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp, run_name, step, metrics)")
        database.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_name, config, created_at)")
        database.execute("INSERT INTO configs VALUES (1, 'a', '{\"lr\": 1}', '')")
        database.execute("INSERT INTO metrics VALUES (1, '2025-01-01T00:00:00', 'a', 7, '{\"loss\": 0.5}')")
    database.close()
    import_runs("trackio", [tmp_path / "old.db"], str(logs))
    history = tachograph.read(logs / "a")
    assert (history.config, list(history.series("loss").steps)) == ({"lr": 1}, [7])
