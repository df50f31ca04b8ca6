"""`ReentrantEvent`: an event that may be set and waited for at any instruction, also in a signal handler or finaliser.

A signal handler runs on the main thread between two instructions of the code that it interrupts, and a finaliser runs
on any thread in the middle of an allocation. If the interrupted code holds the lock of a `threading.Event`, and the
handler sets the same event or waits for a thread that does, nothing ever continues. So code that a public call can
reach uses this class instead of `Event`, `Condition` and `Queue`, and atomic operations of `dict` and `deque` instead
of a `Lock`. `SimpleQueue` is written in C and documented as re-entrant.
"""

from __future__ import annotations

import queue

from tachograph._base.guard import suppress

__all__ = ["ReentrantEvent"]


class ReentrantEvent:
    """Like `threading.Event`, for code that a signal handler may interrupt and call again."""

    def __init__(self) -> None:
        self._is_set = False
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake every thread that waits for it."""
        self._is_set = True
        if self._tokens.empty():
            self._tokens.put(None)

    def clear(self) -> None:
        """Reset the event. Only a thread that waits for it may do so."""
        self._is_set = False
        with suppress(queue.Empty):
            while True:
                self._tokens.get_nowait()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the event is set; return False if the timeout came first."""
        if not self._is_set:
            with suppress(queue.Empty):
                self._tokens.get(timeout=None if timeout_s is None else max(timeout_s, 0.0))
                self._tokens.put(None)  # for the next thread that waits
        return self._is_set
