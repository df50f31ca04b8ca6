"""The memory that runs may use to keep the knots of a computed axis between requests.

All runs of a process share one budget. Charts of many runs read the runs one after the other, again and again, so
evicting the least recently used knots would evict each of them just before it is needed. Recently used knots therefore
stay, and runs that find no room compute theirs again.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from tachograph.store._axes import Knots
from tachograph.store._columns import Floats

__all__ = ["KnotsBudget", "compact_knots"]

_MAX_BYTES = 160 << 20
_SMALL_BYTES = 32 << 10
_RECENT_S = 30.0


class _Holder(Protocol):
    def drop_knots(self) -> None: ...


class _Reservation(NamedTuple):
    size_bytes: int
    used_at_s: float


class KnotsBudget:
    """Counts the bytes of the knots that runs keep. Thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES, recent_s: float = _RECENT_S) -> None:
        self.max_bytes = max_bytes
        self._recent_s = recent_s
        self.used_bytes = 0
        self._lock = threading.RLock()  # the garbage collector may call `_remove` at any time
        self._reservations: OrderedDict[weakref.ref[_Holder], _Reservation] = OrderedDict()

    def reserve(self, holder: _Holder, knots: Mapping[int, Knots] | None) -> bool:
        """Return whether a run may replace its knots with these; drop old knots of other runs if necessary."""
        size_bytes = sum(each.num_own_bytes for each in (knots or {}).values())
        now_s = time.monotonic()
        with self._lock:
            self._remove(weakref.ref(holder))
            if size_bytes <= _SMALL_BYTES or size_bytes > self.max_bytes:
                return size_bytes <= _SMALL_BYTES
            while self.used_bytes + size_bytes > self.max_bytes and self._reservations:
                oldest, reservation = next(iter(self._reservations.items()))
                if now_s - reservation.used_at_s < self._recent_s:
                    return False
                self._remove(oldest)
                run = oldest()
                if run is not None:
                    run.drop_knots()
            self._reservations[weakref.ref(holder, self._remove)] = _Reservation(size_bytes, now_s)
            self.used_bytes += size_bytes
            return True

    def mark_used(self, holder: _Holder) -> None:
        """Remember that the knots of a run were used now."""
        with self._lock:
            key = weakref.ref(holder)
            reservation = self._reservations.get(key)
            if reservation is not None:
                self._reservations[key] = reservation._replace(used_at_s=time.monotonic())
                self._reservations.move_to_end(key)

    def _remove(self, key: weakref.ref[_Holder]) -> None:
        with self._lock:
            reservation = self._reservations.pop(key, None)
            self.used_bytes -= reservation.size_bytes if reservation else 0


_dense_steps: weakref.WeakValueDictionary[tuple[float, int], Floats] = weakref.WeakValueDictionary()


def compact_knots(knots: dict[int, Knots]) -> dict[int, Knots]:
    """Mark knots at consecutive steps, and share these steps between runs that recorded the same ones."""
    return {attempt: _compact(each) for attempt, each in knots.items()}


def _compact(knots: Knots) -> Knots:
    steps = knots.steps
    if len(steps) < 2 or not float(steps[0]).is_integer() or not bool((np.diff(steps) == 1).all()):
        return knots
    return Knots(_dense_steps.setdefault((float(steps[0]), len(steps)), steps), knots.positions, is_dense=True)
