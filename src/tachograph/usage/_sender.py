"""Two threads between the program and the world: one writes events down, one sends what is written.

Between them lie the files of the spool. So a receiver that hangs keeps nothing from the disk, a disk that hangs keeps
nothing from the program, and what is sent is what a user can read.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tachograph.usage._endpoint import Endpoint, Event
from tachograph.usage._quiet import quiet
from tachograph.usage._spool import Spool, left_over, prune

__all__ = ["MOST_PER_BATCH", "Sender"]

_MOST_QUEUED = 1_000
MOST_PER_BATCH = 100
_WRITE_GATHER_S = 0.05
_GATHER_S = 0.5
_TIMEOUT_S = 10.0
_FIRST_WAIT_S = 5.0
_LONGEST_WAIT_S = 300.0


class Sender:
    """Takes events from any thread.

    Args:
        folder: where the app's events are kept.
        endpoint: where they are sent; None keeps them here.
        mode: tells what the user wants now, who may have changed their mind.
        checked: returns what may be sent of an event that was read from the disk, None for nothing.
    """

    def __init__(
        self,
        folder: Path,
        endpoint: Endpoint | None,
        mode: Callable[[], str],
        checked: Callable[[Event], Event | None],
    ) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._mode = mode
        self._checked = checked
        self._queue: deque[Event] = deque()
        self._spool: Spool | None = None
        self._wake = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._is_closing = False
        self._is_written = False
        """Whether nothing more will be written."""
        self._may_send = True
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
            if not self._threads:
                self._start()
            self._wake.notify_all()

    def close(self, *, may_send: bool = True) -> None:
        """Let what is queued be written down and sent. What does not arrive is sent another time.

        Args:
            may_send: whether to try it now.
        """
        with self._wake:
            self._is_closing, self._may_send = True, may_send and self._may_send
            self._wake.notify_all()
            has_threads = any(thread.is_alive() for thread in self._threads)
        if not has_threads and self._queue:
            self._write()  # they could not be started, for the interpreter is ending

    def join(self, deadline_s: float, disk_deadline_s: float) -> None:
        """Wait until that is done, but no longer than until these times of `time.monotonic`."""
        for thread, until_s in zip(self._threads, (disk_deadline_s, deadline_s), strict=False):
            if thread.is_alive():
                thread.join(max(until_s - time.monotonic(), 0.0))

    def _start(self) -> None:
        targets = [self._write_all] if self._endpoint is None else [self._write_all, self._send_all]
        self._threads = [threading.Thread(target=each, name="tachograph-usage", daemon=True) for each in targets]
        with contextlib.suppress(RuntimeError):  # the interpreter is ending; `close` writes down what there is
            for thread in self._threads:
                thread.start()

    # To the disk -----------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        with quiet("writing usage telemetry"):
            is_last = False
            while not is_last:
                with self._wake:
                    self._wake.wait_for(lambda: self._queue or self._is_closing)
                    self._wake.wait_for(lambda: self._is_closing, _WRITE_GATHER_S)
                    is_last = self._is_closing
                self._write()
        with self._wake:
            self._is_written = True
            self._spool = self._spool if self._endpoint is not None else None
            self._wake.notify_all()

    def _write(self) -> None:
        events = [self._queue.popleft() for _ in range(len(self._queue))]
        mode = self._mode() if events else "off"
        if mode == "off":
            return
        num_lost = len(events)
        with quiet("writing usage telemetry"), contextlib.suppress(OSError):  # a disk may be full, or not ours
            spool = self._spool
            if spool is not None and mode != "on":
                spool.stay()
            if spool is not None and not spool.may_be_sent:
                self._may_send = False  # who took it back or deleted it meant what follows too
            if spool is None or spool.is_full or spool.is_gone:
                may_send = self._endpoint is not None and self._may_send and mode == "on"
                spool = Spool.begin(self._folder, self._endpoint.name if self._endpoint and may_send else None)
                prune(self._folder, spool.path)
            spool.append(events)
            num_lost = 0
            if spool.may_be_sent and self._mode() != "on":
                spool.stay()  # they said no while it was being written
            with self._wake:
                self._spool = spool
                self._wake.notify_all()
        self.num_lost += num_lost

    # To the receiver -------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        with quiet("sending usage telemetry"):
            seen: Spool | None = None
            is_last = False
            while not is_last:
                is_last = self._wait()
                spool = self._spool
                if spool is None or not self._may_send:
                    continue
                self._deliver(spool)
                if seen is not spool:
                    seen = spool
                    self._deliver_left_over(spool)
        self._spool = None

    def _wait(self) -> bool:
        """Wait until there is something to send and it may be; tell whether it is the last."""
        while True:
            spool = self._spool
            pause_s = self._retry_at_s - time.monotonic() if spool is not None and spool.waits else None
            with self._wake:
                if self._is_written:
                    return True
                if pause_s is not None and pause_s <= 0:
                    self._wake.wait_for(lambda: self._is_written, _GATHER_S)  # what comes together goes together
                    return self._is_written
                num_bytes = -1 if spool is None else spool.num_bytes
                self._wake.wait_for(functools.partial(self._has_grown, spool, num_bytes), pause_s)

    def _has_grown(self, spool: Spool | None, num_bytes: int) -> bool:
        return self._is_written or self._spool is not spool or (spool is not None and spool.num_bytes != num_bytes)

    def _may_go(self, spool: Spool) -> bool:
        """Tell whether, as of now, the user lets what is in a file go."""
        return self._may_send and spool.may_be_sent and self._mode() == "on"

    def _deliver_left_over(self, own: Spool) -> None:
        """Send what earlier processes, or files of this one, left."""
        if self._endpoint is not None:
            for spool in left_over(self._folder, own.path, self._endpoint.name):
                self._deliver(spool)

    def _deliver(self, spool: Spool) -> None:
        """Send what waits in a file; leave it there if it does not arrive but may another time."""
        from tachograph._base.http import DeliveryError

        while spool.waits and time.monotonic() >= self._retry_at_s and self._may_go(spool):
            read, end = spool.waiting(MOST_PER_BATCH)
            events = [event for event in map(self._checked, read) if event is not None]
            refusal: str | None = "it could not be sent"
            with quiet("sending usage telemetry"):
                try:
                    if events and self._endpoint is not None:
                        self._endpoint.send(events, _TIMEOUT_S, lambda: self._may_go(spool))
                    self._wait_s, refusal = _FIRST_WAIT_S, None
                except DeliveryError as error:
                    refusal = str(error)
                    if error.may_retry:
                        self._retry_at_s = time.monotonic() + max(self._wait_s, error.wait_s or 0.0)
                        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
                        return
            self.num_lost += len(events) if refusal is not None else 0
            spool.done(end, refusal)
