"""What waits in the buffer between the training loop and the writer.

A logged step is a bare tuple ``(steady_s, step, metrics)``; everything else is one of these.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["FlushMark", "Note", "PRESSURE", "StepEntry"]

StepEntry = tuple[float, Any, dict[str, Any]]

PRESSURE = 4096
"""When more entries than this wait, `log` takes the long way: it wakes the writer, and may drop."""


class Note:
    """A record that is not a step, in order with the steps around it."""

    __slots__ = ("event", "fields", "steady_s")

    def __init__(self, steady_s: float, event: str, fields: dict[str, Any]) -> None:
        self.steady_s = steady_s
        self.event = event
        self.fields = fields


class FlushMark:
    """Set once everything before it is in the file."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = threading.Event()
