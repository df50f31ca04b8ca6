"""The interfaces between a run and the parts around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tachograph.journal import RunFolder
from tachograph.recorder._buffer_items import BufferItem, ItemHandler
from tachograph.recorder._losses import LossCounter

__all__ = ["Backend", "Collector", "Follower", "RunLayer"]


class Backend(Protocol):
    """Receives the buffer items of a run: the writer, or a list in a test."""

    buffer: deque[BufferItem]
    losses: LossCounter
    loop_position: Callable[[], tuple[int | None, str]]
    """Returns how many iterations are complete, and the phase of an open span such as a validation."""
    collective_wait: Callable[[float, float], tuple[float, int] | None] | None
    """Returns how long the rank waited in collectives between two times, and the number of collectives so far; None if
    that is not known. The function is None unless collectives are timed.
    """

    @property
    def is_late(self) -> bool:
        """Whether the backend cannot keep up with the training code."""
        ...

    @property
    def last_step(self) -> int | None:
        """The latest step of which a record was built; None before the first one."""
        ...

    @property
    def saw_array(self) -> bool:
        """Whether an array arrived that its owner could still change."""
        ...

    def add_record(self, event: str, fields: dict[str, Any]) -> None:
        """Queue a record other than a step."""
        ...

    def add_handler(self, types: Iterable[type], handler: ItemHandler, *, deferrable: Iterable[type] = ()) -> None:
        """Register the handler of item types that a layer above puts into the buffer."""
        ...

    def put(self, item: BufferItem, *, num_bytes: int = 0, force: bool = False) -> bool:
        """Queue an item unless the buffer is full; return whether it was queued.

        If the buffer is filling up, this gives the interpreter to a backend that is draining it, but never waits for
        one that is stuck.

        Args:
            item: the item.
            num_bytes: about how much memory it takes, if that is much.
            force: queue it in any case.
        """
        ...

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a reading of the steady clock."""
        ...

    def wake(self) -> None:
        """Make the backend drain the buffer at once."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is on disk; return False if the timeout came first."""
        ...

    def close(self, timeout_s: float, end: dict[str, Any] | None = None) -> bool:
        """Flush everything and stop; return False if the timeout came first. May be called again, to wait longer.

        Args:
            timeout_s: how long to wait.
            end: the fields of the `end` record, which comes last; the fields of the first call count.
        """
        ...

    def abandon(self) -> None:
        """In a forked child: leave everything to the parent."""
        ...


class RunLayer(Protocol):
    """A layer above that records into a run, such as `tachograph.spans.SpanRecorder`."""

    def close(self) -> None:
        """Record the rest: the run is about to end."""
        ...

    def forget(self) -> None:
        """In a forked child: stop recording, because the run belongs to the parent."""
        ...


class Collector(RunLayer, Protocol):
    """A layer above that gathers data alongside the loop and is polled for it."""

    def collect(self) -> None:
        """Record the data gathered so far. Called by the writer thread, about every second."""
        ...


class Follower(Protocol):
    """Follows the journal as long as the run is recorded."""

    @property
    def name(self) -> str:
        """The name that users know it by."""
        ...

    def start(self) -> None:
        """Start following."""
        ...

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder, to which the journal was moved."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Process the rest and stop; return False if the timeout came first. May be called again to wait longer."""
        ...
