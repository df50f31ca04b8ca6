"""Live updates: server-sent events that report which runs changed.

An event carries a run's summary and version, never its data. The client compares the version with the one it has, then
requests new points with its cursor (`after=`), so each update transfers only new points, and a client that missed
events catches up with one request.

A client either watches named runs or the whole list:

- Named runs are refreshed every 100 ms, which reads only newly appended records. The pause grows to 500 ms once none of
  them is alive or has changed for a while, and with the number of clients, so that all of them together take a part of
  one core: the requests of the others, and the data of trainers, must not wait for them.
- The list is polled every one to five seconds, once for all clients, because a poll looks at every run in the folder.
  The pause grows with the CPU time of a poll, so that a large folder does not keep a core busy: 2,500 runs take about
  1 % of one.

Two polls run at once at most. A server without clients does nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from tachograph.journal import RunState
from tachograph.reader import output_version
from tachograph.server import _views as views
from tachograph.server._models import CopyView, RunSummary, StreamAlive
from tachograph.server._run_list import RunList
from tachograph.store import Store, StoredRun, annotations_changed_at

__all__ = ["LiveUpdates", "RunChanged", "RunGone"]

_RUN_INTERVAL_S = 0.1
_LIST_INTERVAL_S = 1.0
_QUIET_INTERVAL_S = 0.5
_QUIET_AFTER_S = 10.0
_STATE_INTERVAL_S = 1.0
_ENDED_STATE_INTERVAL_S = 10.0
_CLOSING_INTERVAL_S = 0.25
_KEEPALIVE_S = 10.0
"""Proxies close a connection that is silent for longer, many after 60 seconds; the page gives up after 40."""
_MAX_EVENTS = 500
"""The number of events that are sent at once: a client that connects gets one for each run."""
_MAX_REFRESH_S = 0.25
_MIN_IDLE_FACTOR = 100
"""A pause between two polls of the list lasts at least this many times as long as the CPU time of the poll …"""
_MAX_PAUSE_S = 5.0
"""… but never longer than this."""
_MIN_STREAM_IDLE_FACTOR = 4
"""A pause of a client that watches named runs lasts at least this many times as long as polls of all other clients …"""
_POLL_COST_S = 0.0003
_MAX_POLL_COST_S = 0.005
"""… where a poll costs between these two: reading a long journal for the first time is work for all clients …"""
_MAX_STREAM_PAUSE_S = 10.0
"""… but never longer than this."""
_MAX_POLLS = 2
"""At once: the other threads are for requests."""
_ALIVE = {RunState.RUNNING, RunState.STALE}
"""The states that can change although nothing is recorded."""


class RunChanged(msgspec.Struct, kw_only=True):
    """A run changed."""

    line: RunSummary
    version: str | None = None
    """The run's current version; only set for runs watched by name."""
    indexed_share: float | None = msgspec.field(default=None, name="indexed")
    """Fraction of the journal read so far, 0 to 1; only set for runs watched by name."""
    output: str | None = None
    """Changes with the console output; only set for runs watched by name."""
    copy: CopyView | None = None
    """How far a team's server has received the run; only set for runs watched by name."""
    now: float
    """The server's clock, in Unix time."""


class RunGone(msgspec.Struct):
    """A run no longer exists."""

    name: str


class LiveUpdates:
    """The live updates of one dashboard.

    Args:
        store: The store that holds the runs.
        run_list: The list of the same runs.
    """

    def __init__(self, store: Store, run_list: RunList) -> None:
        self._store = store
        self._run_list = run_list
        self._num_streams = 0
        """Of those that watch named runs."""
        self._poll_slots = asyncio.Semaphore(_MAX_POLLS)
        self._list_lock = asyncio.Lock()
        self._list_due_s = 0.0

    async def watch(self, names: list[str], is_closing: Callable[[], bool], after: str = "") -> AsyncIterator[bytes]:
        """Yield encoded events for the named runs, or for all runs, until the client or the server disconnects.

        Args:
            names: The runs to watch; none for all.
            is_closing: Returns True once the server shuts down.
            after: The version of the list that the client has; an unknown one for a client that has none.
        """
        last_sent_s = time.monotonic()
        yield b"retry: 1000\n\n"
        async for events in self._watch_runs(names) if names else self._watch_list(after):
            if is_closing():
                return
            if events:
                last_sent_s = time.monotonic()
                yield b"".join(_encode(event, data) for event, data in events)
            elif time.monotonic() - last_sent_s > _KEEPALIVE_S:  # writing is the only way to notice a lost connection
                last_sent_s = time.monotonic()
                # An event, because scripts in a page do not see comments.
                yield _encode("alive", StreamAlive(time.time()))

    async def _watch_list(self, version: str) -> AsyncIterator[list[tuple[str, Any]]]:
        """Yield changes of the list of runs; an empty list lets the caller check for shutdown."""
        while True:
            await self._poll_list()
            version, changed, removed = self._run_list.changes_since(version)
            events: list[tuple[str, Any]] = [
                ("changed", RunChanged(line=summary, now=time.time())) for summary in changed
            ]
            events += [("gone", RunGone(name)) for name in removed]
            for first in range(0, len(events), _MAX_EVENTS):
                yield events[first : first + _MAX_EVENTS]
            yield []
            await asyncio.sleep(_CLOSING_INTERVAL_S)

    async def _poll_list(self) -> None:
        """Poll the list if it is time to."""
        async with self._list_lock:
            if time.monotonic() < self._list_due_s:
                return
            began_s = time.monotonic()
            async with self._poll_slots:
                cpu_s = await run_in_threadpool(self._poll_now)
            self._list_due_s = began_s + min(_MAX_PAUSE_S, max(_LIST_INTERVAL_S, _MIN_IDLE_FACTOR * cpu_s))

    def _poll_now(self) -> float:
        """Poll the list; return the CPU time of it."""
        began_s = time.thread_time()
        self._run_list.poll()
        return time.thread_time() - began_s

    async def _watch_runs(self, names: list[str]) -> AsyncIterator[list[tuple[str, Any]]]:
        """Yield changes of the named runs; an empty list lets the caller check for shutdown."""
        sent_states: dict[str, Any] = {}
        is_first = True
        last_active_s = time.monotonic()
        self._num_streams += 1
        try:
            while True:
                began_s = time.monotonic()
                async with self._poll_slots:
                    events, cpu_s = await run_in_threadpool(_poll_runs, self._store, names, sent_states, is_first)
                is_first = False
                yield events
                if events or any(summary.state in _ALIVE for *_, summary in sent_states.values()):
                    last_active_s = time.monotonic()
                is_quiet = time.monotonic() - last_active_s > _QUIET_AFTER_S
                pause_s = _QUIET_INTERVAL_S if is_quiet else _RUN_INTERVAL_S
                if any(
                    isinstance(data, RunChanged) and data.indexed_share is not None and data.indexed_share < 1.0
                    for _, data in events
                ):
                    pause_s = 0.0
                others_cost_s = (self._num_streams - 1) * min(cpu_s + _POLL_COST_S, _MAX_POLL_COST_S)
                pause_s = max(pause_s, min(_MAX_STREAM_PAUSE_S, _MIN_STREAM_IDLE_FACTOR * others_cost_s))
                await asyncio.sleep(min(pause_s, _CLOSING_INTERVAL_S))
                while time.monotonic() < began_s + pause_s:
                    yield []
                    await asyncio.sleep(_CLOSING_INTERVAL_S)
        finally:
            self._num_streams -= 1


def _encode(event: str, data: Any) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def _poll_runs(
    store: Store, names: list[str], sent_states: dict[str, Any], is_first: bool
) -> tuple[list[tuple[str, Any]], float]:
    """Refresh the named runs; return their events, and the CPU time of it.

    Args:
        store: The store that holds the runs.
        names: The runs to refresh.
        sent_states: By name the version, the version of the output, the time of the last state check, how far it was
            received and the summary that were sent last; updated.
        is_first: Whether to report missing runs that were never seen.
    """
    began_s = time.thread_time()
    events: list[tuple[str, Any]] = []
    for name in names:
        try:
            run = store.open(name)
            has_changed = run.refresh(_MAX_REFRESH_S)
        except OSError:  # missing or unreadable
            if sent_states.pop(name, None) is not None or is_first:
                events.append(("gone", RunGone(name)))
            continue
        version, output, last_check_s, copy, summary = sent_states.get(name, (None, None, 0.0, None, None))
        latest_output = output_version(run.folder)
        now_s = time.monotonic()
        # The state can change without a new record: a killed process only stops its heartbeat. After the last record
        # of a run only a last heartbeat can follow.
        is_alive = summary is None or summary.state in _ALIVE
        interval_s = _STATE_INTERVAL_S if is_alive else _ENDED_STATE_INTERVAL_S
        is_annotated = summary is not None and summary.annotations_changed_at != annotations_changed_at(run.folder.path)
        is_same = version == run.version and output == latest_output and not is_annotated
        if not has_changed and is_same and now_s - last_check_s < interval_s:
            continue
        latest = views.build_open_run_summary(run)
        latest_copy = views.build_copy(run.folder)
        if not is_same or latest != summary or latest_copy != copy:
            events.append(("changed", _changed_event(run, latest, latest_output, latest_copy)))
        sent_states[name] = (run.version, latest_output, now_s, latest_copy, latest)
    return events, time.thread_time() - began_s


def _changed_event(run: StoredRun, summary: RunSummary, output: str, copy: CopyView | None) -> RunChanged:
    return RunChanged(
        line=summary, version=run.version, indexed_share=run.indexed_share, output=output, copy=copy, now=time.time()
    )
