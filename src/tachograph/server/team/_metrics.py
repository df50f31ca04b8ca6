"""Counters of a team's server, for `/metrics` in the text format of Prometheus, and its log lines about faults."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

__all__ = ["ServerMetrics"]

_HELP = {
    "ingest_requests": "Requests to send runs, by status.",
    "ingest_bytes": "Plain bytes of journals that were received.",
    "ingest_body_bytes": "Bytes of the bodies in which they were received.",
    "registrations": "Registrations of runs, also repeated ones.",
    "rejected_keys": "Requests with a wrong, missing or insufficient key.",
    "faults": "Failures of the server itself; its log has one line for each.",
}
_LOG_INTERVAL_S = 10.0

logger = logging.getLogger("tachograph.server")


class ServerMetrics:
    """Counts events, and logs faults at a bounded rate. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._last_log_s: dict[str, float] = {}
        self.started = time.time()

    def count(self, name: str, amount: float = 1, **labels: object) -> None:
        """Add to a counter."""
        key = (name, tuple(sorted((label, str(value)) for label, value in labels.items())))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + amount

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
        with self._lock:
            counts = sorted(self._counts.items())
        lines: list[str] = []
        names_with_help = set()
        for (name, labels), value in counts:
            metric = f"tachograph_{name}_total"
            if name not in names_with_help:
                names_with_help.add(name)
                lines += [f"# HELP {metric} {_HELP.get(name, name)}", f"# TYPE {metric} counter"]
            inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
            lines.append(f"{metric}{{{inner}}} {value:g}" if inner else f"{metric} {value:.17g}")
        for name, (meaning, get_value) in sorted(self._gauges.items()):
            metric = f"tachograph_{name}"
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} gauge", f"{metric} {get_value():.17g}"]
        return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
