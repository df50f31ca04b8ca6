"""Sends the messages of one channel in threads of its own: a slow or unreachable channel delays only itself.

The first thread sends messages in order. A temporary failure is retried after a growing pause; a permanent one drops
the message. The second thread waits until the run ends. If the first is then still blocked in a request, the second
sends the final message ("Training complete"), so that the most important message does not wait for a timeout. Both
threads pick messages under the outbox's lock and mark them in `_in_flight`, so that none is sent twice.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from tachograph._base.guard import guard
from tachograph._base.http import DeliveryError
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.threads import TelemetryThread
from tachograph.sinks._driver import backoff_s
from tachograph.sinks.notify._channel import Channel
from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._outbox import MAX_AGE_S, Outbox

__all__ = ["ChannelSender", "RateLimiter"]

_FIRST_PAUSE_S = 1.0
_FIRST_PAUSE_AT_EXIT_S = 0.2
_MAX_PAUSE_S = 60.0
_FINAL_MESSAGE_DELAY_S = 0.3
_MAX_REPORTED = 20


class RateLimiter:
    """A token bucket: allows a burst, then a number of messages per minute."""

    def __init__(self, burst: int, per_minute: float) -> None:
        self._burst = float(burst)
        self._per_s = per_minute / 60.0
        self._tokens = self._burst
        self._refilled_s = time.monotonic()

    def try_acquire(self) -> bool:
        """Use a token if one is available."""
        self._refill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait_s(self) -> float:
        """Return the time until a token is available."""
        self._refill()
        return max(0.0, (1.0 - self._tokens) / self._per_s)

    def _refill(self) -> None:
        now_s = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now_s - self._refilled_s) * self._per_s)
        self._refilled_s = now_s


class ChannelSender:
    """Sends the queued messages of one channel."""

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        report: Callable[[str, str, str], None],
        *,
        timeout_s: float,
        limiter: RateLimiter,
    ) -> None:
        self.name = channel.name
        self.num_lost = 0
        """Messages that were given up."""
        self.last_error = ""
        """Why the latest attempt failed; empty if it succeeded."""
        self._channel = channel
        self._outbox = outbox
        self._report = report
        self._timeout_s = timeout_s
        self._limiter = limiter
        self._reported_reasons: set[str] = set()
        self._wake = ReentrantEvent()
        self._in_flight: set[str] = set()
        self._admitted_keys: set[str] = set()  # passed the rate limit: a retry does not count again
        self._num_failures = 0
        self._not_before_s = 0.0
        self._must_wait = False  # the receiver asked for the pause, so it also holds at exit
        self._finishing = ReentrantEvent()
        self._first_is_done = ReentrantEvent()
        self._deadline_s = math.inf
        # Both threads start with the run, because Python cannot start threads while it exits.
        self._threads = [
            TelemetryThread(target, name=f"tachograph-notify-{self.name}") for target in (self._run, self._run_final)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Check for new messages now."""
        self._wake.set()

    def finish(self) -> None:
        """Send the remaining messages and stop: no more will be queued."""
        if not self._must_wait:
            self._not_before_s = 0.0
        self._finishing.set()
        self._wake.set()

    def set_deadline(self, deadline_s: float) -> None:
        """Stop at this time on `time.monotonic`, even if messages are left."""
        self._deadline_s = deadline_s

    def join(self, deadline_s: float) -> None:
        """Wait until the threads have ended, at most until the deadline."""
        for thread in self._threads:
            thread.join(max(deadline_s - time.monotonic(), 0.0))

    def _run(self) -> None:
        try:
            with guard(f"notifying {self.name}"):
                self._send_all(final_first=False)
        finally:
            self._first_is_done.set()

    def _run_final(self) -> None:
        self._finishing.wait()
        if not self._first_is_done.wait(_FINAL_MESSAGE_DELAY_S):
            with guard(f"notifying {self.name}"):
                self._send_all(final_first=True)

    def _send_all(self, *, final_first: bool) -> None:
        while True:
            is_finishing = self._finishing.is_set()
            if is_finishing and time.monotonic() > self._deadline_s:
                return
            pause_s = self._not_before_s - time.monotonic()
            message = self._next_message(final_first=final_first) if pause_s <= 0 else None
            if message is not None:
                self._send(message)
            elif is_finishing and (pause_s <= 0 or self._not_before_s > self._deadline_s):
                return
            else:
                self._wake.wait(self._idle_s(pause_s))
                self._wake.clear()

    def _idle_s(self, pause_s: float) -> float | None:
        if pause_s > 0:
            return min(pause_s, 0.05) if self._finishing.is_set() else pause_s
        return self._limiter.wait_s() + 0.001 if self._outbox.num_held(self.name) else None

    def _next_message(self, *, final_first: bool) -> Message | None:
        """Return the next message that may be sent now, and mark it as in flight."""
        outbox = self._outbox
        with outbox.lock:
            waiting = [message for message in outbox.waiting(self.name) if message.key not in self._in_flight]
            if final_first:
                waiting.sort(key=lambda message: not message.is_final)  # stable: the others stay in order
            for message in waiting:
                if message.is_urgent or message.key in self._admitted_keys or self._limiter.try_acquire():
                    self._admitted_keys.add(message.key)
                    self._in_flight.add(message.key)
                    return message
                outbox.hold_back(self.name, message)
            if not outbox.num_held(self.name) or not (self._finishing.is_set() or self._limiter.try_acquire()):
                return None
            summary = outbox.queue_summary(self.name)
            if summary is not None:
                self._in_flight.add(summary.key)
            return summary

    def _send(self, message: Message) -> None:
        timeout_s = min(self._timeout_s, max(self._deadline_s - time.monotonic(), 0.1))
        try:
            self._channel.send(message, timeout_s)
        except DeliveryError as error:
            self._handle_failure(message, error)
        except Exception as error:  # noqa: BLE001 - a bug of ours, whose text may quote a secret
            self._remove(message)
            self.num_lost += 1
            masked_error = RuntimeError(self._channel.mask_secrets(f"{type(error).__name__}: {error}"))
            guard.report(f"notifying {self.name}", masked_error)
        else:
            self._remove(message)
            self._num_failures, self._not_before_s, self.last_error = 0, 0.0, ""
        finally:
            self._in_flight.discard(message.key)
        self._outbox.save()

    def _handle_failure(self, message: Message, error: DeliveryError) -> None:
        self.last_error = str(error)
        if not error.may_retry or time.time() - message.time > MAX_AGE_S:
            self._remove(message)
            self.num_lost += 1
            self._report_once("notification_lost", f"{message.title}: {error}; will not be retried")
            return
        first_s = _FIRST_PAUSE_AT_EXIT_S if self._finishing.is_set() else _FIRST_PAUSE_S
        # Jitter keeps the ranks and runs of a cluster from retrying at the same moment.
        pause_s = backoff_s(first_s, self._num_failures, _MAX_PAUSE_S) * random.uniform(0.5, 1.0)  # noqa: S311
        self._num_failures += 1
        self._must_wait = error.wait_s is not None
        self._not_before_s = time.monotonic() + max(pause_s, error.wait_s or 0.0)
        self._report_once("notification_failed", f"{error}; will be retried")

    def _remove(self, message: Message) -> None:
        self._outbox.remove(self.name, message)
        self._admitted_keys.discard(message.key)

    def _report_once(self, kind: str, reason: str) -> None:
        if reason not in self._reported_reasons and len(self._reported_reasons) < _MAX_REPORTED:
            self._reported_reasons.add(reason)
            self._report(kind, self.name, reason)
