"""Counters of a team's server, for `/metrics` in the text format of Prometheus, and its log lines about faults.

Several processes may serve a team. A scrape reaches one of them, which adds the counters of the others to its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

__all__ = ["COUNTERS", "Counts", "ServerMetrics", "StoreReport"]

COUNTERS = {
    "ingest_requests": "Requests to send runs, by status.",
    "ingest_bytes": "Plain bytes of journals that were received.",
    "ingest_body_bytes": "Bytes of the bodies in which they were received.",
    "registrations": "Registrations of runs, also repeated ones.",
    "rejected_keys": "Requests with a wrong, missing or insufficient key.",
    "faults": "Failures of the server itself; its log has one line for each.",
}
"""The counters, with their meaning."""

_WITH_STATUS = frozenset({"ingest_requests", "rejected_keys"})
"""The counters that have labels. The others begin at zero: a rate needs the value before the first event."""

_LOG_INTERVAL_S = 10.0

logger = logging.getLogger("tachograph.server")


Counts = list[tuple[str, list[tuple[str, str]], float]]
"""Counters: the name, the labels and the value of each."""


class StoreReport(msgspec.Struct):
    """How far the column store is behind."""

    lag_s: float
    num_bytes: int
    """Bytes of journals that are not inserted."""
    num_rows: int
    """Rows inserted since the start."""
    error: str | None
    """Why it does not accept rows."""


class ServerMetrics:
    """Counts events, and logs faults at a bounded rate. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._last_log_s: dict[str, float] = {}
        self.started = time.time()
        self.others: Callable[[], Counts] = list
        """Returns the counters of other processes."""

    def count(self, name: str, amount: float = 1, **labels: object) -> None:
        """Add to a counter."""
        key = (name, tuple(sorted((label, str(value)) for label, value in labels.items())))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + amount

    def counts(self) -> Counts:
        """Return the counters of this process."""
        with self._lock:
            return [(name, list(labels), value) for (name, labels), value in self._counts.items()]

    def restore(self, counts: Counts) -> None:
        """Add the counters of an earlier process in the place of this one."""
        for name, labels, value in counts:
            self.count(name, value, **dict(labels))

    def add_gauge(self, name: str, meaning: str, get_value: Callable[[], float]) -> None:
        """Add a value that is read when the metrics are requested."""
        self._gauges[name] = (meaning, get_value)

    def add_fault(self, what: str, error: BaseException) -> None:
        """Count a fault and log it, each kind at most every few seconds."""
        self.count("faults")
        now_s = time.monotonic()
        kind = f"{what} {type(error).__name__}"
        with self._lock:
            if now_s - self._last_log_s.get(kind, -_LOG_INTERVAL_S) < _LOG_INTERVAL_S:
                return
            self._last_log_s[kind] = now_s
        logger.error("%s: %s: %s", what, type(error).__name__, error)

    def text(self) -> str:
        """Return all values in the text format of Prometheus."""
        totals: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            (name, ()): 0.0 for name in COUNTERS if name not in _WITH_STATUS
        }
        for name, labels, value in [*self.counts(), *self.others()]:
            key = (name, tuple(labels))
            totals[key] = totals.get(key, 0) + value
        lines: list[str] = []
        names_with_help = set()
        for (name, key_labels), value in sorted(totals.items()):
            metric = f"tachograph_{name}_total"
            if name not in names_with_help:
                names_with_help.add(name)
                lines += [f"# HELP {metric} {COUNTERS[name]}", f"# TYPE {metric} counter"]
            inner = ",".join(f'{label}="{_escape(text)}"' for label, text in key_labels)
            lines.append(f"{metric}{{{inner}}} {value:.17g}" if inner else f"{metric} {value:.17g}")
        for name, (meaning, get_value) in sorted(self._gauges.items()):
            metric = f"tachograph_{name}"
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} gauge", f"{metric} {get_value():.17g}"]
        return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
