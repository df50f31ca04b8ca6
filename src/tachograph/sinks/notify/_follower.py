"""Follows the journal and tells people: reading in one thread, sending in one for each channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tachograph._base.guard import guard
from tachograph.journal import JournalFollower, RunFolder
from tachograph.sinks.notify._channel import Channel
from tachograph.sinks.notify._outbox import FRESH_S, Outbox
from tachograph.sinks.notify._sender import Sender, TokenBucket
from tachograph.sinks.notify._settings import NotifySettings
from tachograph.sinks.notify._story import Story

__all__ = ["NotifyFollower"]

_POLL_S = 0.25
_BLOCK_BYTES = 256 << 10
_SAVE_BYTES = 4 << 20


class NotifyFollower:
    """Tells the configured channels what happens to a run, from where the attempt before left off."""

    name = "notify"

    def __init__(
        self,
        folder: RunFolder,
        settings: NotifySettings,
        channels: Sequence[Channel],
        *,
        report: Callable[[str, str, str], None],
        say: Callable[[str], None],
        began_s: float,
    ) -> None:
        """Get ready to follow.

        Args:
            folder: the run.
            settings: what is told.
            channels: to whom.
            report: takes faults while the run goes on: their kind, the channel, and what happened.
            say: prints a line when the run has ended and nothing can be recorded any more.
            began_s: when this attempt began; what a journal that is new to us says from before is not told.
        """
        self._report = report
        self._say = say
        self._began_s = began_s
        self._outbox = Outbox(folder, [channel.name for channel in channels])
        self._is_muted = self._outbox.is_new
        self._left = self._outbox.open()
        self._story = Story(folder.name, settings, self._outbox.story)
        self._follower = JournalFollower(folder.journal, self._outbox.journal_bytes, block_bytes=_BLOCK_BYTES)
        self._senders = [
            Sender(
                channel,
                self._outbox,
                report,
                timeout_s=settings.timeout_s,
                bucket=TokenBucket(settings.burst, settings.per_minute),
            )
            for channel in channels
        ]
        self._saved_bytes = self._outbox.journal_bytes
        self._num_stale = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tachograph-notify", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        for channel, num_fresh, num_dropped in self._left:
            if num_fresh:
                self._report("notification_late", channel, f"{num_fresh} messages of the attempt before are sent now")
            if num_dropped:
                reason = f"{num_dropped} messages of the attempt before were not sent in time and are dropped"
                self._report("notification_lost", channel, reason)
        for sender in self._senders:
            sender.start()
        self._thread.start()

    def move(self, folder: RunFolder) -> None:
        """Go on in another folder, to which the journal was moved."""
        self._story.run = folder.name
        self._outbox.move(folder)
        self._follower.move(folder.journal)

    def close(self, timeout_s: float) -> bool:
        """Read and send what is left and stop; return whether all was read in time, and say what was not sent."""
        is_last_call = timeout_s > 0 or self._stopping.is_set()
        deadline_s = time.monotonic() + max(timeout_s, 0.0)
        if is_last_call:
            for sender in self._senders:
                sender.wait_until(deadline_s)
        self._stopping.set()
        self._thread.join(max(timeout_s, 0.0))
        was_read = not self._thread.is_alive()
        for sender in self._senders:
            sender.join(deadline_s)
        if is_last_call:
            self._outbox.close()
            self._tell_what_is_left()
        return was_read

    def _tell_what_is_left(self) -> None:
        for sender in self._senders:
            num_waiting = len(self._outbox.waiting(sender.name))
            why = f" ({sender.failure})" if sender.failure else ""
            if num_waiting:
                self._say(
                    f"{sender.name}: {num_waiting} messages could not be sent in time{why}; "
                    "a resume within the hour sends them"
                )
            if sender.num_lost:
                self._say(f"{sender.name}: {sender.num_lost} messages could not be sent{why}")

    # The thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                is_last = self._stopping.wait(_POLL_S)
                with guard("following the journal for notifications"):
                    self._drain()
            self._save()
        finally:
            for sender in self._senders:
                sender.finish()

    def _drain(self) -> None:
        while True:
            before = self._follower.offset
            records = self._follower.poll_block()
            if self._follower.offset == before:
                break
            with self._outbox.lock:
                has_news = any([self._take(record) for record in records])  # noqa: C419 - all of them
                self._outbox.journal_bytes = self._follower.offset
            if has_news:
                self._save()
                for sender in self._senders:
                    sender.wake()
            time.sleep(0)  # a long backlog must not keep the interpreter to itself
        if self._follower.offset - self._saved_bytes > _SAVE_BYTES:  # or a resume would read very much again
            self._save()
        if self._num_stale:
            num_stale, self._num_stale = self._num_stale, 0
            self._report("notification_lost", "journal", f"{num_stale} messages were too old to be of use when read")

    def _take(self, record: dict[str, Any]) -> bool:
        """Take a record; return whether there is anything new to send."""
        if self._is_muted and record["event"] == "start":
            self._is_muted = (record.get("time") or 0.0) < self._began_s - 0.001
        messages = self._story.take(record)
        if self._is_muted or not messages:
            return False
        fresh = [message for message in messages if time.time() - message.time <= FRESH_S]
        self._num_stale += len(messages) - len(fresh)
        for message in fresh:
            self._outbox.put(message)
        return bool(fresh)

    def _save(self) -> None:
        self._outbox.save()
        self._saved_bytes = self._follower.offset
