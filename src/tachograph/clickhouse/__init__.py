"""The runs of a server as tables in ClickHouse, derived from their journals. See `docs/clickhouse.md`."""

from tachograph.clickhouse._address import StoreAddress, parse_address
from tachograph.clickhouse._grafana import grafana_board
from tachograph.clickhouse._inserter import Inserter, InserterLag, run_key
from tachograph.clickhouse._queries import ClickHouseRun
from tachograph.clickhouse._store import ColumnStore
from tachograph.clickhouse._verify import StoreDifference, verify_run, verify_runs

__all__ = [
    "ClickHouseRun",
    "ColumnStore",
    "StoreDifference",
    "Inserter",
    "InserterLag",
    "StoreAddress",
    "parse_address",
    "grafana_board",
    "run_key",
    "verify_run",
    "verify_runs",
]
