"""The series of runs that were sent last, so that a line is thinned again only if its run has grown.

A page with many unread runs repeats its request until all of them are read. Most runs are the same in each response:
they are complete, or their journals have not been read further. A run that is being read changes each time, but a line
that is a bit longer than the last one is not worth the time that reading could have used: such a run is thinned again
when twice as much of it is read, and when it is complete. Until then the earlier line is sent again, with the share
that it covers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

import msgspec

from tachograph.server._overlay_models import RunSeries
from tachograph.store import StoredRun

__all__ = ["SeriesCache"]

_MAX_BYTES = 32 << 20


class _CachedSeries(NamedTuple):
    generation: str
    version: str
    indexed_share: float
    encoded: msgspec.Raw

    def is_current(self, run: StoredRun) -> bool:
        """Return whether the series is as good as a new one; see above."""
        share = run.indexed_share
        if self.version == run.version:
            return self.indexed_share == share
        return (
            self.generation == run.generation and 0 < self.indexed_share < 1 and share < min(1, 2 * self.indexed_share)
        )


class SeriesCache:
    """Encoded series by run and query, the ones used last. Thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._entries: OrderedDict[Hashable, _CachedSeries] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, run: StoredRun, query: Hashable, build: Callable[[], RunSeries]) -> msgspec.Raw:
        """Return the series of a run as JSON; call `build` unless there is a current one."""
        key = (run.folder.path, query)
        with run.lock:
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
            if entry is not None and entry.is_current(run):
                return entry.encoded
            series = build()
            generation = run.generation
        encoded = msgspec.Raw(msgspec.json.encode(series))
        self._add(key, _CachedSeries(generation, series.version, series.indexed_share, encoded))
        return encoded

    def has(self, run: StoredRun, query: Hashable) -> bool:
        """Return whether `get` would not call `build`."""
        with run.lock, self._lock:
            entry = self._entries.get((run.folder.path, query))
            return entry is not None and entry.is_current(run)

    def _add(self, key: Hashable, entry: _CachedSeries) -> None:
        with self._lock:
            replaced = self._entries.pop(key, None)
            self._used_bytes += len(entry.encoded) - (len(replaced.encoded) if replaced else 0)
            self._entries[key] = entry
            while self._used_bytes > self._max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._used_bytes -= len(oldest.encoded)
