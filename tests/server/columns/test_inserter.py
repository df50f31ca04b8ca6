"""Inserting: repeats, kills and restarts of either side change nothing."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tachograph.exceptions import ColumnStoreError, ConfigError
from tachograph.journal import RunFolder, compress_journal
from tachograph.server.columns import ColumnStore, verify_runs
from tachograph.server.columns._rows import TILE_POINTS
from tests.conftest import wait_for
from tests.server.columns.conftest import fill, need
from tests.server.columns.servers import ClickHouseServer, missing_server
from tests.server.columns.test_answers import check_equal, journal_of_odd_things, views
from tests.store import END, START, append, files_opened, step, write

TABLES = ("points", "tiles", "summaries", "events", "spans", "runs", "cursors")


def rows_of(store: ColumnStore, table: str) -> list[str]:
    """Return the rows of a table, without what depends on when they were inserted."""
    columns = "run_id, rank, offset, before" if table == "cursors" else "*"
    found = store.schema.client.execute(f"SELECT {columns} FROM {store.schema.table(table)} FINAL FORMAT TSV")
    return sorted(found.decode().splitlines())


def all_rows(store: ColumnStore) -> dict[str, list[str]]:
    return {table: rows_of(store, table) for table in TABLES}


def no_differences(store: ColumnStore, logs: Path) -> bool:
    return all(not found for _, found in verify_runs(store.schema, str(logs)))


def write_runs(logs: Path, number: int = 3, num_steps: int = 3_000) -> None:
    for at in range(number):
        rng = random.Random(at)
        steps = [step(i, a=rng.gauss(0, 1), b=math.nan if i % 50 == 0 else float(i)) for i in range(num_steps)]
        write(logs / f"r{at}", [{**START, "run_id": f"id{at}"}, *steps, END])


def test_rows_do_not_depend_on_batches(store, url, tmp_path):
    folder = write(tmp_path / "logs" / "r", journal_of_odd_things())
    write_runs(tmp_path / "logs", 2)
    fill(store, folder)
    whole = all_rows(store)
    assert len(whole["points"]) > 2 * 6_000
    assert len(whole["tiles"]) > 2 * 6_000 // TILE_POINTS
    with ColumnStore(f"{url}_small") as other:
        other.schema.migrate()
        for _ in range(2):
            other.inserter(str(tmp_path / "logs"), runs=["r"]).insert_all()
        inserter = other.inserter(str(tmp_path / "logs"))
        inserter._max_rows = 500
        inserter.insert_all()
        assert all_rows(other) == whole


def test_idle_runs_are_not_opened_again(store, tmp_path):
    write_runs(tmp_path / "logs", 2, num_steps=10)
    hour_ago_s = time.time() - 3_600
    for path in (tmp_path / "logs").rglob("*"):
        os.utime(path, (hour_ago_s, hour_ago_s))
    inserter = store.inserter(str(tmp_path / "logs"))
    for _ in range(3):
        inserter.insert_all()
    write(tmp_path / "logs" / "new", [{**START, "run_id": "new"}, step(0, a=1.0), END])
    with files_opened(tmp_path / "logs") as opened:
        inserter.insert_all()
    assert {Path(path).parent.name for path in opened} == {"new"}
    assert no_differences(store, tmp_path / "logs")
    append(RunFolder(tmp_path / "logs" / "new"), [step(1, a=2.0)])
    inserter.insert_all()
    assert no_differences(store, tmp_path / "logs")


def test_repeated_batches_collapse(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", journal_of_odd_things())
    fill(store, folder)
    before = all_rows(store)
    client, table = store.schema.client, store.schema.table("cursors")
    for _ in range(2):
        client.execute(f"DROP TABLE {table}")  # so that the inserter knows nothing
        store.schema.create_tables()
        fill(store, folder)
    plain = int(client.execute(f"SELECT count() FROM {store.schema.table('points')}"))
    assert plain >= len(before["points"])
    assert all_rows(store) == before
    check_equal(store, folder, views()[:6])


def test_dropped_tables_are_filled_again(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", journal_of_odd_things())
    inserter = store.inserter(str(tmp_path / "logs"))
    inserter.insert_all()
    before = all_rows(store)
    store.schema.drop()
    assert store.schema.applied() == 0
    append(folder, [step(1_000, a=1.0)])
    with pytest.raises(ColumnStoreError):
        inserter.insert_all()
    store.schema.migrate()
    inserter.insert_all()
    after = all_rows(store)
    assert set(before["points"]) < set(after["points"])
    assert len(after["points"]) == len(before["points"]) + 1
    check_equal(store, folder, views()[:6])


def test_replaced_journal_is_inserted_again(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", [START, *(step(at, a=1.0) for at in range(100))])
    other = write(tmp_path / "logs" / "other", [{**START, "run_id": "other"}, step(1, a=1.0)])
    fill(store, folder)
    write(tmp_path / "logs" / "r", [START, *(step(at, a=2.0, b=1.0) for at in range(40))])
    fill(store, folder)
    assert len([row for row in rows_of(store, "points") if "other" not in row]) == 80
    check_equal(store, folder, [{}])
    check_equal(store, other, [{}])


def test_replaced_journal_is_noticed_while_following(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", [START, *(step(at, a=1.0) for at in range(100))])
    inserter = store.inserter(str(tmp_path / "logs"))
    inserter.insert_all()
    append(folder, [step(100, a=1.0)])
    inserter.insert_all()
    write(tmp_path / "logs" / "r", [START, *(step(at, a=2.0) for at in range(300))])
    inserter.insert_all()
    check_equal(store, folder, [{}])


def test_compressed_journal_continues(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", [START, *(step(at, a=float(at)) for at in range(100)), END])
    fill(store, folder)
    assert compress_journal(folder.journal, below=folder.path, publishing=lambda: contextlib.nullcontext(True))
    assert store.inserter(str(tmp_path / "logs")).insert_all() == 0
    store.schema.delete_run("0123")
    fill(store, folder)
    check_equal(store, folder, [{}])


def test_incomplete_line_is_not_inserted_yet(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", [START, step(1, a=1.0)])
    with open(folder.journal, "ab") as file:
        file.write(b'{"event":"step","time":3.0,"global_step":2,')
    inserter = store.inserter(str(tmp_path / "logs"))
    inserter.insert_all()
    assert len(rows_of(store, "points")) == 1
    append(folder, [b'"a":5.0}'])
    inserter.insert_all()
    assert len(rows_of(store, "points")) == 2


def test_copy_of_a_run_is_skipped_and_reported(store, tmp_path):
    write(tmp_path / "logs" / "a", [START, step(1, a=1.0)])
    write(tmp_path / "logs" / "b", [START, step(1, a=2.0)])
    inserter = store.inserter(str(tmp_path / "logs"))
    inserter.insert_all()
    assert inserter.lag.skipped == {"b": "it has the same run_id as 'a'"}
    assert len(rows_of(store, "points")) == 1


def test_verify_finds_planted_differences(store, tmp_path):
    write_runs(tmp_path / "logs")
    store.inserter(str(tmp_path / "logs")).insert_all()
    assert no_differences(store, tmp_path / "logs")
    client, points = store.schema.client, store.schema.table("points")
    # A point that the journal does not have, with the same step and value as another one.
    client.execute(
        f"INSERT INTO {points} SELECT day, run_id, metric, stream, rank, attempt, step, time, value, offset + 1"
        f" FROM {points} WHERE run_id = 'id1' AND metric = 'a' AND step = 7"
    )
    found = dict(verify_runs(store.schema, str(tmp_path / "logs")))
    assert (found["r0"], found["r2"]) == ([], [])
    assert {(each.metric, each.what) for each in found["r1"]} == {("a", "num_points"), ("a", "hash")}
    store.schema.delete_run("id1")
    missing = dict(verify_runs(store.schema, str(tmp_path / "logs"), runs=["r1"]))["r1"]
    assert {(each.metric, each.in_store) for each in missing} == {("a", None), ("b", None)}


def test_events_and_spans_have_their_records(store, tmp_path):
    span = {
        "event": "span",
        "time": 1_002.5,
        "name": "checkpoint",
        "span_id": "x1",
        "parent_id": "x0",
        "duration_s": 0.5,
    }
    alert = {"event": "alert", "time": 1_003.0, "name": "loss_nan", "severity": "critical", "global_step": 7}
    large = {"event": "completions", "time": 1_004.0, "rows": ["x" * 70_000]}
    folder = write(tmp_path / "logs" / "r", [START, span, alert, large])
    fill(store, folder)
    spans = store.schema.client.execute(
        f"SELECT name, span_id, parent_id, duration_s, visitParamExtractString(body, 'name')"
        f" FROM {store.schema.table('spans')}"
    )
    assert spans == b"checkpoint\tx1\tx0\t0.5\tcheckpoint\n"
    events = store.schema.client.execute(
        "SELECT kind, name, severity, step, body = '', body_bytes > 70000"
        f" FROM {store.schema.table('events')} ORDER BY time"
    )
    assert events.decode().splitlines() == [
        "start\t\t\t-1\t0\t0",
        "alert\tloss_nan\tcritical\t7\t0\t0",
        "completions\t\t\t-1\t1\t1",
    ]


def test_schema_of_a_newer_version_is_refused(store):
    store.schema.client.execute(f"INSERT INTO {store.schema.table('schema_version')} SELECT 99, now()")
    with pytest.raises(ConfigError, match="has schema 99, but this version of Tachograph knows only 1"):
        store.schema.migrate()


def test_migration_can_be_repeated(store):
    assert store.schema.migrate() == []
    store.schema.create_tables()
    assert store.schema.applied() == 1


FOLLOW = """
import sys, threading
from tachograph.server.columns import ColumnStore
store = ColumnStore(sys.argv[1])
inserter = store.inserter(sys.argv[2])
inserter._max_rows = 2_000
print("following", flush=True)
inserter.run(threading.Event())
"""


def test_inserter_killed_while_inserting(url, tmp_path, script):
    """Kill the inserter again and again while it works; what it leaves is completed by the next one."""
    write_runs(tmp_path / "logs", 6, 4_000)
    with ColumnStore(url) as store:
        store.schema.migrate()

        def num_points() -> int:
            return int(store.schema.client.execute(f"SELECT count() FROM {store.schema.table('points')}"))

        for _ in range(4):
            before = num_points()
            process = script(FOLLOW, url, tmp_path / "logs").process
            wait_for(lambda before=before: num_points() > before or no_differences(store, tmp_path / "logs"))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        store.inserter(str(tmp_path / "logs")).insert_all()
        assert no_differences(store, tmp_path / "logs")
        for number in range(6):
            check_equal(store, RunFolder(tmp_path / "logs" / f"r{number}"), [{}])


@pytest.fixture
def own_server(tmp_path):
    need(missing_server())
    server = ClickHouseServer(tmp_path / "server")
    yield server
    server.close()


def test_server_killed_while_inserting(own_server, tmp_path):
    """The inserter waits while ClickHouse is down, says so, and completes everything when it is back."""
    logs = tmp_path / "logs"
    write_runs(logs, 2, 4_000)
    with ColumnStore(own_server.url) as store:
        inserter = store.inserter(str(logs))
        inserter._max_rows = 1_000
        stop = threading.Event()
        thread = threading.Thread(target=inserter.run, args=(stop,))
        thread.start()
        try:
            for at in range(3):
                wait_for(lambda: inserter.lag.num_rows > 0 and inserter.lag.error is None)
                own_server.kill()
                append(RunFolder(logs / "r0"), [step(i, a=1.0) for i in range(5_000 + 1_000 * at, 6_000 + 1_000 * at)])
                wait_for(lambda: inserter.lag.error)
                assert "cannot reach" in str(inserter.lag.error)
                assert inserter.lag.behind_since is not None
                own_server.start()
            wait_for(lambda: inserter.lag.error is None and inserter.lag.num_bytes == 0 and inserter.lag.lag_s == 0)
        finally:
            stop.set()
            thread.join()
        inserter.insert_all()
        assert no_differences(store, logs)
        check_equal(store, RunFolder(logs / "r0"), [{}])


def test_lag_is_readable_before_the_server_is_up(tmp_path):
    need(missing_server())
    write_runs(tmp_path / "logs", 1, 10)
    server = ClickHouseServer(tmp_path / "server")
    try:
        with ColumnStore(server.url) as store:
            server.kill()
            inserter = store.inserter(str(tmp_path / "logs"))
            with pytest.raises(ColumnStoreError) as raised:
                inserter.insert_all()
            assert raised.value.may_retry
            server.start()
            store.schema.migrate()
            assert inserter.insert_all() > 0
            assert (inserter.lag.num_bytes, inserter.lag.lag_s) == (0, 0.0)
    finally:
        server.close()


def test_journal_that_cannot_be_converted_stops_no_other(store, tmp_path):
    many = [{**START, "run_id": "many", "time": float(at)} for at in range(66_000)]  # more attempts than a column holds
    write(tmp_path / "logs" / "many", [*many, step(1, a=1.0)])
    folder = write(tmp_path / "logs" / "r", [START, step(1, a=1.0)])
    inserter = store.inserter(str(tmp_path / "logs"))
    inserter.insert_all()
    check_equal(store, folder, [{}])
    append(folder, [step(2, a=1.0)])
    inserter.insert_all()
    assert "its records cannot be converted: OverflowError" in inserter.lag.skipped["many"]
    check_equal(store, folder, [{}])


def test_schema_of_a_newer_version_stops_no_inserter(store, tmp_path):
    store.schema.client.execute(f"INSERT INTO {store.schema.table('schema_version')} SELECT 99, now()")
    inserter, stop = store.inserter(str(tmp_path / "logs")), threading.Event()
    thread = threading.Thread(target=inserter.run, args=(stop,))
    thread.start()
    wait_for(lambda: inserter.lag.error)
    assert thread.is_alive()
    stop.set()
    thread.join()
    assert "install a newer version" in str(inserter.lag.error)


def test_many_runs_share_batches(store, tmp_path, monkeypatch):
    for number in range(40):
        write(tmp_path / "logs" / f"r{number:02}", [{**START, "run_id": f"id{number}"}, step(1, a=1.0), END])
    posts: list[Any] = []
    insert = store.schema.client.insert
    monkeypatch.setattr(store.schema.client, "insert", lambda table, rows: (posts.append(table), insert(table, rows)))
    store.inserter(str(tmp_path / "logs")).insert_all()
    assert len(posts) == len(set(posts)) <= 7
    assert len(rows_of(store, "runs")) == 40
