"""The unsent messages of each channel, saved with the cursor and the builder's state in one file of the run folder.

One atomic write saves everything, so that after a crash a message is neither built again and sent twice nor forgotten.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tachograph._base.files import read_small, replace_file
from tachograph._base.guard import faults, suppress
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder
from tachograph.sinks.notify._builder import BuilderState
from tachograph.sinks.notify._message import Message

__all__ = ["MAX_AGE_S", "Outbox"]

MAX_AGE_S = 3_600.0
"""Older messages are no longer useful and are dropped."""

_MAX_FILE_BYTES = 64 << 20
_MAX_WAITING = 50
_MAX_TITLES = 5


class _HeldMessages(msgspec.Struct):
    """Messages over the rate limit, to be replaced by one summary."""

    num_messages: int = 0
    titles: list[str] = []
    last: Message | None = None


class _ChannelQueue(msgspec.Struct):
    """The unsent messages of one channel, oldest first."""

    waiting: list[Message] = []
    held: _HeldMessages = msgspec.field(default_factory=_HeldMessages)


class _OutboxState(msgspec.Struct):
    """The content of `.tacho/notify.json`. The names in the file must not change: a resumed run reads it."""

    journal_bytes: int = 0
    builder: BuilderState = msgspec.field(default_factory=BuilderState, name="story")
    queues: dict[str, _ChannelQueue] = {}


class Outbox:
    """The unsent messages of all channels. Several threads use it: hold `lock` to change it."""

    def __init__(self, folder: RunFolder, channels: Iterable[str]) -> None:
        self.lock = threading.RLock()
        """Never held during slow operations."""
        self._save_lock = threading.Lock()
        self._is_closed = False
        self._folder = folder
        state = self._load()
        self.is_new = state is None
        """Whether no earlier attempt has left an outbox."""
        self._state = state or _OutboxState()
        self._channels = tuple(channels)

    @property
    def builder_state(self) -> BuilderState:
        """The state of the `MessageBuilder`, saved with the messages."""
        return self._state.builder

    @property
    def journal_bytes(self) -> int:
        """The cursor, saved with the messages."""
        return self._state.journal_bytes

    @journal_bytes.setter
    def journal_bytes(self, journal_bytes: int) -> None:
        self._state.journal_bytes = journal_bytes

    @property
    def _path(self) -> Path:
        return self._folder.private / "notify.json"

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder."""
        self._folder = folder

    def open(self) -> list[tuple[str, int, int]]:
        """Create a queue for each channel.

        Returns:
            For each channel with messages left over from the previous attempt: its name, the number of messages kept,
            and the number dropped because they are too old or the channel is no longer configured.
        """
        leftovers: list[tuple[str, int, int]] = []
        oldest_s = time.time() - MAX_AGE_S
        previous, self._state.queues = self._state.queues, {name: _ChannelQueue() for name in self._channels}
        for name, queue in previous.items():
            recent = [message for message in queue.waiting if message.time >= oldest_s and name in self._channels]
            if name in self._channels:
                self._state.queues[name] = _ChannelQueue(recent, queue.held)
            if queue.waiting:
                leftovers.append((name, len(recent), len(queue.waiting) - len(recent)))
        return leftovers

    def put(self, message: Message) -> None:
        """Queue a message for every channel. A full queue moves its oldest non-urgent message to the summary."""
        for queue in self._state.queues.values():
            queue.waiting.append(message)
            if len(queue.waiting) > _MAX_WAITING:
                not_urgent = (each for each in queue.waiting if not each.is_urgent)
                _hold_back(queue, next(not_urgent, queue.waiting[0]))

    def waiting(self, channel: str) -> list[Message]:
        """Return the unsent messages, oldest first."""
        return list(self._state.queues[channel].waiting)

    def remove(self, channel: str, message: Message) -> None:
        """Remove a message that was sent or given up."""
        with self.lock, suppress(ValueError):
            self._state.queues[channel].waiting.remove(message)

    def hold_back(self, channel: str, message: Message) -> None:
        """Move a message from the queue to the next summary."""
        _hold_back(self._state.queues[channel], message)

    def num_held(self, channel: str) -> int:
        """Return the number of messages that wait for a summary."""
        return self._state.queues[channel].held.num_messages

    def queue_summary(self, channel: str) -> Message | None:
        """Queue one message that summarises the messages held back, and return it."""
        queue = self._state.queues[channel]
        messages, queue.held = queue.held, _HeldMessages()
        if messages.last is None:
            return None
        num_untitled = messages.num_messages - len(messages.titles)
        titles = [*messages.titles, *([f"and {num_untitled} more"] if num_untitled else [])]
        summary = msgspec.structs.replace(
            messages.last,
            key=f"more:{messages.last.key}:{messages.num_messages}",
            event="more",
            title=f"… and {messages.num_messages} more",
            reason="Not sent separately because of the rate limit:\n" + "\n".join(f"- {title}" for title in titles),
            severity="info",
            rule="",
            meaning="",
            advice=(),
            time=time.time(),
        )
        queue.waiting.append(summary)
        return summary

    def save(self) -> None:
        """Write the file. If that fails, some messages may be sent twice after a crash."""
        with self._save_lock:
            if self._is_closed:
                return
            with self.lock:
                data = msgspec.json.encode(self._state)
            with suppress(OSError):
                replace_file(self._path, data, below=self._folder.path)

    def close(self) -> None:
        """Stop saving: a thread that is still sending must not overwrite the file of the next attempt."""
        self._is_closed = True

    def _load(self) -> _OutboxState | None:
        try:
            return decode_json(read_small(self._path, _MAX_FILE_BYTES), _OutboxState)
        except faults(OSError, msgspec.MsgspecError):
            return None


def _hold_back(queue: _ChannelQueue, message: Message) -> None:
    queue.waiting.remove(message)
    queue.held.num_messages += 1
    queue.held.last = message
    if len(queue.held.titles) < _MAX_TITLES:
        queue.held.titles = [*queue.held.titles, message.title]
