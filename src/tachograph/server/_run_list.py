"""The list of runs with a version, so that a client that has the list gets only what changed since.

A folder may have 10,000 runs. Their summaries are built and encoded once, and again only for a run that changed.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from tachograph.reader import RunOverview
from tachograph.server._models import RunsPage, RunSummary
from tachograph.server._views import build_run_summary
from tachograph.store import Store

__all__ = ["ListChanges", "RunList"]

_MAX_REMOVED = 10_000
"""The number of removed runs that are remembered; a client with an older list gets all runs."""


class _ListedSummary(NamedTuple):
    overview: RunOverview
    summary: RunSummary
    encoded: msgspec.Raw
    revision: int
    """The revision of the list in which it changed last."""


class ListChanges(NamedTuple):
    """How the list differs from an earlier version."""

    version: str
    changed: list[RunSummary]
    removed: list[str]


class RunList:
    """The runs of a store as of the last poll. Thread-safe.

    Args:
        store: The store that holds the runs.
        on_change: Called when a poll found a change, before anyone sees it: a client that requests the table then must
            see it, too.
    """

    def __init__(self, store: Store, on_change: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._on_change = on_change
        self._poll_lock = threading.Lock()
        self._lock = threading.Lock()
        """Held for moments only: live streams run in the event loop."""
        self._process_id = secrets.token_hex(6)
        """Tells versions of this process from those of an earlier server."""
        self._revision = 0
        self._first_revision = 0
        """Runs that were removed since then are remembered."""
        self._runs: dict[str, _ListedSummary] = {}
        self._removed: dict[str, int] = {}

    def poll(self) -> None:
        """Look at all runs."""
        with self._poll_lock:
            revision = self._revision + 1
            runs: dict[str, _ListedSummary] = {}
            for overview in self._store.runs():
                listed = self._runs.get(overview.name)
                # The store returns the same object for a run that did not change.
                if listed is None or listed.overview is not overview:
                    listed = _update(listed, overview, revision)
                runs[overview.name] = listed
            removed = self._runs.keys() - runs.keys()
            if not removed and not any(listed.revision == revision for listed in runs.values()):
                self._runs = runs
                return
            self._on_change()
            with self._lock:
                self._runs, self._revision = runs, revision
                self._removed = {name: when for name, when in self._removed.items() if name not in runs}
                self._removed.update(dict.fromkeys(removed, revision))
                if len(self._removed) > _MAX_REMOVED:
                    self._removed, self._first_revision = {}, revision

    def build_page(self) -> RunsPage:
        """Return all runs, newest first."""
        self.poll()
        log_dirs = [os.path.abspath(log_dir) for log_dir in self._store.folders.log_dirs]
        with self._lock:
            encoded = [listed.encoded for listed in self._runs.values()]
            return RunsPage(", ".join(log_dirs), log_dirs, self._version(), cast(list[RunSummary], encoded))

    def changes_since(self, version: str) -> ListChanges:
        """Return the changes since a version; all runs if it is unknown."""
        with self._lock:
            revision = self._revision_of(version)
            if revision == self._revision:
                return ListChanges(version, [], [])
            return ListChanges(
                self._version(),
                [listed.summary for listed in self._runs.values() if listed.revision > revision],
                [name for name, when in self._removed.items() if when > revision > 0],
            )

    def _version(self) -> str:
        return f"{self._process_id}-{self._revision}"

    def _revision_of(self, version: str) -> int:
        """Return the number of a version of this process; 0 if it is none."""
        process_id, _, number = version.partition("-")
        is_own = process_id == self._process_id and number.isascii() and number.isdecimal() and len(number) < 16
        revision = int(number) if is_own else 0
        return revision if revision >= self._first_revision else 0


def _update(listed: _ListedSummary | None, overview: RunOverview, revision: int) -> _ListedSummary:
    summary = build_run_summary(overview)
    if listed is not None and listed.summary == summary:
        return listed._replace(overview=overview)
    return _ListedSummary(overview, summary, msgspec.Raw(msgspec.json.encode(summary)), revision)
