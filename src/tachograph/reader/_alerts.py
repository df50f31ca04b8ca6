"""Alerts as a reader sees them: the records of one fault, from opened to resolved, folded into one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tachograph.records import finite_or_none, severity_rank, step_of

__all__ = ["Alert", "AlertHistory", "worst_first"]

_MOST_KEPT = 500
_MOST_OCCURRENCES = 200


class Alert(msgspec.Struct):
    """One fault of a run: what is wrong, since when, and whether it still is."""

    id: str
    rule: str
    severity: str
    """`info`, `warning` or `critical`: the worst it came to."""
    title: str
    message: str = ""
    meaning: str = ""
    """What it usually means."""
    advice: list[str] = []
    """What people do about it."""
    evidence: dict[str, Any] = {}
    """Numbers, window and steps, as they were told last."""
    occurrences: list[dict[str, Any]] = []
    """Each time the fault came back while the alert was open, as far as the rule tells them: at most the last 200."""
    num_occurrences: int = 1
    attempt: int = 0
    opened_time: float | None = None
    opened_step: int | None = None
    updated_time: float | None = None
    updated_step: int | None = None
    resolved_time: float | None = None
    resolved_step: int | None = None
    outcome: str = ""
    """Why it was resolved."""
    is_open: bool = True
    """Whether it was neither resolved nor left behind by a process that ended before a resume."""


class AlertHistory:
    """Takes `alert` records in order and keeps what they say of each alert."""

    def __init__(self) -> None:
        self._alerts: dict[str, Alert] = {}
        self._attempt = -1
        self.num_opened = 0
        """Alerts there were in all; only the last 500 are kept, and those that are open."""

    def take(self, record: dict[str, Any]) -> None:
        """Take an `alert` record, or the `start` of an attempt."""
        if record["event"] == "start":
            self._attempt += 1
            for alert in self._alerts.values():
                alert.is_open = False
            return
        key = str(record.get("id", record.get("rule")))
        if key not in self._alerts:
            self._alerts[key] = self._opened(key, record)
        _update(self._alerts[key], record)

    def alerts(self) -> list[Alert]:
        """Return the alerts, oldest first."""
        return list(self._alerts.values())

    def open_alerts(self) -> list[Alert]:
        """Return those that are not resolved, the worst first."""
        return worst_first(alert for alert in self._alerts.values() if alert.is_open)

    def _opened(self, key: str, record: dict[str, Any]) -> Alert:
        self.num_opened += 1
        if len(self._alerts) >= _MOST_KEPT:
            closed = (key for key, alert in self._alerts.items() if not alert.is_open)
            self._alerts.pop(next(closed, next(iter(self._alerts))))
        rule = str(record.get("rule", "alert"))
        return Alert(
            id=key,
            rule=rule,
            severity="info",
            title=str(record.get("title") or rule),
            attempt=max(self._attempt, 0),
            opened_time=finite_or_none(record.get("time")),
            opened_step=step_of(record),
        )


def worst_first(alerts: Iterable[Alert]) -> list[Alert]:
    """Sort alerts by severity, then by when they were opened."""
    return sorted(alerts, key=lambda alert: (-severity_rank(alert.severity), alert.opened_time or 0.0))


def _update(alert: Alert, record: dict[str, Any]) -> None:
    severity = str(record.get("severity", "warning"))
    if severity_rank(severity) > severity_rank(alert.severity):
        alert.severity = severity
    for name in ("title", "message", "meaning", "outcome"):
        if record.get(name):
            setattr(alert, name, str(record[name]))
    advice = record.get("advice")
    if isinstance(advice, list):
        alert.advice = [str(line) for line in advice]
    if isinstance(record.get("evidence"), dict):
        is_last = record.get("status") == "resolved"
        alert.evidence = {**(alert.evidence if is_last else {}), **record["evidence"]}
    alert.updated_time, alert.updated_step = finite_or_none(record.get("time")), step_of(record)
    occurrence = record.get("occurrence")
    if isinstance(occurrence, dict):
        last = alert.occurrences[-1].get("step") if alert.occurrences else None
        is_known = last is not None and last == occurrence.get("step")
        is_first = not alert.occurrences and record.get("status") == "opened"
        alert.num_occurrences += not is_known and not is_first
        kept = alert.occurrences[:-1] if is_known else alert.occurrences[1 - _MOST_OCCURRENCES :]
        alert.occurrences = [*kept, occurrence]
    alert.is_open = record.get("status") != "resolved"
    alert.resolved_time = None if alert.is_open else alert.updated_time
    alert.resolved_step = None if alert.is_open else alert.updated_step
