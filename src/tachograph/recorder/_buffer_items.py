"""The items in the buffer between the training thread and the writer thread.

A logged step is a bare tuple ``(steady_s, step, metrics)``, because building a tuple is the cheapest way to keep three
values. Any other record is a `PendingRecord`. A layer above may put items of its own types into the buffer once it has
registered an `ItemHandler` for them; the recorder never looks inside such an item.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = [
    "BACKPRESSURE_SIZE",
    "BufferItem",
    "FlushMarker",
    "ItemHandler",
    "LOSS_NAMES",
    "PendingRecord",
    "StepItem",
]

StepItem = tuple[float, Any, dict[str, Any]]

LOSS_NAMES = ("train_loss", "loss", "train/loss")
"""Names under which people log the training loss; the first one present counts."""

BACKPRESSURE_SIZE = 4096
"""With more items than this in the buffer, `log` takes the slow path: it wakes the writer, and may drop the record."""


class PendingRecord:
    """A record other than a step, in order with the steps around it."""

    __slots__ = ("event", "fields", "steady_s")

    def __init__(self, steady_s: float, event: str, fields: dict[str, Any]) -> None:
        self.steady_s = steady_s
        self.event = event
        self.fields = fields


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
        self.written = threading.Event()


BufferItem = Any
"""A `StepItem`, a `PendingRecord`, a `FlushMarker`, or an item of a registered type."""
