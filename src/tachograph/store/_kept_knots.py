"""Which runs keep the knots of a computed axis between requests, in bounded memory.

All runs of a process share one limit. Charts of many runs read these one after the other, again and again, so removing
those that were used the longest time ago would remove each of them just before it is needed. What was used a moment ago
therefore stays, and the others are computed again.
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

__all__ = ["KnotsLimit", "compact_knots"]

_MAX_BYTES = 160 << 20
_SMALL_BYTES = 32 << 10
_RECENT_S = 30.0


class _Holder(Protocol):
    def drop_knots(self) -> None: ...


class _Kept(NamedTuple):
    num_bytes: int
    used_s: float


class KnotsLimit:
    """Counts the knots that runs keep. Thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES, recent_s: float = _RECENT_S) -> None:
        self.max_bytes = max_bytes
        self._recent_s = recent_s
        self.num_bytes = 0
        self._lock = threading.RLock()  # the garbage collector may call `_remove` at any time
        self._kept: OrderedDict[weakref.ref[_Holder], _Kept] = OrderedDict()

    def keep(self, holder: _Holder, knots: Mapping[int, Knots] | None) -> bool:
        """Return whether a run may keep knots, instead of those before; drop old ones of other runs if necessary."""
        num_bytes = sum(each.num_own_bytes for each in (knots or {}).values())
        now_s = time.monotonic()
        with self._lock:
            self._remove(weakref.ref(holder))
            if num_bytes <= _SMALL_BYTES or num_bytes > self.max_bytes:
                return num_bytes <= _SMALL_BYTES
            while self.num_bytes + num_bytes > self.max_bytes and self._kept:
                oldest, kept = next(iter(self._kept.items()))
                if now_s - kept.used_s < self._recent_s:
                    return False
                self._remove(oldest)
                found = oldest()
                if found is not None:
                    found.drop_knots()
            self._kept[weakref.ref(holder, self._remove)] = _Kept(num_bytes, now_s)
            self.num_bytes += num_bytes
            return True

    def mark_used(self, holder: _Holder) -> None:
        """Remember that the knots of a run were used now."""
        with self._lock:
            key = weakref.ref(holder)
            kept = self._kept.get(key)
            if kept is not None:
                self._kept[key] = kept._replace(used_s=time.monotonic())
                self._kept.move_to_end(key)

    def _remove(self, key: weakref.ref[_Holder]) -> None:
        with self._lock:
            kept = self._kept.pop(key, None)
            self.num_bytes -= kept.num_bytes if kept else 0


_dense_steps: weakref.WeakValueDictionary[tuple[float, int], Floats] = weakref.WeakValueDictionary()


def compact_knots(knots: dict[int, Knots]) -> dict[int, Knots]:
    """Mark knots at consecutive steps, and share these steps between runs that recorded the same ones."""
    return {attempt: _compact(each) for attempt, each in knots.items()}


def _compact(knots: Knots) -> Knots:
    steps = knots.steps
    if len(steps) < 2 or not float(steps[0]).is_integer() or not bool((np.diff(steps) == 1).all()):
        return knots
    return Knots(_dense_steps.setdefault((float(steps[0]), len(steps)), steps), knots.positions, is_dense=True)
