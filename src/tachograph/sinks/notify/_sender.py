"""One channel's thread: a channel that is slow or down delays nobody but itself."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable

from tachograph._base.guard import guard
from tachograph._base.http import DeliveryError
from tachograph.sinks.notify._channel import Channel
from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._outbox import FRESH_S, Outbox

__all__ = ["Sender", "TokenBucket"]

_FIRST_PAUSE_S = 1.0
_FIRST_PAUSE_AT_END_S = 0.2
_LONGEST_PAUSE_S = 60.0
_PATIENCE_S = 0.3
_MOST_TOLD = 20


class TokenBucket:
    """Lets a burst pass, then so many a minute."""

    def __init__(self, burst: int, per_minute: float) -> None:
        self._burst = float(burst)
        self._per_s = per_minute / 60.0
        self._tokens = self._burst
        self._counted_s = time.monotonic()

    def take(self) -> bool:
        """Take a token if there is one."""
        self._count()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait_s(self) -> float:
        """Return how long it is until there is one."""
        self._count()
        return max(0.0, (1.0 - self._tokens) / self._per_s)

    def _count(self) -> None:
        now_s = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._per_s)
        self._counted_s = now_s


class Sender:
    """Sends what waits for a channel, in order, and tries again what may still arrive."""

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        report: Callable[[str, str, str], None],
        *,
        timeout_s: float,
        bucket: TokenBucket,
    ) -> None:
        self.name = channel.name
        self.num_lost = 0
        """Messages that never will be sent."""
        self.failure = ""
        """Why the last attempt failed, if it did."""
        self._channel = channel
        self._outbox = outbox
        self._report = report
        self._timeout_s = timeout_s
        self._bucket = bucket
        self._told: set[str] = set()
        self._wake = threading.Event()
        self._busy: set[str] = set()
        self._paid: set[str] = set()  # have had their token: another attempt costs none
        self._num_failures = 0
        self._not_before_s = 0.0
        self._must_wait = False  # because the receiver says so, not because we think it wise
        self._ending = threading.Event()
        self._done = threading.Event()
        self._deadline_s = math.inf
        # Both are there from the start: at the end of a process no thread can be started any more.
        self._threads = [
            threading.Thread(target=target, name=f"tachograph-notify-{self.name}", daemon=True)
            for target in (self._run, self._send_last_word)
        ]

    def start(self) -> None:
        """Begin to send."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look at what waits, now."""
        self._wake.set()

    def finish(self) -> None:
        """Send what waits and stop: nothing more will come."""
        if not self._must_wait:
            self._not_before_s = 0.0
        self._ending.set()
        self._wake.set()

    def wait_until(self, deadline_s: float) -> None:
        """Give up at this time, on `time.monotonic`."""
        self._deadline_s = deadline_s

    def join(self, deadline_s: float) -> None:
        """Wait for the end."""
        for thread in self._threads:
            thread.join(max(deadline_s - time.monotonic(), 0.0))

    def _run(self) -> None:
        try:
            with guard(f"notifying {self.name}"):
                self._send_all(final_first=False)
        finally:
            self._done.set()

    def _send_last_word(self) -> None:
        """Help when the other thread is held up at the end: the last word must not wait for an answer to another."""
        self._ending.wait()
        if not self._done.wait(_PATIENCE_S):
            with guard(f"notifying {self.name}"):
                self._send_all(final_first=True)

    def _send_all(self, *, final_first: bool) -> None:
        while True:
            is_ending = self._ending.is_set()
            if is_ending and time.monotonic() > self._deadline_s:
                return
            pause_s = self._not_before_s - time.monotonic()
            message = self._take(final_first=final_first) if pause_s <= 0 else None
            if message is not None:
                self._attempt(message)
            elif is_ending and (pause_s <= 0 or self._not_before_s > self._deadline_s):
                return
            else:
                self._wake.wait(self._idle_s(pause_s))
                self._wake.clear()

    def _idle_s(self, pause_s: float) -> float | None:
        if pause_s > 0:
            return min(pause_s, 0.05) if self._ending.is_set() else pause_s
        return self._bucket.wait_s() + 0.001 if self._outbox.num_held(self.name) else None

    def _take(self, *, final_first: bool) -> Message | None:
        """Return the next message to send, if it may be sent now."""
        outbox = self._outbox
        with outbox.lock:
            waiting = [message for message in outbox.waiting(self.name) if message.key not in self._busy]
            if final_first:
                waiting.sort(key=lambda message: not message.is_final)  # stable: the others stay in order
            for message in waiting:
                if message.is_urgent or message.key in self._paid or self._bucket.take():
                    self._paid.add(message.key)
                    self._busy.add(message.key)
                    return message
                outbox.hold(self.name, message)
            if not outbox.num_held(self.name) or not (self._ending.is_set() or self._bucket.take()):
                return None
            summary = outbox.sum_up(self.name)
            if summary is not None:
                self._busy.add(summary.key)
            return summary

    def _attempt(self, message: Message) -> None:
        timeout_s = min(self._timeout_s, max(self._deadline_s - time.monotonic(), 0.1))
        try:
            self._channel.send(message, timeout_s)
        except DeliveryError as failure:
            self._failed(message, failure)
        except Exception as fault:  # noqa: BLE001 - our own mistake, whose text may quote a secret
            self._forget(message)
            self.num_lost += 1
            told = RuntimeError(self._channel.clean(f"{type(fault).__name__}: {fault}"))
            guard.report(f"notifying {self.name}", told)
        else:
            self._forget(message)
            self._num_failures, self._not_before_s, self.failure = 0, 0.0, ""
        finally:
            self._busy.discard(message.key)
        self._outbox.save()

    def _failed(self, message: Message, failure: DeliveryError) -> None:
        self.failure = str(failure)
        if not failure.may_retry or time.time() - message.time > FRESH_S:
            self._forget(message)
            self.num_lost += 1
            self._tell("notification_lost", f"{message.title}: {failure}; it is not tried again")
            return
        first_s = _FIRST_PAUSE_AT_END_S if self._ending.is_set() else _FIRST_PAUSE_S
        pause_s = min(first_s * 2**self._num_failures, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)  # noqa: S311
        self._num_failures += 1
        self._must_wait = failure.wait_s is not None
        self._not_before_s = time.monotonic() + max(pause_s, failure.wait_s or 0.0)
        self._tell("notification_failed", f"{failure}; it will be tried again")

    def _forget(self, message: Message) -> None:
        self._outbox.remove(self.name, message)
        self._paid.discard(message.key)

    def _tell(self, kind: str, reason: str) -> None:
        if reason not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(reason)
            self._report(kind, self.name, reason)
