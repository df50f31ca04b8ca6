"""Alerts for readers: all records of one alert, from opened to resolved, merged into one object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tachograph.records import AlertRecord, severity_rank

__all__ = ["Alert", "AlertHistory", "worst_first"]

_MAX_ALERTS = 500
_MAX_OCCURRENCES = 200


class Alert(msgspec.Struct):
    """One fault of a run, from the record that reports it to the record that resolves it."""

    id: str
    rule: str
    severity: str
    """`info`, `warning` or `critical`: the highest severity so far."""
    title: str
    message: str = ""
    meaning: str = ""
    """The usual meaning of the fault."""
    advice: list[str] = []
    """What to do about it."""
    evidence: dict[str, Any] = {}
    """Numbers, window and steps, from the latest record that has them."""
    occurrences: list[dict[str, Any]] = []
    """The last 200 occurrences of the fault while the alert was open, if the rule reports them."""
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
    cause: dict[str, Any] = {}
    """What caused the fault, if a dump shows it: `text`, `confidence` (`certain`, `likely` or `possible`), `kind`, and
    the name of the `dump`."""
    is_open: bool = True
    """False if it was resolved, or if its attempt ended and the run was resumed."""


class AlertHistory:
    """Merges `alert` records, added in order, into alerts."""

    def __init__(self) -> None:
        self._alerts: dict[str, Alert] = {}
        self._attempt = -1
        self.num_opened = 0
        """Number of all alerts. Only the last 500 are kept, open ones preferred."""

    def add(self, record: dict[str, Any]) -> None:
        """Add an `alert` record, or the `start` record of an attempt."""
        if record["event"] == "start":
            self._attempt += 1
            for alert in self._alerts.values():
                alert.is_open = False
            return
        alert_record = AlertRecord.from_record(record)
        if alert_record.id not in self._alerts:
            self._alerts[alert_record.id] = self._open(alert_record)
        _update(self._alerts[alert_record.id], alert_record)

    def set_clock(self, jump_s: float) -> None:
        """Shift the times of the open alerts, because the wall clock was set."""
        for alert in self._alerts.values():
            if alert.is_open and alert.opened_time is not None:
                alert.opened_time += jump_s

    def alerts(self) -> list[Alert]:
        """Return all alerts, oldest first."""
        return list(self._alerts.values())

    def open_alerts(self) -> list[Alert]:
        """Return the open alerts, the worst first."""
        return worst_first(alert for alert in self._alerts.values() if alert.is_open)

    def _open(self, record: AlertRecord) -> Alert:
        self.num_opened += 1
        if len(self._alerts) >= _MAX_ALERTS:
            closed_keys = (key for key, alert in self._alerts.items() if not alert.is_open)
            self._alerts.pop(next(closed_keys, next(iter(self._alerts))))
        return Alert(
            id=record.id,
            rule=record.rule,
            severity="info",
            title=record.title or record.rule,
            attempt=max(self._attempt, 0),
            opened_time=record.time,
            opened_step=record.global_step,
        )


def worst_first(alerts: Iterable[Alert]) -> list[Alert]:
    """Sort alerts by severity, then by the time they were opened."""
    return sorted(alerts, key=lambda alert: (-severity_rank(alert.severity), alert.opened_time or 0.0))


def _update(alert: Alert, record: AlertRecord) -> None:
    if severity_rank(record.severity) > severity_rank(alert.severity):
        alert.severity = record.severity
    alert.title = record.title or alert.title
    alert.message = record.message or alert.message
    alert.meaning = record.meaning or alert.meaning
    alert.outcome = record.outcome or alert.outcome
    if record.advice is not None:
        alert.advice = record.advice
    alert.cause = record.cause or alert.cause
    is_resolved = record.status == "resolved"
    if is_resolved and not alert.is_open and alert.resolved_time is not None:
        return  # it has been resolved before: this record adds the cause
    if record.evidence is not None:
        # The evidence of a resolution adds to the evidence of the fault; any other evidence replaces it.
        alert.evidence = {**(alert.evidence if is_resolved else {}), **record.evidence}
    if record.occurrence is not None:
        _add_occurrence(alert, record.occurrence, is_opening=record.status == "opened")
    alert.updated_time, alert.updated_step = record.time, record.global_step
    alert.is_open = not is_resolved
    alert.resolved_time = alert.updated_time if is_resolved else None
    alert.resolved_step = alert.updated_step if is_resolved else None


def _add_occurrence(alert: Alert, occurrence: dict[str, Any], *, is_opening: bool) -> None:
    last_step = alert.occurrences[-1].get("step") if alert.occurrences else None
    is_known = last_step is not None and last_step == occurrence.get("step")
    is_first = not alert.occurrences and is_opening
    alert.num_occurrences += not is_known and not is_first
    # An occurrence at the same step is an update of the last one, such as how a spike recovered.
    earlier = alert.occurrences[:-1] if is_known else alert.occurrences[1 - _MAX_OCCURRENCES :]
    alert.occurrences = [*earlier, occurrence]
