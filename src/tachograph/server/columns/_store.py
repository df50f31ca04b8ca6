"""The column store of a server: its tables, its runs, and the inserter that fills it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tachograph.exceptions import ColumnStoreError
from tachograph.journal import RunFolder
from tachograph.server.columns._address import parse_address
from tachograph.server.columns._client import ClickHouseClient
from tachograph.server.columns._inserter import Inserter, run_key
from tachograph.server.columns._queries import (
    ClickHouseRun,
    MetricLines,
    SeriesRequest,
    condition_of,
    list_aggregates,
    list_cursors,
    list_metrics,
    read_series,
)
from tachograph.server.columns._schema import StoreSchema
from tachograph.store import MetricAggregates

__all__ = ["ColumnStore"]


class ColumnStore:
    """Runs in ClickHouse. Everything in it is derived from journals."""

    def __init__(self, address: str) -> None:
        """Connect to a database.

        Args:
            address: for example ``clickhouse://user@host:8123/tacho``; the password is in TACHO_CLICKHOUSE_PASSWORD.

        Raises:
            ConfigError: if the address is invalid.
            ColumnStoreError: if the server cannot be reached.
        """
        self.address = parse_address(address)
        client = ClickHouseClient(self.address)
        try:
            self.schema = StoreSchema(client)
        except BaseException:
            client.close()
            raise

    def __enter__(self) -> ColumnStore:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.schema.client.close()

    @property
    def is_answering(self) -> bool:
        """Whether the database answers at once; see `ClickHouseClient.is_answering`."""
        return self.schema.client.is_answering

    def run(self, folder: RunFolder, name: str, rank: int = 0) -> ClickHouseRun:
        """Return a run of a log folder, by its folder and its id there."""
        return ClickHouseRun(self.schema, run_key(folder.path, name), rank)

    def series(
        self, requests: Sequence[SeriesRequest], *, usual_points: float, max_points: float
    ) -> list[dict[str, MetricLines] | ColumnStoreError]:
        """Return metrics of several runs; see `read_series`."""
        return read_series(self.schema, requests, usual_points=usual_points, max_points=max_points)

    def metrics(self, run_ids: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the metrics of some runs, in the order of their first records, each with its first stream."""
        return list_metrics(self.schema, run_ids) if run_ids else {}

    def num_bytes(self, run_ids: Collection[str]) -> dict[str, int]:
        """Return how much of the journals of some runs is in the tables."""
        return list_cursors(self.schema, run_ids) if run_ids else {}

    def aggregates(
        self, names: Collection[str], run_ids: Collection[str] | None = None
    ) -> dict[str, dict[str, MetricAggregates]]:
        """Return the aggregates of some metrics, by run and name; of all runs by default."""
        if not names or (run_ids is not None and not run_ids):
            return {}
        return list_aggregates(self.schema, names, "rank = 0" if run_ids is None else condition_of(run_ids, 0))

    def inserter(self, *log_dirs: str, runs: list[str] | None = None) -> Inserter:
        """Return an inserter for log folders; `Inserter.run` follows them in a thread of the caller."""
        return Inserter(self.schema, *log_dirs, runs=runs)
