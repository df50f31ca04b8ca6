"""Two shards, and two replicas of which one is killed."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tachograph.exceptions import ColumnStoreError
from tachograph.journal import RunFolder
from tachograph.server.columns import ColumnStore, verify_runs
from tests.conftest import reserve_port, wait_for
from tests.server.columns.conftest import need
from tests.server.columns.servers import ClickHouseServer, ZooKeeper, missing_server, missing_zookeeper
from tests.server.columns.test_answers import check_equal
from tests.server.columns.test_grafana import TITLES, Board, record_run, write_odd_run
from tests.server.columns.test_inserter import no_differences, write_runs
from tests.store import append, step


def cluster_config(groups: list[list[int]], *, is_replicated: bool = False) -> str:
    """Return the configuration of a cluster: the native ports of each shard."""
    shards = ""
    for ports in groups:
        replicas = "".join(f"<replica><host>127.0.0.1</host><port>{port}</port></replica>" for port in ports)
        shards += f"<shard><internal_replication>{str(is_replicated).lower()}</internal_replication>{replicas}</shard>"
    return f"<remote_servers><both>{shards}</both></remote_servers>"


def cursor_offsets(store: ColumnStore) -> str:
    table = store.schema.table("cursors")
    return store.schema.client.execute(
        f"SELECT run_id, rank, max(offset) FROM {table} GROUP BY run_id, rank ORDER BY 1, 2"
    )


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[ClickHouseServer]]:
    need(missing_server())
    ports = [[reserve_port() for _ in range(3)] for _ in range(2)]
    config = cluster_config([[each[1]] for each in ports])
    with contextlib.ExitStack() as stack:
        servers = []
        for at, each in enumerate(ports):
            servers.append(ClickHouseServer(tmp_path / f"shard{at}", config, each))
            stack.callback(servers[-1].close)
        yield servers


def test_runs_are_spread_over_two_shards(shards, tmp_path):
    write_runs(tmp_path / "logs", 12, 300)
    stores = [ColumnStore(f"{server.url}/runs?cluster=both") for server in shards]
    try:
        for store in stores:
            store.schema.migrate()
        stores[0].inserter(str(tmp_path / "logs")).insert_all()
        local = [
            store.schema.client.execute(f"SELECT DISTINCT run_id FROM {store.schema.local_table('points')}").split()
            for store in stores
        ]
        assert all(local)
        assert len(set(local[0] + local[1])) == len(local[0] + local[1]) == 12  # each run is on one shard
        for store in stores:  # each server answers for all runs
            assert no_differences(store, tmp_path / "logs")
            assert len(store.aggregates(["a"])) == 12
            check_equal(store, RunFolder(tmp_path / "logs" / "r3"), [{}, {"low": 100.0, "high": 120.0}])
    finally:
        for store in stores:
            store.close()


def test_grafana_reads_all_shards(shards, tmp_path):
    logs = tmp_path / "logs"
    record_run(logs)
    write_odd_run(logs)
    write_runs(logs, 6, 10)
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(ColumnStore(f"{server.url}/runs?cluster=both")) for server in shards]
        for store in stores:
            store.schema.migrate()
        stores[0].inserter(str(logs)).insert_all()
        for store in stores:
            board = Board(store, time.time())
            assert all(board.panel(title) for title in TITLES)
            assert len({row["run"] for row in board.panel("${metric} by step", metric="a")}) == 6
            assert len(board.variable("run")) == 8


def test_writes_wait_for_a_shard_that_is_down(shards, tmp_path):
    logs = tmp_path / "logs"
    write_runs(logs, 8, 100)
    with (
        ColumnStore(f"{shards[0].url}/runs?cluster=both") as store,
        ColumnStore(f"{shards[1].url}/runs?cluster=both") as other,
    ):
        other.schema.migrate()
        store.schema.migrate()
        inserter = store.inserter(str(logs))
        inserter.insert_all()
        shards[1].kill()
        for number in range(8):
            append(RunFolder(logs / f"r{number}"), [step(at, a=5.0) for at in range(200, 300)])
        stop = threading.Event()
        thread = threading.Thread(target=inserter.run, args=(stop,))
        thread.start()
        try:
            wait_for(lambda: inserter.lag.error)
            with pytest.raises(ColumnStoreError) as raised:  # so the caller asks the files
                store.aggregates(["a"])
            assert raised.value.may_retry
            shards[1].start()
            wait_for(lambda: inserter.lag.error is None and inserter.lag.num_rows > 0)
        finally:
            stop.set()
            thread.join()
        inserter.insert_all()
        assert no_differences(store, logs)


def test_killed_replica_catches_up(tmp_path):
    need(missing_zookeeper())
    logs = tmp_path / "logs"
    write_runs(logs, 2, 1_000)
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    servers = [
        ClickHouseServer(
            tmp_path / f"replica{at}",
            f"{zookeeper.config}<macros><shard>1</shard><replica>r{at}</replica></macros>",
        )
        for at in range(2)
    ]
    stores = [ColumnStore(f"{server.url}/runs?replicated=1") for server in servers]

    def is_copied() -> bool:
        # Each table is copied on its own: the points may be there before the cursors.
        return no_differences(stores[1], logs) and cursor_offsets(stores[1]) == cursor_offsets(stores[0])

    try:
        for store in stores:
            store.schema.migrate()
        inserter = stores[0].inserter(str(logs))
        inserter.insert_all()
        wait_for(is_copied, "the second replica is complete")
        servers[1].kill()
        for number in range(2):
            append(RunFolder(logs / f"r{number}"), [step(at, a=5.0) for at in range(2_000, 2_500)])
        inserter.insert_all()
        assert no_differences(stores[0], logs)
        # As if it was killed between writing a part and registering it in ZooKeeper.
        part = next((servers[1].folder / "data/data/runs/cursors").glob("all_*"))
        shutil.copytree(part, part.with_name("all_77_77_0"))
        servers[1].start()
        wait_for(is_copied, "the killed replica has caught up")
        check_equal(stores[1], RunFolder(logs / "r1"), [{}])
        # It can also continue where the other one stopped.
        append(RunFolder(logs / "r0"), [step(3_000, a=1.0)])
        assert stores[1].inserter(str(logs)).insert_all() < 20
        assert next(verify_runs(stores[1].schema, str(logs))) == ("r0", [])
    finally:
        for store in stores:
            store.close()
        for server in servers:
            server.close()
        zookeeper.close()
