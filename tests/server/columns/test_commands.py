"""`tacho store`, on both engines."""

from __future__ import annotations

import json

import pytest

from tachograph.journal import RunFolder
from tachograph.server.columns import ColumnStore
from tests.cli.test_cli import tacho
from tests.server.columns.test_answers import check_equal
from tests.server.columns.test_inserter import write_runs
from tests.store import START, append, step, write


def failed(*arguments):
    """Return what a command of `tacho store` prints that exits with 1."""
    done = tacho("store", *arguments, check=False)
    assert done.returncode == 1, done.stdout
    return done.stdout + done.stderr


def test_set_up_fill_and_verify(url, logs):
    write_runs(logs, 2, 100)
    assert "created schema 1" in tacho("store", "init", "--store", url)
    assert "schema 1 exists already" in tacho("store", "init", "--store", url)
    assert "nothing to do" in tacho("store", "migrate", "--store", url)
    found = tacho("store", "backfill", "--store", url, "--log-dir", logs, "--verify")
    assert "2 runs: inserted" in found
    assert "2 runs: no differences" in found
    assert "2 runs: inserted 0 rows" in tacho("store", "backfill", "--store", url, "--log-dir", logs)
    assert json.loads(tacho("store", "verify", "--store", url, "--log-dir", logs, "--json")) == []
    with ColumnStore(url) as store:
        check_equal(store, RunFolder(logs / "r1"), [{}])


def test_verify_exits_with_1_and_backfill_repairs(url, logs, monkeypatch):
    write_runs(logs, 2, 100)
    monkeypatch.setenv("TACHO_STORE", url)
    tacho("store", "backfill", "--log-dir", logs)
    with ColumnStore(url) as store:
        points = store.schema.table("points")
        store.schema.client.execute(
            f"INSERT INTO {points} SELECT day, run_id, metric, stream, rank, attempt, step, time, 99.5, offset + 1"
            f" FROM {points} WHERE run_id = 'id1' AND metric = 'a' AND step = 7"
        )
    printed = failed("verify", "--log-dir", logs)
    assert "r1: a (step, attempt 0): highest is" in printed
    assert "and 99.5 in the store" in printed
    assert "2 runs: 3 differences" in printed
    assert "1 run: no differences" in tacho("store", "verify", "--log-dir", logs, "--run", "r0")
    assert "no differences" in tacho("store", "backfill", "--log-dir", logs, "--run", "r1", "--again", "--verify")


def test_backfill_of_some_runs(url, logs):
    write_runs(logs, 3, 50)
    tacho("store", "init", "--store", url)
    found = json.loads(tacho("store", "backfill", "--store", url, "--log-dir", logs, "--run", "r1", "--json"))
    assert (found["runs"], found["skipped"], found["differences"]) == (1, {}, None)
    with ColumnStore(url) as store:
        assert sorted(store.aggregates(["a"])) == ["id1"]
    assert json.loads(
        tacho("store", "backfill", "--store", url, "--log-dir", logs, "--since", "2100-01-01", "--json")
    ) == {
        "runs": 0,
        "rows": 0,
        "skipped": {},
        "differences": None,
    }


def test_old_points_are_removed_and_read_from_files(url, logs):
    old = [{**step(at, a=float(at)), "time": 1e9 + at} for at in range(100)]
    write(logs / "old", [{**START, "run_id": "old"}, *old])
    write(logs / "new", [{**START, "run_id": "new"}, *({**each, "time": 4e9} for each in old)])
    tacho("store", "backfill", "--store", url, "--log-dir", logs)
    assert "tacho" not in tacho("store", "retain", "--store", url, "--days", "30")
    from tachograph.exceptions import ColumnStoreError

    with ColumnStore(url) as store:
        store.schema.client.execute(f"OPTIMIZE TABLE {store.schema.table('points')} FINAL")
        with pytest.raises(ColumnStoreError, match="were removed from the column store; the journal has them"):
            store.run(RunFolder(logs / "old"), "old").series("a")
        assert store.run(RunFolder(logs / "old"), "old").aggregates()["a"].max == 99.0
        (line,), _ = store.run(RunFolder(logs / "new"), "new").series("a")
        assert len(line.x) == 100
        append(RunFolder(logs / "new"), [{**step(100, a=1.0), "time": 4e9}])
        store.inserter(str(logs)).insert_all()
        assert len(store.run(RunFolder(logs / "new"), "new").series("a")[0][0].x) == 101


def test_mistakes_are_explained(logs):
    assert "pass --store clickhouse://HOST:PORT/DATABASE or set TACHO_STORE" in failed("init")
    assert "cannot reach clickhouse://127.0.0.1:1/x" in failed("init", "--store", "clickhouse://127.0.0.1:1/x")


def test_missing_tables_and_runs_are_explained(url, logs):
    assert "create them with: tacho store init" in failed("migrate", "--store", url)
    write_runs(logs, 1, 5)
    wrong = failed("backfill", "--store", url, "--log-dir", logs, "--run", "r00")
    assert "no run 'r00'" in wrong
