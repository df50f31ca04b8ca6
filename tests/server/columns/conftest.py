"""Servers that all tests of a process share, and a database of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tachograph.journal import RunFolder
from tachograph.server.columns import ColumnStore
from tachograph.store import SeriesSource, StoredRun
from tests.server.columns.servers import ChdbServer, ClickHouseServer, missing_chdb, missing_server

ENGINES = ("18.16", "chdb")
_numbers = itertools.count()


def need(reason: str) -> None:
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    need(missing_server())
    server = ClickHouseServer(tmp_path_factory.mktemp("clickhouse"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChdbServer]:
    need(missing_chdb())
    server = ChdbServer(tmp_path_factory.mktemp("chdb"))
    yield server
    server.close()


def address(server: ClickHouseServer | ChdbServer, options: str = "") -> str:
    """Return the address of a new database."""
    return f"{server.url}/test_{next(_numbers)}{options}"


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest) -> str:
    """The address of an empty database, on each engine."""
    return address(request.getfixturevalue("old_server" if request.param == "18.16" else "new_server"))


@pytest.fixture
def store(url: str) -> Iterator[ColumnStore]:
    """An empty column store, on each engine."""
    with ColumnStore(url) as store:
        store.schema.migrate()
        yield store


def fill(store: ColumnStore, folder: RunFolder) -> None:
    """Insert the runs in the log folder of a run."""
    store.inserter(str(folder.path.parent)).insert_all()


@pytest.fixture(params=["files", *ENGINES])
def open_run(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], SeriesSource]]:
    """Open a run in each of the stores: files, and ClickHouse on each engine."""
    if request.param == "files":

        def from_files(path: Path) -> SeriesSource:
            run = StoredRun(RunFolder(path))
            run.refresh()
            return run

        yield from_files
        return
    server = request.getfixturevalue("old_server" if request.param == "18.16" else "new_server")
    with ColumnStore(address(server)) as store:
        store.schema.migrate()

        def from_tables(path: Path) -> SeriesSource:
            fill(store, RunFolder(path))
            return store.run(RunFolder(path), path.name)

        yield from_tables
