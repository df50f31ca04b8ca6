"""Live updates: server-sent events that report which runs changed.

An event carries a run's summary and version, never its data. The client compares the version with the one it has, then
requests new points with its cursor (`after=`), so each update transfers only what is new, and a client that missed
events catches up with one request.

A client either watches named runs or the whole list:

- Named runs are refreshed every 100 ms, which reads only newly appended records.
- The list is polled every one to two seconds, because a poll looks at every run in the folder. The pause grows with
  the time a poll takes, so that a large folder does not keep a core busy.

Work happens only inside these generators: a server without clients does nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from tachograph.server import _views as views
from tachograph.server._models import RunSummary
from tachograph.store import Store, StoredRun

__all__ = ["RunChanged", "RunGone", "watch"]

_RUN_INTERVAL_S = 0.1
_LIST_INTERVAL_S = 1.0
_STATE_INTERVAL_S = 1.0
_CLOSING_INTERVAL_S = 0.25
_KEEPALIVE_S = 15.0
_MAX_REFRESH_S = 0.25
_MIN_IDLE_FACTOR = 50
"""A pause between two polls of the list lasts at least this many times as long as the poll …"""
_MAX_PAUSE_S = 2.0
"""… but never longer than this."""


class RunChanged(msgspec.Struct, kw_only=True):
    """A run changed."""

    line: RunSummary
    version: str | None = None
    """The run's current version; only set for runs watched by name."""
    indexed: float | None = None
    """Fraction of the journal read so far, 0 to 1; only set for runs watched by name."""
    now: float
    """The server's clock, in Unix time."""


class RunGone(msgspec.Struct):
    """A run no longer exists."""

    name: str


async def watch(store: Store, names: list[str], is_closing: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield encoded events for the named runs, or for all runs, until the client or the server disconnects."""
    last_sent_s = time.monotonic()
    yield b"retry: 1000\n\n"
    async for event, data in _watch_runs(store, names) if names else _watch_list(store):
        if is_closing():
            return
        if event:
            last_sent_s = time.monotonic()
            yield b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
        elif time.monotonic() - last_sent_s > _KEEPALIVE_S:  # writing is the only way to notice a lost connection
            last_sent_s = time.monotonic()
            yield b": keep-alive\n\n"


async def _watch_list(store: Store) -> AsyncIterator[tuple[str, Any]]:
    """Yield changes of the list of runs; an empty event name lets the caller check for shutdown."""
    known: dict[str, RunSummary] = {}
    while True:
        began_s = time.monotonic()
        current = {run.name: run for run in (await run_in_threadpool(views.build_runs_page, store)).runs}
        for name, summary in current.items():
            if known.get(name) != summary:
                yield "changed", RunChanged(line=summary, now=time.time())
        for name in known.keys() - current.keys():
            yield "gone", RunGone(name)
        known = current
        pause_s = min(_MAX_PAUSE_S, max(_LIST_INTERVAL_S, _MIN_IDLE_FACTOR * (time.monotonic() - began_s)))
        while time.monotonic() < began_s + pause_s:
            yield "", None
            await asyncio.sleep(_CLOSING_INTERVAL_S)


async def _watch_runs(store: Store, names: list[str]) -> AsyncIterator[tuple[str, Any]]:
    """Yield changes of the named runs; an empty event name lets the caller check for shutdown."""
    seen: dict[str, Any] = {}
    is_first = True
    while True:
        found, is_first = await run_in_threadpool(_poll_runs, store, names, seen, is_first), False
        for event, data in found:
            yield event, data
        yield "", None
        is_indexing = any(
            isinstance(data, RunChanged) and data.indexed is not None and data.indexed < 1.0 for _, data in found
        )
        await asyncio.sleep(0 if is_indexing else _RUN_INTERVAL_S)


def _poll_runs(store: Store, names: list[str], seen: dict[str, Any], is_first: bool) -> list[tuple[str, Any]]:
    """Refresh the named runs and return their events.

    Args:
        store: The store that holds the runs.
        names: The runs to refresh.
        seen: By name the version, the time of the last state check and the summary that were sent last; updated.
        is_first: Whether to report missing runs that were never seen.
    """
    events: list[tuple[str, Any]] = []
    for name in names:
        try:
            run = store.open(name)
            changed = run.refresh(_MAX_REFRESH_S)
        except OSError:  # missing or unreadable
            if seen.pop(name, None) is not None or is_first:
                events.append(("gone", RunGone(name)))
            continue
        version, checked_s, summary = seen.get(name, (None, 0.0, None))
        now_s = time.monotonic()
        # The state can change without a new record: a killed process only stops its heartbeat.
        if not changed and version == run.version and now_s - checked_s < _STATE_INTERVAL_S:
            continue
        latest = views.build_open_run_summary(run)
        if run.version != version or latest != summary:
            events.append(("changed", _changed_event(run, latest)))
        seen[name] = (run.version, now_s, latest)
    return events


def _changed_event(run: StoredRun, summary: RunSummary) -> RunChanged:
    return RunChanged(line=summary, version=run.version, indexed=run.indexed, now=time.time())
