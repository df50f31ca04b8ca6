"""`NotifySink`: turns records into messages and sends them, as a sink that `SinkDriver` drives like any other.

Two kinds of threads share the outbox. The driver's thread calls `write`, which builds and queues messages and never
waits for the network. Each channel has a `ChannelSender`, which sends from the outbox in threads of its own, so that a
channel that hangs delays neither the journal nor another channel.

The outbox file holds the unsent messages, the state of the `MessageBuilder` and the cursor. They are saved together,
so after a crash no message is sent twice and none is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tachograph._base.guard import guard
from tachograph.journal import RunFolder
from tachograph.sinks.notify._builder import MessageBuilder
from tachograph.sinks.notify._channel import Channel
from tachograph.sinks.notify._message import count_messages
from tachograph.sinks.notify._outbox import MAX_AGE_S, Outbox
from tachograph.sinks.notify._sender import ChannelSender, RateLimiter
from tachograph.sinks.notify._settings import NotifySettings

__all__ = ["NotifySink"]

_SAVE_BYTES = 4 << 20


class NotifySink:
    """Sends messages about a run to the configured channels."""

    name = "notify"
    poll_interval_s = 0.25

    def __init__(
        self,
        settings: NotifySettings,
        channels: Sequence[Channel],
        *,
        report: Callable[[str, str, str], None],
        print_line: Callable[[str], None],
        start_s: float,
    ) -> None:
        """Prepare to notify; the driver calls `load_cursor` and `start`.

        Args:
            settings: the events, metrics and limits.
            channels: the channels to send to.
            report: records a failure: its kind, the channel and the reason.
            print_line: prints a summary of unsent messages when the run ends.
            start_s: when this attempt started. Without an outbox file, earlier events are not sent.
        """
        self._settings = settings
        self._channels = channels
        self._report = report
        self._print_line = print_line
        self._start_s = start_s
        self._senders: list[ChannelSender] = []
        self._is_muted = False
        self._has_new_messages = False
        self._num_expired = 0
        self._saved_bytes = 0

    # Called by the thread that starts the run ----------------------------------------------------------------------

    def load_cursor(self, folder: RunFolder) -> int | None:
        """Load the outbox and the cursor of the previous attempt."""
        self._outbox = Outbox(folder, [channel.name for channel in self._channels])
        # Notifications may be new to a journal that has a history. The builder must read all of it, to know the state
        # of the run, but a message about an event of last week is of no use.
        self._is_muted = self._outbox.is_new
        self._builder = MessageBuilder(folder.name, self._settings, self._outbox.builder_state)
        self._saved_bytes = self._outbox.journal_bytes
        return self._outbox.journal_bytes

    def start(self) -> None:
        """Start the sending threads, and report the messages left over from the previous attempt."""
        for channel, num_kept, num_expired in self._outbox.open():
            if num_kept:
                reason = f"sending {count_messages(num_kept)} left over from the previous attempt"
                self._report("notification_late", channel, reason)
            if num_expired:
                reason = f"{count_messages(num_expired)} from the previous attempt not sent in time and dropped"
                self._report("notification_lost", channel, reason)
        self._senders = [
            ChannelSender(
                channel,
                self._outbox,
                self._report,
                timeout_s=self._settings.timeout_s,
                limiter=RateLimiter(self._settings.burst, self._settings.per_minute),
            )
            for channel in self._channels
        ]
        for sender in self._senders:
            sender.start()

    # Called by the driver's thread ---------------------------------------------------------------------------------

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Do nothing: there is no connection to open."""

    def write(self, records: list[dict[str, Any]]) -> None:
        """Build the messages for these records and queue them.

        A sender may save the outbox before the driver calls `save_cursor`. If the process dies in between, these
        records are read again, and the saved builder state recognises their messages.
        """
        with self._outbox.lock:  # no sender may save a builder state without its messages
            for record in records:
                # A record that the builder cannot handle costs one message; raising would repeat the whole block.
                with guard("building a notification"):
                    self._handle(record)

    def save_cursor(self, journal_bytes: int) -> None:
        """Save the outbox and wake the senders, if there are new messages."""
        self._outbox.journal_bytes = journal_bytes
        if self._has_new_messages:
            self._has_new_messages = False
            self._save()
            for sender in self._senders:
                sender.wake()

    def poll(self) -> None:
        """Save the cursor if much was read since the last time, and report messages that were too old to send."""
        if self._outbox.journal_bytes - self._saved_bytes > _SAVE_BYTES:  # limits how much a resume reads again
            self._save()
        if self._num_expired:
            num_expired, self._num_expired = self._num_expired, 0
            reason = f"{count_messages(num_expired)} dropped: more than an hour old when read"
            self._report("notification_lost", "journal", reason)

    def close(self) -> None:
        """Let the senders finish: there are no more messages."""
        try:
            self._save()
        finally:
            for sender in self._senders:
                sender.finish()

    # Called by the thread that ends the run ------------------------------------------------------------------------

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder."""
        self._builder.rename_run(folder.name)
        self._outbox.move(folder)

    def flush(self, deadline_s: float) -> None:
        """Wait for the senders, then print how many messages could not be sent."""
        for sender in self._senders:
            sender.set_deadline(deadline_s)
        for sender in self._senders:
            sender.join(deadline_s)
        self._outbox.close()
        for sender in self._senders:
            cause = f" ({sender.last_error})" if sender.last_error else ""
            num_waiting = len(self._outbox.waiting(sender.name))
            if num_waiting:
                self._print_line(
                    f"{sender.name}: {count_messages(num_waiting)} not sent before exit{cause}; "
                    "resume the run within an hour to send them"
                )
            if sender.num_lost:
                self._print_line(f"{sender.name}: {count_messages(sender.num_lost)} could not be sent{cause}")

    def _handle(self, record: dict[str, Any]) -> None:
        if self._is_muted and record["event"] == "start":
            self._is_muted = (record.get("time") or 0.0) < self._start_s - 0.001
        messages = self._builder.handle(record)
        if self._is_muted:
            return
        for message in messages:
            if time.time() - message.time > MAX_AGE_S:
                self._num_expired += 1
            else:
                self._outbox.put(message)
                self._has_new_messages = True

    def _save(self) -> None:
        self._outbox.save()
        self._saved_bytes = self._outbox.journal_bytes
