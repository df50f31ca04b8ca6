"""The items in the buffer between the training thread and the writer thread.

A logged step is a bare tuple ``(steady_s, step, metrics)``, because building a tuple is the cheapest way to keep three
values. Any other record is a `PendingRecord`. A layer above may put items of its own types into the buffer once it has
registered an `ItemHandler` for them; all that the recorder reads of such an item is when it was queued, if the item has
an attribute ``queued_at``. An item of any type that takes much memory is wrapped in a `LargeItem`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from tachograph._base.reentrant import ReentrantEvent

__all__ = [
    "BACKPRESSURE_SIZE",
    "BufferItem",
    "FlushMarker",
    "ItemHandler",
    "LARGE_STEP_BYTES",
    "LargeItem",
    "ObservedStep",
    "PendingRecord",
    "StepItem",
    "StepLookup",
    "queued_at",
    "size_bytes",
]

StepItem = tuple[float, Any, dict[str, Any]]

BACKPRESSURE_SIZE = 4096
"""With more items than this in the buffer, `log` takes the slow path: it wakes the writer, and may drop the record."""


LARGE_STEP_BYTES = 16 << 10
"""A loop that logs steps larger than this takes the slow path, which counts bytes; see `Backpressure`."""


class ObservedStep(int):
    """The step of a loop that an integration observes and times: a row of it has no pace of its own.

    Such rows are logged by something else at any moment of the step, so the time between two of them says nothing.
    """


class PendingRecord:
    """A record other than a step, in order with the steps around it."""

    __slots__ = ("event", "fields", "steady_s")

    def __init__(self, steady_s: float, event: str, fields: dict[str, Any]) -> None:
        self.steady_s = steady_s
        self.event = event
        self.fields = fields

    @property
    def queued_at(self) -> float:
        """When the record was queued."""
        return self.steady_s


class StepLookup:
    """Asks for the number of a step at this place among the items; `step` has it once the item was processed.

    For a record that is added later, such as one of media: only the thread that builds records knows which step a call
    without a number belongs to.
    """

    __slots__ = ("queued_at", "requested_step", "step")

    def __init__(self, steady_s: float, requested_step: Any) -> None:
        self.queued_at = steady_s
        self.requested_step = requested_step
        self.step: int | None = None


class ItemHandler(Protocol):
    """Turns the buffer items of a layer above into records."""

    def handle(self, items: Sequence[Any], latest: Sequence[Mapping[str, Any] | None]) -> list[PendingRecord]:
        """Return the records of some items, on the writer thread.

        Args:
            items: consecutive items of the handler's types, in the order in which they were added.
            latest: for each item, the last logged metrics before it that contain the loss.
        """
        ...


class FlushMarker:
    """Is set once everything before it is in the file."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = ReentrantEvent()


class LargeItem:
    """An item that takes so much memory that the buffer counts its bytes."""

    __slots__ = ("item", "num_bytes")

    MIN_BYTES: ClassVar[int] = 4096

    def __init__(self, item: BufferItem, num_bytes: int) -> None:
        self.item = item
        self.num_bytes = num_bytes


BufferItem = Any
"""A `StepItem`, `PendingRecord`, `FlushMarker`, `StepLookup`, an item of a registered type, or a `LargeItem` of one."""


def queued_at(item: BufferItem) -> float | None:
    """Return when an item was queued, on the steady clock, or None if that is unknown."""
    if type(item) is LargeItem:
        item = item.item
    return item[0] if type(item) is tuple else getattr(item, "queued_at", None)


_VALUE_BYTES = 64


def size_bytes(value: Any) -> int:
    """Return about how much memory plain values take."""
    if isinstance(value, str):
        return _VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return _VALUE_BYTES + sum(map(size_bytes, value.values())) + sum(map(size_bytes, value))
    if isinstance(value, (list, tuple)):
        return _VALUE_BYTES + sum(map(size_bytes, value))
    return _VALUE_BYTES
