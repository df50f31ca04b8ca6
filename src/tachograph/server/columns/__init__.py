"""The runs of a server as tables in ClickHouse, derived from their journals. See `docs/clickhouse.md`."""

from tachograph.server.columns._address import StoreAddress, parse_address
from tachograph.server.columns._feeder import StoreFeeder
from tachograph.server.columns._grafana import grafana_board
from tachograph.server.columns._inserter import Inserter, InserterLag, run_key
from tachograph.server.columns._queries import ClickHouseRun, MetricLines, SeriesRequest
from tachograph.server.columns._store import ColumnStore
from tachograph.server.columns._verify import StoreDifference, verify_run, verify_runs

__all__ = [
    "ClickHouseRun",
    "ColumnStore",
    "Inserter",
    "InserterLag",
    "MetricLines",
    "SeriesRequest",
    "StoreAddress",
    "StoreFeeder",
    "StoreDifference",
    "grafana_board",
    "parse_address",
    "run_key",
    "verify_run",
    "verify_runs",
]
