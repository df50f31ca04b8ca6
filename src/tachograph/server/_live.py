"""Live updates: server-sent events that report which runs changed.

An event carries a run's summary and version, never its data. The client compares the version with the one it has, then
requests new points with its cursor (`after=`), so each update transfers only new points, and a client that missed
events catches up with one request.

A client either watches named runs or the whole list:

- Named runs are refreshed every 100 ms, which reads only newly appended records. The pause grows to 500 ms once none of
  them is alive or has changed for a while.
- The list is polled every one to five seconds, because a poll looks at every run in the folder. The pause grows with
  the CPU time of a poll, so that a large folder does not keep a core busy: 2,500 runs take about 1 % of one.

Work happens only inside these generators: a server without clients does nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from tachograph.journal import RunState
from tachograph.reader import RunOverview, output_version
from tachograph.server import _views as views
from tachograph.server._models import CopyView, RunSummary, StreamAlive
from tachograph.store import Store, StoredRun, annotations_changed_at

__all__ = ["RunChanged", "RunGone", "watch"]

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


async def watch(
    store: Store, names: list[str], is_closing: Callable[[], bool], on_change: Callable[[], None]
) -> AsyncIterator[bytes]:
    """Yield encoded events for the named runs, or for all runs, until the client or the server disconnects.

    Args:
        store: The store that holds the runs.
        names: The runs to watch; none for all.
        is_closing: Returns True once the server shuts down.
        on_change: Called before a change of the list is sent: a client that requests the table then must see it.
    """
    last_sent_s = time.monotonic()
    yield b"retry: 1000\n\n"
    async for events in _watch_runs(store, names) if names else _watch_list(store, on_change):
        if is_closing():
            return
        if events:
            last_sent_s = time.monotonic()
            yield b"".join(_encode(event, data) for event, data in events)
        elif time.monotonic() - last_sent_s > _KEEPALIVE_S:  # writing is the only way to notice a lost connection
            last_sent_s = time.monotonic()
            # An event, because scripts in a page do not see comments.
            yield _encode("alive", StreamAlive(time.time()))


def _encode(event: str, data: Any) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


async def _watch_list(store: Store, on_change: Callable[[], None]) -> AsyncIterator[list[tuple[str, Any]]]:
    """Yield changes of the list of runs; an empty list lets the caller check for shutdown."""
    last_summaries: dict[str, tuple[RunOverview, RunSummary]] = {}
    while True:
        began_s = time.monotonic()
        changed_runs, removed_names, cpu_s = await run_in_threadpool(_poll_list, store, last_summaries)
        events: list[tuple[str, Any]] = [
            *(("changed", RunChanged(line=summary, now=time.time())) for summary in changed_runs),
            *(("gone", RunGone(name)) for name in removed_names),
        ]
        if events:
            on_change()
        for first in range(0, len(events), _MAX_EVENTS):
            yield events[first : first + _MAX_EVENTS]
        pause_s = min(_MAX_PAUSE_S, max(_LIST_INTERVAL_S, _MIN_IDLE_FACTOR * cpu_s))
        while time.monotonic() < began_s + pause_s:
            yield []
            await asyncio.sleep(_CLOSING_INTERVAL_S)


def _poll_list(
    store: Store, last_summaries: dict[str, tuple[RunOverview, RunSummary]]
) -> tuple[list[RunSummary], list[str], float]:
    """List the runs; return the changed runs, the names of removed runs, and the CPU time of the poll.

    Args:
        store: The store that holds the runs.
        last_summaries: By name the overview and the summary of each run at the last poll; updated.
    """
    began_s = time.thread_time()
    changed_runs = []
    current = store.runs()
    for run in current:
        overview, summary = last_summaries.get(run.name, (None, None))
        if run is overview:  # the store returns the same object for a run that did not change
            continue
        latest = views.build_run_summary(run)
        if latest != summary:
            changed_runs.append(latest)
        last_summaries[run.name] = run, latest
    removed_names = (
        list(last_summaries.keys() - {run.name for run in current}) if len(current) < len(last_summaries) else []
    )
    for name in removed_names:
        del last_summaries[name]
    return changed_runs, removed_names, time.thread_time() - began_s


async def _watch_runs(store: Store, names: list[str]) -> AsyncIterator[list[tuple[str, Any]]]:
    """Yield changes of the named runs; an empty list lets the caller check for shutdown."""
    sent_states: dict[str, Any] = {}
    is_first = True
    last_active_s = time.monotonic()
    while True:
        events, is_first = await run_in_threadpool(_poll_runs, store, names, sent_states, is_first), False
        yield events
        if any(
            isinstance(data, RunChanged) and data.indexed_share is not None and data.indexed_share < 1.0
            for _, data in events
        ):
            await asyncio.sleep(0)
            continue
        if events or any(summary.state in _ALIVE for *_, summary in sent_states.values()):
            last_active_s = time.monotonic()
        is_quiet = time.monotonic() - last_active_s > _QUIET_AFTER_S
        await asyncio.sleep(_QUIET_INTERVAL_S if is_quiet else _RUN_INTERVAL_S)


def _poll_runs(store: Store, names: list[str], sent_states: dict[str, Any], is_first: bool) -> list[tuple[str, Any]]:
    """Refresh the named runs and return their events.

    Args:
        store: The store that holds the runs.
        names: The runs to refresh.
        sent_states: By name the version, the version of the output, the time of the last state check, how far it was
            received and the summary that were sent last; updated.
        is_first: Whether to report missing runs that were never seen.
    """
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
    return events


def _changed_event(run: StoredRun, summary: RunSummary, output: str, copy: CopyView | None) -> RunChanged:
    return RunChanged(
        line=summary, version=run.version, indexed_share=run.indexed_share, output=output, copy=copy, now=time.time()
    )
