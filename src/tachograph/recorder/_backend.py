"""What a run needs of others: something that takes its entries, and things that follow its journal."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from tachograph.journal import RunFolder
from tachograph.recorder._buffer_items import BufferItem
from tachograph.recorder._writer import LossCounter

__all__ = ["Backend", "SpanRecorder", "Follower", "Collector"]


class Backend(Protocol):
    """What takes the entries of a run: the writer, or a list in a test."""

    buffer: deque[BufferItem]
    losses: LossCounter
    drained_s: float
    """When entries were last taken from the buffer, on `time.monotonic`."""

    @property
    def saw_array(self) -> bool:
        """Whether something came in that its owner could still change."""
        ...

    def add_record(self, event: str, fields: dict[str, Any]) -> None:
        """Queue a record that is not a step."""
        ...

    def put(self, entry: BufferItem, *, must: bool = False) -> bool:
        """Queue any entry, unless the buffer is full; return whether it was queued."""
        ...

    def wall_s(self, steady_s: float) -> float:
        """Return the wall time of a reading of the steady clock."""
        ...

    def wake(self) -> None:
        """Make the backend look at the buffer at once."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was queued is safe."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Make everything safe and stop."""
        ...

    def abandon(self) -> None:
        """Leave everything to the parent of a forked process."""
        ...


class SpanRecorder(Protocol):
    """A layer above that records into a run what `log` does not."""

    def close(self) -> None:
        """Record what is still open: the run is about to end."""
        ...

    def forget(self) -> None:
        """In a forked child: stop recording, for the run is the parent's."""
        ...


class Collector(Protocol):
    """A layer above that collects by itself, and is asked now and then what it has."""

    def collect(self) -> None:
        """Record what there is. Called by the writer's thread, about every second."""
        ...

    def close(self) -> None:
        """Record the rest: the run is about to end."""
        ...

    def forget(self) -> None:
        """In a forked child: stop recording, for the run is the parent's."""
        ...


class Follower(Protocol):
    """Something that follows the journal as long as the run goes on."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def start(self) -> None:
        """Begin to follow."""
        ...

    def move(self, folder: RunFolder) -> None:
        """Go on in another folder, to which the journal was moved."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Take what is left and stop; tell whether all was taken in time. May be called again, to wait longer."""
        ...
