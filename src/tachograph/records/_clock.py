"""Changes of the wall clock while a run is recorded.

The journal keeps the times of the wall clock. When someone sets it, the recorder writes an event named ``clock_set``
with `jump_s`, after which every time is shifted by that much. Durations come out right if, at this event, a reader
shifts the times that it remembers by `clock_jump_s`: then they belong to the same clock as the times that follow.
Readers that skip the middle of a journal use `clock_jumps_s`, the sum of all jumps so far, which `clock_set`, `start`
and `end` records carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.records._values import finite_or_none

__all__ = ["CLOCK_SET", "clock_jump_s"]

CLOCK_SET = "clock_set"


def clock_jump_s(record: Mapping[str, Any]) -> float:
    """Return by how many seconds the wall clock was set; 0 if the record is not a `clock_set` event."""
    if record.get("event") != "event" or record.get("name") != CLOCK_SET:
        return 0.0
    return finite_or_none(record.get("jump_s")) or 0.0
