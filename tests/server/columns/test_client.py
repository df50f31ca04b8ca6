"""Addresses, and statements over HTTP."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tachograph.exceptions import ColumnStoreError, ConfigError
from tachograph.server.columns import ColumnStore
from tachograph.server.columns._address import parse_address
from tachograph.server.columns._client import ClickHouseClient, quote
from tests.conftest import wait_for
from tests.server.columns.test_answers import ODD_NAMES


@pytest.fixture
def client(url):
    client = ClickHouseClient(parse_address(url))
    yield client
    client.close()


def test_parts_of_an_address():
    found = parse_address("clickhouse://me@db.example:9999/runs?cluster=big&replicated=1&secure=1&timeout=5")
    assert found[:4] == ("db.example", 9999, "runs", "me")
    assert (found.cluster, found.is_replicated, found.is_secure, found.timeout_s) == ("big", True, True, 5.0)
    assert found.is_compressed
    plain = parse_address("clickhouse://127.0.0.1")
    assert (plain.port, plain.database, plain.is_compressed) == (8123, "tacho", False)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://host/x", "is no address of a store"),
        ("clickhouse:///x", "is no address of a store"),
        ("clickhouse://h:99999999/x", "is invalid"),
        ("clickhouse://u:hidden@h/x", "set TACHO_CLICKHOUSE_PASSWORD instead"),
        ("https://u:hidden@h/x", "is no address of a store"),
        ("clickhouse://h/a-b", "'a-b' is no name of a database"),
        ("clickhouse://h/x?cluster=a%27b", "is no name of a cluster"),
        ("clickhouse://h/x?clutser=1", "did you mean 'cluster'"),
        ("clickhouse://h/x?secure=yes", "secure=yes in the address of the store is invalid; use 0 or 1"),
        ("clickhouse://h/x?timeout=-1", "timeout=-1"),
    ],
)
def test_invalid_addresses_are_rejected(address, reason):
    with pytest.raises(ConfigError) as raised:
        parse_address(address)
    assert reason in str(raised.value)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("text", [*ODD_NAMES, "", "'; SELECT 1; --", "\\", "\\'", "\x01\x1f\x7f", "日本 🚀"])
def test_quoted_text_comes_back_unchanged(client, text):
    assert client.columns(f"SELECT {quote(text)} AS x", {"x": "String"})["x"] == [text]


def test_columns_of_all_kinds(client):
    sql = "SELECT number, toInt64(number) - 2 AS i, number / 0 AS f, toString(number * 100) AS s FROM numbers(4)"
    found = client.columns(sql, {"number": "UInt64", "i": "Int64", "f": "Float64", "s": "String"})
    assert found["number"].tolist() == [0, 1, 2, 3]
    assert found["i"].tolist() == [-2, -1, 0, 1]
    assert np.isnan(found["f"][0])
    assert np.isinf(found["f"][1:]).all()
    assert found["s"] == ["0", "100", "200", "300"]
    assert client.columns("SELECT 'x' AS s WHERE 0", {"s": "String"}) == {"s": []}


def test_rejected_statement_raises_with_its_reason(client):
    with pytest.raises(ColumnStoreError, match="nonsense") as raised:
        client.execute("SELECT nonsense FROM system.one")
    assert (raised.value.may_retry, raised.value.code) == (False, 47)
    assert client.execute("SELECT 1") == b"1\n"  # the connection can still be used


def test_error_after_the_first_rows_is_an_error(client):
    with pytest.raises(ColumnStoreError):
        client.execute("SELECT throwIf(number = 3000000) FROM numbers(5000000)")


def test_threads_have_their_own_connections(client):
    barrier = threading.Barrier(4)

    def ask(number):
        barrier.wait()
        return [client.execute(f"SELECT {number}") for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [[b"%d\n" % number] * 20 for number in range(4)]


def test_compressed_statements_and_answers(old_server):
    client = ClickHouseClient(parse_address(f"{old_server.url}/x?compress=1"))
    found = client.columns("SELECT number FROM numbers(100000)", {"number": "UInt64"})["number"]
    assert found.tolist() == list(range(100_000))
    client.execute("CREATE TABLE default.compressed (a UInt8) ENGINE = Memory")
    client.insert("default.compressed", bytes(range(200)))
    assert client.execute("SELECT count(), sum(a) FROM default.compressed") == b"200\t19900\n"
    client.close()


def test_password_comes_from_the_environment(old_server, monkeypatch):
    address = f"clickhouse://guarded@127.0.0.1:{old_server.port}/x"
    with pytest.raises(ColumnStoreError, match="wrong user or password for 'guarded'; set TACHO_CLICKHOUSE_PASSWORD"):
        ColumnStore(address)
    monkeypatch.setenv("TACHO_CLICKHOUSE_PASSWORD", "s3cret pass")
    with ColumnStore(address) as store:
        assert store.schema.client.version == (18, 16)


def test_unreachable_server_may_be_retried():
    with pytest.raises(
        ColumnStoreError, match=r"cannot reach clickhouse://127.0.0.1:1/x: Connection refused"
    ) as raised:
        ColumnStore("clickhouse://127.0.0.1:1/x")
    assert raised.value.may_retry


def test_idle_connection_is_opened_again(tmp_path):
    from tests.server.columns.conftest import need
    from tests.server.columns.servers import ClickHouseServer, missing_server

    need(missing_server())
    server = ClickHouseServer(tmp_path / "server")
    try:
        with ColumnStore(server.url) as store:
            server.kill()
            server.start()
            assert store.schema.client.execute("SELECT 1") == b"1\n"
    finally:
        server.close()


def test_server_that_hangs_is_not_answering(old_server, monkeypatch):
    """Charts then come from the files at once."""
    monkeypatch.setattr("tachograph.server.columns._client._CHECK_EVERY_S", 0.0)
    monkeypatch.setattr("tachograph.server.columns._client._CHECK_AGAIN_S", 0.05)
    with ColumnStore(f"{old_server.url}/hanging") as store:
        wait_for(lambda: store.is_answering, "an answer")
        os.kill(old_server.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: not store.is_answering, "no answer")
        finally:
            os.kill(old_server.pid, signal.SIGCONT)
        wait_for(lambda: store.is_answering, "an answer after the pause")
