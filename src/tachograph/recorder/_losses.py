"""Counting records that could not be kept. A loss is never silent: the counts are recorded and shown."""

from __future__ import annotations

import threading

__all__ = ["LossCounter"]

_MAX_COUNTS = 1000


class LossCounter:
    """Counts lost records by reason, from any thread and in signal handlers.

    Without a lock: a handler that ends the run would wait for the writer, and the writer for a lock of the code that
    the handler interrupted. Each thread has counts of its own, and nothing can interrupt adding to one.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str], int] = {}
        self._num_reported_by_reason: dict[str, int] = {}

    @property
    def num_records(self) -> int:
        """How many records were lost so far."""
        return sum(list(self._counts.values()))

    @property
    def by_reason(self) -> dict[str, int]:
        """How many records were lost so far, by reason."""
        totals: dict[str, int] = {}
        for (_, reason), num_records in list(self._counts.items()):
            totals[reason] = totals.get(reason, 0) + num_records
        return totals

    def add(self, reason: str, num_records: int = 1) -> None:
        """Count lost records."""
        counts = self._counts
        if len(counts) >= _MAX_COUNTS and (threading.get_ident(), reason) not in counts:
            reason = "other reasons"
        key = (threading.get_ident(), reason)
        counts.setdefault(key, 0)
        counts[key] += num_records  # without a call, so that no handler can run in between

    def drain(self) -> dict[str, int]:
        """Return the losses that were not reported yet, by reason, and consider them reported."""
        if not self._counts:
            return {}
        unreported: dict[str, int] = {}
        for reason, num_records in self.by_reason.items():
            num_new = num_records - self._num_reported_by_reason.get(reason, 0)
            if num_new:
                unreported[reason] = num_new
                self._num_reported_by_reason[reason] = num_records
        return unreported
