"""What waits to be sent and how far the journal was read, kept together in one small file of the run folder.

Both are saved at once, so that after a crash a message is neither read again and sent twice nor forgotten.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable

import msgspec

from tachograph.journal import RunFolder, atomic_write
from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._story import StoryState

__all__ = ["FRESH_S", "Outbox"]

FRESH_S = 3_600.0
"""A message older than this is of no use to anybody and is not sent any more."""

_MOST_WAITING = 50
_MOST_TITLES = 5


class _Held(msgspec.Struct):
    """Messages that were held back, to be summed up in one."""

    num_messages: int = 0
    titles: list[str] = []
    last: Message | None = None


class _Queue(msgspec.Struct):
    """What waits for one channel."""

    waiting: list[Message] = []
    held: _Held = msgspec.field(default_factory=_Held)


class _Saved(msgspec.Struct):
    journal_bytes: int = 0
    story: StoryState = msgspec.field(default_factory=StoryState)
    queues: dict[str, _Queue] = {}


class Outbox:
    """Messages on their way, for each channel in order. Used by several threads: hold `lock` to change it."""

    def __init__(self, folder: RunFolder, channels: Iterable[str]) -> None:
        self.lock = threading.RLock()
        """Never held while anything slow is done."""
        self._saving = threading.Lock()
        self._is_closed = False
        self._path = folder.private / "notify.json"
        saved = self._load()
        self.is_new = saved is None
        self._saved = saved or _Saved()
        self._channels = tuple(channels)

    @property
    def story(self) -> StoryState:
        """What is known of the journal so far."""
        return self._saved.story

    @property
    def journal_bytes(self) -> int:
        """How far the journal was read; saved with what was found there."""
        return self._saved.journal_bytes

    @journal_bytes.setter
    def journal_bytes(self, journal_bytes: int) -> None:
        self._saved.journal_bytes = journal_bytes

    def move(self, folder: RunFolder) -> None:
        """Go on in another folder."""
        self._path = folder.private / self._path.name

    def open(self) -> list[tuple[str, int, int]]:
        """Make a queue for each channel; return how many messages the attempt before left: still of use, and not."""
        left: list[tuple[str, int, int]] = []
        too_old_s = time.time() - FRESH_S
        found, self._saved.queues = self._saved.queues, {name: _Queue() for name in self._channels}
        for name, queue in found.items():
            fresh = [message for message in queue.waiting if message.time >= too_old_s and name in self._channels]
            if name in self._channels:
                self._saved.queues[name] = _Queue(fresh, queue.held)
            if queue.waiting:
                left.append((name, len(fresh), len(queue.waiting) - len(fresh)))
        return left

    def put(self, message: Message) -> None:
        """Queue a message for every channel. A full queue gives up its oldest that is not urgent, to be summed up."""
        for queue in self._saved.queues.values():
            queue.waiting.append(message)
            if len(queue.waiting) > _MOST_WAITING:
                plain = (waiting for waiting in queue.waiting if not waiting.is_urgent)
                _hold(queue, next(plain, queue.waiting[0]))

    def waiting(self, channel: str) -> list[Message]:
        """Return what waits, oldest first."""
        return list(self._saved.queues[channel].waiting)

    def remove(self, channel: str, message: Message) -> None:
        """Forget a message: it was sent, or never will be."""
        with self.lock, contextlib.suppress(ValueError):
            self._saved.queues[channel].waiting.remove(message)

    def hold(self, channel: str, message: Message) -> None:
        """Keep a message back, to be summed up later."""
        _hold(self._saved.queues[channel], message)

    def num_held(self, channel: str) -> int:
        """Return how many messages were held back and not summed up yet."""
        return self._saved.queues[channel].held.num_messages

    def sum_up(self, channel: str) -> Message | None:
        """Queue one message for all that were held back, and return it."""
        queue = self._saved.queues[channel]
        held, queue.held = queue.held, _Held()
        if held.last is None:
            return None
        more = held.num_messages - len(held.titles)
        titles = [*held.titles, *([f"and {more} more"] if more else [])]
        summary = msgspec.structs.replace(
            held.last,
            key=f"more:{held.last.key}:{held.num_messages}",
            event="more",
            title=f"… and {held.num_messages} more",
            reason="Held back, so as not to flood this channel:\n" + "\n".join(f"- {title}" for title in titles),
            severity="info",
            rule="",
            meaning="",
            advice=(),
            time=time.time(),
        )
        queue.waiting.append(summary)
        return summary

    def save(self) -> None:
        """Make it safe. Without it, some messages are sent twice after a crash."""
        with self._saving:
            if self._is_closed:
                return
            with self.lock:
                data = msgspec.json.encode(self._saved)
            with contextlib.suppress(OSError):
                atomic_write(self._path, data)

    def close(self) -> None:
        """Save no more: from here on the file is the next attempt's."""
        self._is_closed = True

    def _load(self) -> _Saved | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Saved)
        except (OSError, msgspec.MsgspecError):
            return None


def _hold(queue: _Queue, message: Message) -> None:
    queue.waiting.remove(message)
    queue.held.num_messages += 1
    queue.held.last = message
    if len(queue.held.titles) < _MOST_TITLES:
        queue.held.titles = [*queue.held.titles, message.title]
