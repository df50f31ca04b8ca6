"""What waits in the buffer between the training loop and the writer.

A logged step is a bare tuple ``(steady_s, step, metrics)``; everything else is one of these.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "BufferItem",
    "FlushMarker",
    "DeferredRecord",
    "LOSS_NAMES",
    "PendingRecord",
    "BACKPRESSURE_SIZE",
    "StepItem",
]

StepItem = tuple[float, Any, dict[str, Any]]

LOSS_NAMES = ("train_loss", "loss", "train/loss")
"""Names under which people log the training loss; the first that is there counts."""

BACKPRESSURE_SIZE = 4096
"""When more entries than this wait, `log` takes the long way: it wakes the writer, and may drop."""


class PendingRecord:
    """A record that is not a step, in order with the steps around it."""

    __slots__ = ("event", "fields", "steady_s")

    def __init__(self, steady_s: float, event: str, fields: dict[str, Any]) -> None:
        self.steady_s = steady_s
        self.event = event
        self.fields = fields


class DeferredRecord:
    """An entry of a layer above, which says what to record when its turn comes."""

    __slots__ = ()

    goes_beside: ClassVar[bool] = False
    """Whether it may wait until the steps around it are written, so that it does not break up their table."""

    def notes(self, latest: Mapping[str, Any] | None) -> Iterable[PendingRecord]:
        """Return what to record. Called in the writer's thread, with the latest metrics that said the loss."""
        raise NotImplementedError

    def notes_of_all(
        self, guests: Sequence[DeferredRecord], latest: Iterable[Mapping[str, Any] | None]
    ) -> Iterable[PendingRecord]:
        """Return what to record of several that go beside, of which this is one, each with what `notes` gets."""
        return [note for guest, metrics in zip(guests, latest, strict=False) for note in guest.notes(metrics)]


class FlushMarker:
    """Set once everything before it is in the file."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = threading.Event()


BufferItem = StepItem | PendingRecord | DeferredRecord | FlushMarker
