"""The process of one sink, started by `SinkProcess`, whose docstring describes its life."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import queue
import signal
import sys
import time
from typing import Any, BinaryIO

import msgspec

from tachograph._base.detached import ReplyChannel, is_orphan, read_requests
from tachograph._base.threads import TelemetryThread
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.sinks._config import build_sinks
from tachograph.sinks._driver import SinkDriver, lock_export
from tachograph.sinks._process import Attach, Build, Close, Move, Reply
from tachograph.sinks._sink import FollowingSink, Sink, SinkFollower

__all__ = ["main"]

_PARENT_ENDED = object()
_POLL_S = 1.0
_LOCK_POLL_S = 0.2
_GIVE_UP_UNUSED_S = 5.0
_LATE_RECORDS_S = 3.0
"""After the training process was killed: its launcher may still append how it ended."""


def main(requests: BinaryIO, replies: ReplyChannel) -> None:
    """Build a sink, follow a journal, and end within a bounded time after the training process."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # A scheduler signals all processes of a job; this one ends after the training process, not with it. A function,
        # because the children of a client would inherit an ignored signal.
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, frame: None)
    host = _SinkHost(replies)
    TelemetryThread(read_requests, name="tachograph-requests", args=(requests, host.receive)).start()
    host.run()
    # Python now waits for the threads and exit handlers of the client, at most until the timer.


class _SinkHost:
    """Handles the requests: one thread receives them, the main thread acts on them."""

    def __init__(self, replies: ReplyChannel) -> None:
        self._replies = replies
        self._parent_pid = os.getppid()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._give_up_s = _GIVE_UP_UNUSED_S
        self._is_closing = False

    def receive(self, request: Any) -> None:
        """Queue a request; None means that there are no more. Called by the thread that reads them."""
        if isinstance(request, Attach):
            self._give_up_s = request.give_up_s
        elif request is None or isinstance(request, Close):
            self._start_closing()  # here, because the main thread may be inside code of the client
        self._requests.put(request)

    def run(self) -> None:
        """Act on the requests until the run has ended."""
        sink = self._build()
        attach = self._requests.get() if sink is not None else None
        if sink is None or not isinstance(attach, Attach):
            self._start_closing()
            return
        folder = RunFolder(attach.folder)
        driver: SinkFollower | None = None
        is_last = False
        while not is_last or driver is None:
            # The process of an earlier attempt may still export to the same place.
            if driver is None and lock_export(folder, sink.name) is not None:
                if isinstance(sink, FollowingSink):
                    driver = sink.follow(folder, self._report)
                else:
                    driver = SinkDriver(folder, sink, self._report)
                driver.start()
            request = self._next_request(_POLL_S if driver is not None else _LOCK_POLL_S)
            if isinstance(request, Move):
                folder = RunFolder(request.folder)
                if driver is not None:
                    driver.move(folder)
            elif isinstance(request, Close):
                is_last = True
            elif request is _PARENT_ENDED and not is_last:
                is_last = True
                time.sleep(min(_LATE_RECORDS_S, 0.1 * self._give_up_s))
        driver.close(0)
        self._send(Reply(done=driver.close(self._give_up_s)))

    def _build(self) -> Sink | FollowingSink | None:
        request = self._requests.get()
        sink: Sink | FollowingSink
        try:
            if isinstance(request, Exception):
                reason = f"{type(request).__name__}: {request}"
                raise ConfigError(f"an option of a sink cannot be read in its process; use plain values ({reason})")
            if isinstance(request, Build) and request.factory:
                module, _, name = request.factory.partition(":")
                sink = getattr(importlib.import_module(module), name)(**request.options)
            else:
                (sink,) = build_sinks({request.name: request.options} if isinstance(request, Build) else {})
        except (ConfigError, ValueError) as error:
            self._send(Reply(error=str(error)))
            return None
        self._send(Reply(ready=sink.name))
        return sink

    def _next_request(self, timeout_s: float) -> Any:
        """Return the next request, None at the timeout, or `_PARENT_ENDED` if the training process has ended."""
        try:
            request = self._requests.get(timeout=timeout_s)
        except queue.Empty:
            if not is_orphan(self._parent_pid):
                return None
            self._start_closing()
            return _PARENT_ENDED
        return _PARENT_ENDED if request is None else request

    def _start_closing(self) -> None:
        """Start a timer that ends the process, in a thread of C code that nothing else in the process can hold up."""
        if not self._is_closing:
            self._is_closing = True
            faulthandler.dump_traceback_later(self._give_up_s, exit=True, file=sys.stderr)

    def _report(self, kind: str, field: str, reason: str) -> None:
        self._send(Reply(failure=(kind, field, reason)))

    def _send(self, reply: Reply) -> None:
        with contextlib.suppress(OSError):  # the training process has ended
            self._replies.write(msgspec.json.encode(reply) + b"\n")
