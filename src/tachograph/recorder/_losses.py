"""Counting records that could not be kept. A loss is never silent: the counts are recorded and shown."""

from __future__ import annotations

import threading

__all__ = ["LossCounter"]


class LossCounter:
    """Counts lost records by reason, from any thread."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may log while its own thread is in here.
        self._lock = threading.RLock()
        self._num_by_reason: dict[str, int] = {}
        self.num_records = 0

    def add(self, reason: str, num_records: int = 1) -> None:
        """Count lost records."""
        with self._lock:
            self.num_records += num_records
            self._num_by_reason[reason] = self._num_by_reason.get(reason, 0) + num_records

    def drain(self) -> dict[str, int]:
        """Return the losses that were not reported yet, by reason, and consider them reported."""
        if not self._num_by_reason:
            return {}
        with self._lock:
            num_by_reason, self._num_by_reason = self._num_by_reason, {}
        return num_by_reason
