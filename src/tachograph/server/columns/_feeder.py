"""`StoreFeeder`: keeps the tables in ClickHouse up to date with the runs of a server, in a thread.

The tables are derived from the journals, so nothing depends on them: a server starts and answers without ClickHouse,
and the thread connects when it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from tachograph._base.threads import TelemetryThread
from tachograph.exceptions import ColumnStoreError
from tachograph.server.columns._address import parse_address
from tachograph.server.columns._inserter import Inserter, InserterLag
from tachograph.server.columns._store import ColumnStore

__all__ = ["StoreFeeder"]

_RETRY_S = 5.0
_LEADER_POLL_S = 1.0


class StoreFeeder:
    """Connects to ClickHouse and inserts the runs below a folder.

    Args:
        address: for example ``clickhouse://user@host:8123/tacho``.
        root: the folder.

    Raises:
        ConfigError: if the address is invalid.
    """

    def __init__(self, address: str, root: Path) -> None:
        parse_address(address)
        self._address = address
        self._root = root
        self._may_insert: Callable[[], bool] = lambda: False
        self._stop = threading.Event()
        self._created_at = time.time()
        self._error: str | None = None
        self._inserter: Inserter | None = None
        self.store: ColumnStore | None = None
        """None until ClickHouse could be reached."""
        self._thread = TelemetryThread(self._run, name="tachograph-clickhouse")

    def start(self, may_insert: Callable[[], bool]) -> None:
        """Connect, and begin to insert as soon as `may_insert` returns True: one process of a server inserts."""
        self._may_insert = may_insert
        self._thread.start()

    @property
    def lag(self) -> InserterLag:
        """How far the tables are behind the journals, if this process inserts."""
        if self._inserter is not None:
            return self._inserter.lag
        return InserterLag(behind_since=self._created_at, error=self._error if self.store is None else None)

    def close(self) -> None:
        """Stop inserting. Missing rows are inserted after the next start."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.store is not None:
            self.store.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                store = ColumnStore(self._address)
            except ColumnStoreError as error:
                self._error = str(error)
                self._stop.wait(_RETRY_S)
                continue
            self.store = store
            while not self._may_insert():
                if self._stop.wait(_LEADER_POLL_S):
                    return
            self._inserter = store.inserter(str(self._root))
            self._inserter.run(self._stop)
