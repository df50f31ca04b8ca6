"""A thread that writes events down and sends them, and that nobody waits for longer than a moment."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from pathlib import Path

from tachograph.guard import guard
from tachograph.usage._endpoint import Endpoint, Event
from tachograph.usage._spool import Spool, left_over, prune

__all__ = ["Sender"]

_MOST_QUEUED = 1_000
_MOST_PER_BATCH = 100
_GATHER_S = 0.5
_TIMEOUT_S = 10.0
_FIRST_WAIT_S = 5.0
_LONGEST_WAIT_S = 300.0


class Sender:
    """Takes events from any thread.

    Args:
        folder: where the app's events are kept.
        endpoint: where they are sent; None keeps them here.
    """

    def __init__(self, folder: Path, endpoint: Endpoint | None) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._queue: deque[Event] = deque()
        self._spool: Spool | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._disk = threading.RLock()
        self._is_closing = False
        self._retry_at_s = 0.0
        self._wait_s = _FIRST_WAIT_S
        self.num_lost = 0

    def put(self, event: Event) -> None:
        """Take an event; one too many is dropped and counted."""
        with self._wake:
            if len(self._queue) >= _MOST_QUEUED or self._is_closing:
                self.num_lost += 1
                return
            self._queue.append(event)
            if self._thread is None:
                self._start()
            self._wake.notify()

    def close(self) -> None:
        """Write down what is queued, and let the thread send it and end. What is left is sent another time."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self._write()  # here and not in the thread, which may hang on the network

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, for no longer than this."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)

    def abandon(self) -> None:
        """Let go of the file in a child of `fork`: what is queued is the parent's to send."""
        if self._spool is not None:
            self._spool.close()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tachograph-usage", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is ending; `close` writes down what there is
            self._thread.start()

    def _run(self) -> None:
        with guard("sending usage telemetry"):
            seen: Spool | None = None
            while True:
                is_last = self._wait()
                self._write()
                if not is_last:
                    self._gather()
                    self._write()
                if self._spool is None:
                    return  # it cannot be written, so that nobody could see what is sent
                if self._endpoint is not None:
                    self._deliver(self._spool, self._endpoint)
                if is_last:
                    return
                if seen is not self._spool:
                    seen = self._spool
                    self._tidy(seen)
                if seen.is_full:
                    self._turn_over(seen)

    def _tidy(self, own: Spool) -> None:
        """Send what earlier files hold, and delete what is old."""
        if self._endpoint is not None:
            for spool in left_over(self._folder, own.path):
                self._deliver(spool, self._endpoint)
                if self._is_closing:
                    return
        prune(self._folder, own.path)

    def _turn_over(self, full: Spool) -> None:
        """Let go of a file that is full. What waits in it is sent when the next is begun."""
        with self._disk:
            self._spool = None
            full.close()

    def _wait(self) -> bool:
        """Wait for something to do; tell whether it is the last."""
        waits = self._endpoint is not None and self._spool is not None and self._spool.waits
        most_s = max(self._retry_at_s - time.monotonic(), 0.0) if waits else None
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._is_closing, most_s)
            return self._is_closing

    def _gather(self) -> None:
        """Let what comes together go together."""
        with self._wake:
            self._wake.wait_for(lambda: self._is_closing, _GATHER_S)

    def _write(self) -> None:
        with self._disk:
            events = [self._queue.popleft() for _ in range(len(self._queue))]
            if not events:
                return
            self.num_lost += len(events)
            with guard("writing usage telemetry"), contextlib.suppress(OSError):  # a disk may be full, or not ours
                if self._spool is None:
                    self._spool = Spool.begin(self._folder, may_send=self._endpoint is not None)
                self._spool.append(events)
                self.num_lost -= len(events)

    def _deliver(self, spool: Spool, endpoint: Endpoint) -> None:
        """Send what waits in a file; leave it there if it does not arrive but may another time."""
        from tachograph.posting import DeliveryError

        while spool.waits and time.monotonic() >= self._retry_at_s:
            events, end = spool.waiting(_MOST_PER_BATCH)
            try:
                if events:
                    endpoint.send(events, _TIMEOUT_S)
            except DeliveryError as error:
                if error.may_retry:
                    self._retry_at_s = time.monotonic() + (self._wait_s if error.wait_s is None else error.wait_s)
                    self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
                    return
                self.num_lost += len(events)  # refused for good: it would be the next time too
            else:
                self._wait_s = _FIRST_WAIT_S
            spool.sent(end)
