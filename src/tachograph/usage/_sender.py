"""Two threads between the program and the receiver: one writes events to disk, the other sends them from there.

The files of the spool connect them. A receiver that hangs therefore never delays writing, a disk that hangs never
delays the program, and only events that the user can read are ever sent.

**Consent.** `UsageSender._send_batch` is the only place from which events leave the machine. It asks the gate before it
opens a connection, and once more when the connection is established: resolving a name and a TLS handshake may take
seconds, in which the user can run `tacho usage off`. When that command returns, the file has been renamed and the
choice stored, so the second question is answered with no.

**Retries.** After a failure that may pass, nothing is sent before `_retry_at_s`. The wait starts at 5 s, doubles up to
5 minutes, and is never shorter than the receiver asks for. A rejected batch is marked as such and not sent again.

**Deadlines.** `put` never blocks: the queue is bounded, and an event that finds it full is dropped and counted.
`close` only signals; `join` waits for the threads until two deadlines, one for the disk and one for the network. The
threads are daemons, so a thread that is still waiting for the network ends with the process. The next
process sends the events that are left on disk.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tachograph._base.guard import suppress
from tachograph._base.threads import TelemetryThread
from tachograph.usage._consent import ConsentGate
from tachograph.usage._endpoint import Endpoint, Event
from tachograph.usage._guard import guard_silently
from tachograph.usage._spool import Spool, open_leftovers, prune

__all__ = ["MAX_BATCH_EVENTS", "UsageSender"]

_MAX_QUEUED_EVENTS = 1_000
MAX_BATCH_EVENTS = 100
_WRITE_DELAY_S = 0.05
"""Events of this time are written together."""
_SEND_DELAY_S = 0.5
"""Events of this time are sent together."""
_TIMEOUT_S = 10.0
_FIRST_RETRY_S = 5.0
_MAX_RETRY_S = 300.0


class UsageSender:
    """Stores and sends the events of one app. Accepts them from any thread.

    Args:
        folder: the app's folder.
        endpoint: where events are sent; None keeps them on this machine.
        gate: the user's consent at any moment.
        recheck: returns the part of an event from the disk that may be sent, None for nothing.
    """

    def __init__(
        self, folder: Path, endpoint: Endpoint | None, gate: ConsentGate, recheck: Callable[[Event], Event | None]
    ) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._gate = gate
        self._recheck = recheck
        self._queue: deque[Event] = deque()
        self._spool: Spool | None = None
        self._wake = threading.Condition()
        self._threads: list[TelemetryThread] = []
        self._is_closing = False
        self._is_written = False
        """Whether nothing more will be written."""
        self._may_send = True
        """Whether to try sending in this process; `close` may leave it to the next one."""
        self._retry_at_s = 0.0
        self._retry_s = _FIRST_RETRY_S
        self.num_lost = 0

    def put(self, event: Event) -> None:
        """Queue an event. It is dropped and counted if the queue is full."""
        with self._wake:
            if len(self._queue) >= _MAX_QUEUED_EVENTS or self._is_closing:
                self.num_lost += 1
                return
            self._queue.append(event)
            if not self._threads:
                self._start()
            self._wake.notify_all()

    def close(self, *, may_send: bool = True) -> None:
        """Let the threads write and send the queued events, then end. Does not wait.

        Args:
            may_send: whether to try sending now; otherwise the next process does.
        """
        with self._wake:
            self._is_closing, self._may_send = True, may_send and self._may_send
            self._wake.notify_all()
            has_threads = any(thread.is_alive() for thread in self._threads)
        if not has_threads and self._queue:
            self._write()  # threads cannot be started while the interpreter shuts down

    def join(self, deadline_s: float, disk_deadline_s: float) -> None:
        """Wait for the threads, at most until these times of `time.monotonic`."""
        for thread, until_s in zip(self._threads, (disk_deadline_s, deadline_s), strict=False):
            if thread.is_alive():
                thread.join(max(until_s - time.monotonic(), 0.0))

    def _start(self) -> None:
        targets = [self._write_loop] if self._endpoint is None else [self._write_loop, self._send_loop]
        self._threads = [TelemetryThread(target, name="tachograph-usage") for target in targets]
        with suppress(RuntimeError):  # the interpreter is shutting down; `close` writes the queue
            for thread in self._threads:
                thread.start()

    # The writing thread -----------------------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        with guard_silently("writing usage telemetry"):
            is_last = False
            while not is_last:
                with self._wake:
                    self._wake.wait_for(lambda: self._queue or self._is_closing)
                    self._wake.wait_for(lambda: self._is_closing, _WRITE_DELAY_S)
                    is_last = self._is_closing
                self._write()
        with self._wake:
            self._is_written = True
            self._spool = self._spool if self._endpoint is not None else None
            self._wake.notify_all()

    def _write(self) -> None:
        events = [self._queue.popleft() for _ in range(len(self._queue))]
        mode = self._gate.mode() if events else "off"
        if mode == "off":
            return
        num_lost = len(events)
        with guard_silently("writing usage telemetry"), suppress(OSError):  # disk full, or no permission
            spool = self._spool
            if spool is not None and mode != "on":
                spool.keep_local()
            if spool is not None and not spool.is_sendable:
                self._gate.withdraw()  # holding back or deleting events also applies to later ones
                mode = "local"
            if spool is None or spool.is_full or spool.is_deleted:
                is_sendable = self._endpoint is not None and mode == "on"
                spool = Spool.create(self._folder, self._endpoint.name if self._endpoint and is_sendable else None)
                prune(self._folder, spool.path)
            spool.append(events)
            num_lost = 0
            if spool.is_sendable and self._gate.mode() != "on":
                spool.keep_local()  # consent was withdrawn during the write
            with self._wake:
                self._spool = spool
                self._wake.notify_all()
        self.num_lost += num_lost

    # The sending thread -----------------------------------------------------------------------------------------------

    def _send_loop(self) -> None:
        with guard_silently("sending usage telemetry"):
            previous: Spool | None = None
            is_last = False
            while not is_last:
                is_last = self._wait_for_pending()
                spool = self._spool
                if spool is None or not self._may_send:
                    continue
                self._send_file(spool)
                if previous is not spool:
                    previous = spool
                    self._send_leftovers(spool)
        self._spool = None

    def _wait_for_pending(self) -> bool:
        """Wait until there are events to send and no retry is due later; return whether they are the last."""
        while True:
            spool = self._spool
            pause_s = self._retry_at_s - time.monotonic() if spool is not None and spool.has_pending else None
            with self._wake:
                if self._is_written:
                    return True
                if pause_s is not None and pause_s <= 0:
                    self._wake.wait_for(lambda: self._is_written, _SEND_DELAY_S)
                    return self._is_written
                num_bytes = -1 if spool is None else spool.num_bytes
                self._wake.wait_for(functools.partial(self._has_grown, spool, num_bytes), pause_s)

    def _has_grown(self, spool: Spool | None, num_bytes: int) -> bool:
        return self._is_written or self._spool is not spool or (spool is not None and spool.num_bytes != num_bytes)

    def _send_leftovers(self, current_spool: Spool) -> None:
        """Send the pending files of earlier processes, and earlier files of this one."""
        if self._endpoint is not None:
            for spool in open_leftovers(self._folder, current_spool.path, self._endpoint.name):
                self._send_file(spool)

    def _send_file(self, spool: Spool) -> None:
        """Send the pending events of a file, until a failure that may pass."""
        while self._may_send and spool.has_pending and time.monotonic() >= self._retry_at_s:
            pending_events, end = spool.read_pending(MAX_BATCH_EVENTS)
            events = [event for event in map(self._recheck, pending_events) if event is not None]
            is_final, refusal = self._send_batch(spool, events)
            if not is_final:
                return
            self.num_lost += len(events) if refusal is not None else 0
            spool.mark_done(end, refusal)

    def _send_batch(self, spool: Spool, events: list[Event]) -> tuple[bool, str | None]:
        """Send some events of a file, if the gate allows it; see the module on why it is asked twice.

        Returns:
            Whether the batch is done with, and why it was rejected for good, if it was.
        """
        from tachograph._base.http import DeliveryError

        def require_consent() -> None:
            if not (self._may_send and self._gate.allows(spool)):
                raise DeliveryError("consent was withdrawn", may_retry=True)

        refusal: str | None = "it could not be sent"
        with guard_silently("sending usage telemetry"):
            try:
                if events and self._endpoint is not None:
                    require_consent()
                    self._endpoint.send(events, _TIMEOUT_S, require_consent)
                self._retry_s, refusal = _FIRST_RETRY_S, None
            except DeliveryError as error:
                if error.may_retry:
                    self._retry_at_s = time.monotonic() + max(self._retry_s, error.wait_s or 0.0)
                    self._retry_s = min(self._retry_s * 2, _MAX_RETRY_S)
                    return False, None
                refusal = str(error)
        return True, refusal
