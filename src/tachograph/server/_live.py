"""Server-sent events: which runs have changed, and nothing else. Nobody watching costs nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from tachograph.server import _views as views
from tachograph.server._models import RunLine
from tachograph.store import Store, StoredRun

__all__ = ["Changed", "Gone", "watch"]

_RUN_INTERVAL_S = 0.1
_LIST_INTERVAL_S = 1.0
_STATE_INTERVAL_S = 1.0
_CLOSING_INTERVAL_S = 0.25
_SILENCE_S = 15.0
_MOST_REFRESH_S = 0.25
_LEAST_IDLE_SHARE = 50
"""Looking may take one part in so many of the time …"""
_LONGEST_PAUSE_S = 2.0
"""… but a change is told after this long at most."""


class Changed(msgspec.Struct, kw_only=True):
    """A run has changed."""

    line: RunLine
    version: str | None = None
    """What a view must have to be up to date; only for runs that are watched by name."""
    indexed: float | None = None
    now: float
    """The server's clock."""


class Gone(msgspec.Struct):
    """A run is no longer there."""

    name: str


async def watch(store: Store, names: list[str], is_closing: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield events on some runs, or on all if none is named, until the reader goes or the server closes."""
    last_said_s = time.monotonic()
    yield b"retry: 1000\n\n"
    async for event, data in _watch_runs(store, names) if names else _watch_list(store):
        if is_closing():
            return
        if event:
            last_said_s = time.monotonic()
            yield b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
        elif time.monotonic() - last_said_s > _SILENCE_S:  # so that a reader that went is noticed
            last_said_s = time.monotonic()
            yield b": still here\n\n"


async def _watch_list(store: Store) -> AsyncIterator[tuple[str, Any]]:
    known: dict[str, RunLine] = {}
    while True:
        began_s = time.monotonic()
        lines = {line.name: line for line in (await run_in_threadpool(views.runs, store)).runs}
        for name, line in lines.items():
            if known.get(name) != line:
                yield "changed", Changed(line=line, now=time.time())
        for name in known.keys() - lines.keys():
            yield "gone", Gone(name)
        known = lines
        pause_s = min(_LONGEST_PAUSE_S, max(_LIST_INTERVAL_S, _LEAST_IDLE_SHARE * (time.monotonic() - began_s)))
        while time.monotonic() < began_s + pause_s:
            yield "", None
            await asyncio.sleep(_CLOSING_INTERVAL_S)


async def _watch_runs(store: Store, names: list[str]) -> AsyncIterator[tuple[str, Any]]:
    seen: dict[str, Any] = {}
    is_first = True
    while True:
        found, is_first = await run_in_threadpool(_look, store, names, seen, is_first), False
        for event, data in found:
            yield event, data
        yield "", None
        is_behind = any(
            isinstance(data, Changed) and data.indexed is not None and data.indexed < 1.0 for _, data in found
        )
        await asyncio.sleep(0 if is_behind else _RUN_INTERVAL_S)


def _look(store: Store, names: list[str], seen: dict[str, Any], is_first: bool) -> list[tuple[str, Any]]:
    events: list[tuple[str, Any]] = []
    for name in names:
        try:
            run = store.open(name)
            changed = run.refresh(_MOST_REFRESH_S)
        except OSError:  # there is none, or it cannot be read
            if seen.pop(name, None) is not None or is_first:
                events.append(("gone", Gone(name)))
            continue
        version, checked_s, line = seen.get(name, (None, 0.0, None))
        now_s = time.monotonic()
        if not changed and version == run.version and now_s - checked_s < _STATE_INTERVAL_S:
            continue
        latest = views.opened_line(run)
        if run.version != version or latest != line:
            events.append(("changed", _changed(run, latest)))
        seen[name] = (run.version, now_s, latest)
    return events


def _changed(run: StoredRun, line: RunLine) -> Changed:
    return Changed(line=line, version=run.version, indexed=run.indexed, now=time.time())
