"""The tables of the column store, and the migrations that create them.

Every table is derived from journals and can be dropped. The key of a row contains the offset of its record in the
journal, or is computed from the journal alone, so inserting a row twice has no effect: `ReplacingMergeTree` keeps one
of equal keys, the one with the highest version. All statements here may be repeated, also by two processes at once,
so migrations need no lock.

| set-up | tables |
|---|---|
| one server | `points` is a ReplacingMergeTree |
| replicated | `points` is a ReplicatedReplacingMergeTree; the server's config has the macros `{shard}`, `{replica}` |
| sharded | `points_local` is one of the above, `points` a Distributed table over the cluster by `cityHash64(run_id)` |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tachograph.exceptions import ColumnStoreError, ConfigError
from tachograph.server.columns._client import ClickHouseClient, quote

__all__ = ["SCHEMA_TABLES", "StoreSchema", "TableColumns"]

_TEXT = "LowCardinality(String)"
_CODECS_SINCE = (20, 1)
_TTL_SINCE = (20, 1)
_CODECS = {
    "step": "CODEC(DoubleDelta, ZSTD(1))",
    "offset": "CODEC(DoubleDelta, ZSTD(1))",
    "time": "CODEC(Gorilla, ZSTD(1))",
    "value": "CODEC(ZSTD(1))",
    "body": "CODEC(ZSTD(1))",
}
_UNKNOWN_TABLE, _UNKNOWN_DATABASE = 60, 81

_SERIES = {"run_id": "String", "metric": _TEXT, "stream": _TEXT, "rank": "UInt32", "attempt": "UInt16"}
_EXTENT = {
    "n": "UInt64",
    "nonfinite": "UInt64",
    "offset_first": "UInt64",
    "offset_last": "UInt64",
    "step_first": "Int64",
    "step_last": "Int64",
    "step_min": "Int64",
    "step_max": "Int64",
    "time_first": "Float64",
    "time_last": "Float64",
    "first": "Float64",
    "last": "Float64",
    "low": "Float64",
    "high": "Float64",
    "low_step": "Int64",
    "high_step": "Int64",
    "low_time": "Float64",
    "high_time": "Float64",
    "low_offset": "UInt64",
    "high_offset": "UInt64",
    "total": "Float64",
}


class TableColumns(NamedTuple):
    """The columns of a table in their order, and its key."""

    columns: dict[str, str]
    order: str
    version: str = ""
    """The column whose highest value wins among rows with the same key; empty if such rows are equal."""
    partition: str = ""


SCHEMA_TABLES: dict[str, TableColumns] = {
    "points": TableColumns(
        {
            "day": "Date",
            **_SERIES,
            "step": "Int64",
            "time": "Float64",
            "value": "Float64",
            "offset": "UInt64",
        },
        "(run_id, metric, stream, rank, attempt, step, offset)",
        partition="toYYYYMM(day)",
    ),
    "tiles": TableColumns(
        {**_SERIES, "chunk": "UInt32", **_EXTENT, "sorted": "UInt8"},
        "(run_id, metric, stream, rank, attempt, chunk)",
        version="n",
    ),
    "summaries": TableColumns(
        {**_SERIES, **_EXTENT, "version": "UInt64"},
        "(metric, run_id, stream, rank, attempt)",
        version="version",
    ),
    "runs": TableColumns(
        {
            "project": "String",
            "run_id": "String",
            "name": "String",
            "state": _TEXT,
            "started": "Float64",
            "last_time": "Float64",
            "last_step": "Int64",
            "num_attempts": "UInt32",
            "world_size": "UInt32",
            "host": "String",
            "run_group": "String",
            "job_type": "String",
            "perf_tag": "String",
            "config": "String",
            "version": "UInt64",
        },
        "(run_id)",
        version="version",
    ),
    "events": TableColumns(
        {
            "day": "Date",
            "kind": _TEXT,
            "run_id": "String",
            "rank": "UInt32",
            "attempt": "UInt16",
            "name": "String",
            "severity": _TEXT,
            "step": "Int64",
            "time": "Float64",
            "body": "String",
            "body_bytes": "UInt64",
            "offset": "UInt64",
        },
        "(kind, day, run_id, rank, offset)",
        partition="toYYYYMM(day)",
    ),
    "spans": TableColumns(
        {
            "day": "Date",
            "run_id": "String",
            "rank": "UInt32",
            "attempt": "UInt16",
            "kind": _TEXT,
            "name": _TEXT,
            "span_id": "String",
            "parent_id": "String",
            "time": "Float64",
            "duration_s": "Float64",
            "status": _TEXT,
            "body": "String",
            "body_bytes": "UInt64",
            "offset": "UInt64",
        },
        "(run_id, rank, day, offset)",
        partition="toYYYYMM(day)",
    ),
    "cursors": TableColumns(
        {
            "run_id": "String",
            "rank": "UInt32",
            "offset": "UInt64",
            "before": "String",
            "state": "String",
            "version": "UInt64",
        },
        "(run_id, rank)",
        version="version",
    ),
}
"""The tables of the newest schema."""
_VERSIONS = TableColumns({"schema": "UInt32", "applied": "DateTime"}, "(schema)")


class StoreSchema:
    """The tables in one database, in the set-up that the address states."""

    def __init__(self, client: ClickHouseClient) -> None:
        self.client = client
        self._address = client.address
        self.is_modern = client.version >= _CODECS_SINCE

    def table(self, name: str) -> str:
        """Return the table to query and to insert into."""
        return f"{self._address.database}.{name}"

    def local_table(self, name: str) -> str:
        """Return the table that has rows on this server; the same without a cluster."""
        return self.table(f"{name}_local" if self._address.cluster else name)

    def applied(self) -> int:
        """Return the number of the newest migration that was applied here; 0 if there are no tables."""
        try:
            version = self.client.execute(f"SELECT max(schema) FROM {self.table('schema_version')}")
        except ColumnStoreError as error:
            if error.code in {_UNKNOWN_TABLE, _UNKNOWN_DATABASE}:
                return 0
            raise
        return int(version)

    def migrate(self) -> list[int]:
        """Apply the missing migrations; return their numbers.

        Raises:
            ColumnStoreError: if the server rejects one.
            ConfigError: if a newer version of Tachograph has created the tables.
        """
        version = self.applied()
        if version > len(_MIGRATIONS):
            raise ConfigError(
                f"{self._address.text} has schema {version}, but this version of Tachograph knows only "
                f"{len(_MIGRATIONS)}; install a newer version"
            )
        self.client.execute(f"CREATE DATABASE IF NOT EXISTS {self._address.database}")
        self._create(f"{self._address.database}.schema_version", _VERSIONS, is_replicated=False)
        numbers = []
        for number, migration in enumerate(_MIGRATIONS, 1):
            if number > version:
                migration(self)
                self.client.execute(f"INSERT INTO {self.table('schema_version')} SELECT {number}, now()")
                numbers.append(number)
        return numbers

    def drop(self) -> None:
        """Remove all tables on this server. Journals are not touched."""
        names = [*SCHEMA_TABLES, "schema_version"]
        for name in names if self.applied() else []:
            for table in dict.fromkeys((self.table(name), self.local_table(name))):
                self.client.execute(f"DROP TABLE IF EXISTS {table}")

    def delete_run(self, run_id: str, rank: int | None = None) -> None:
        """Remove the rows of a run, or of one of its journals, and wait until they are gone.

        Rows of a cluster are removed on all servers, which needs ZooKeeper.
        """
        # Cursors first: if it fails half-way, the rest is inserted again.
        for name, table in reversed(SCHEMA_TABLES.items()):
            is_limited = rank is not None and "rank" in table.columns
            self._delete(name, f"run_id = {quote(run_id)}" + (f" AND rank = {rank}" if is_limited else ""))

    def retain(self, num_days: int, today: int) -> list[str]:
        """Remove old points; return a line for each change.

        A recent server removes rows by itself from now on. An old one only drops whole months, and only now.

        Args:
            num_days: how many days of points to keep.
            today: the number of days since 1970.
        """
        table = self.local_table("points")
        if self.client.version >= _TTL_SINCE:
            self.client.execute(f"ALTER TABLE {table} MODIFY TTL day + INTERVAL {num_days} DAY")
            return [f"{table}: the server removes points older than {num_days} days"]
        database, _, name = table.partition(".")
        partitions = self.client.execute(
            "SELECT DISTINCT partition FROM system.parts WHERE active"
            f" AND database = {quote(database)} AND table = {quote(name)}"
            f" AND toUInt32(partition) < toYYYYMM(toDate({today - num_days})) ORDER BY partition"
        )
        months = partitions.decode().split()
        for month in months:
            self.client.execute(f"ALTER TABLE {table} DROP PARTITION {int(month)}")
        return [f"{table}: dropped {month[:4]}-{month[4:]}" for month in months]

    def _delete(self, name: str, condition: str) -> None:
        table = self.local_table(name)
        if not int(self.client.execute(f"SELECT count() FROM {self.table(name)} WHERE {condition}")):
            return
        cluster = f" ON CLUSTER {self._address.cluster}" if self._address.cluster else ""
        self.client.execute(f"ALTER TABLE {table}{cluster} DELETE WHERE {condition}")
        database, _, short_name = table.partition(".")
        waiting = (
            "SELECT count() FROM system.mutations WHERE NOT is_done"
            f" AND database = {quote(database)} AND table = {quote(short_name)}"
        )
        deadline_s = time.monotonic() + self._address.timeout_s
        while int(self.client.execute(waiting)):
            if time.monotonic() > deadline_s:
                raise ColumnStoreError(f"{table}: rows are still being deleted", may_retry=True)
            time.sleep(0.05)

    def create_tables(self) -> None:
        """Create the tables of the first schema."""
        for name, table in SCHEMA_TABLES.items():
            self._create(self.local_table(name), table, is_replicated=self._address.is_replicated)
            if self._address.cluster:
                columns = ", ".join(_definitions(table, codecs=False))
                engine = (
                    f"Distributed({self._address.cluster}, {self._address.database}, {name}_local, cityHash64(run_id))"
                )
                self._run(f"CREATE TABLE IF NOT EXISTS {self.table(name)} ({columns}) ENGINE = {engine}")

    def _create(self, full_name: str, table: TableColumns, *, is_replicated: bool) -> None:
        arguments = [table.version] if table.version else []
        engine, settings = "ReplacingMergeTree", ""
        if is_replicated:
            # Killed between a part and its entry in ZooKeeper, a replica would not start again: one part of a small
            # table is a large share of it. It fetches missing parts from the others.
            settings = " SETTINGS replicated_max_ratio_of_wrong_parts = 1"
            engine = f"Replicated{engine}"
            path = f"/clickhouse/tables/{{shard}}/{full_name.replace('.', '/')}"
            arguments = [quote(path), quote("{replica}"), *arguments]
        partition = f" PARTITION BY {table.partition}" if table.partition else ""
        self._run(
            f"CREATE TABLE IF NOT EXISTS {full_name} ({', '.join(_definitions(table, codecs=self.is_modern))})"
            f" ENGINE = {engine}({', '.join(arguments)}){partition} ORDER BY {table.order}{settings}"
        )

    def _run(self, sql: str) -> None:
        # Up to 2019, LowCardinality was an experiment.
        settings = {} if self.client.version >= (19, 1) else {"allow_experimental_low_cardinality_type": 1}
        self.client.execute(sql, **settings)


def _definitions(table: TableColumns, *, codecs: bool) -> Iterator[str]:
    for name, kind in table.columns.items():
        codec = f" {_CODECS[name]}" if codecs and name in _CODECS else ""
        yield f"{name} {kind}{codec}"


_MIGRATIONS: list[Callable[[StoreSchema], None]] = [StoreSchema.create_tables]
"""Each adds tables or columns and may be repeated. A column whose meaning changes gets a new name."""
