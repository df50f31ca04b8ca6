"""Builds the API's page of alerts.

A journal can hold any number of alerts with evidence of any size and depth. The page limits all of it, so that the
response always fits into a browser tab.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from tachograph.catalog import Annotations, judgement_of, read_annotations
from tachograph.reader import Alert
from tachograph.records import mark_non_finite
from tachograph.server._copy_fields import copy_fields
from tachograph.server._models import AlertsPage, AlertView, Confidence, DumpCause, Severity
from tachograph.store import StoredRun

__all__ = ["build_alerts_page"]

_MAX_ALERTS = 200
_MAX_PAGE_BYTES = 2 << 20
_MAX_TITLE_CHARS = 300
_MAX_TEXT_CHARS = 4_000
_MAX_ADVICE_CHARS = 500
_MAX_VALUE_CHARS = 300
_MAX_ADVICE = 20
_MAX_VALUES = 30
_MAX_OCCURRENCES = 20
_MAX_DEPTH = 2


def build_alerts_page(run: StoredRun) -> AlertsPage:
    """Return a run's alerts: open ones first, most severe first, then closed ones, newest first."""
    annotations = read_annotations(run.folder)
    with run.lock:
        alerts = run.digest.open_alerts
        num_open, num_critical = len(alerts), sum(alert.severity == "critical" for alert in alerts)
        alerts += [alert for alert in reversed(run.digest.alerts) if not alert.is_open]
        alert_views = []
        size_bytes = 0
        for alert in alerts[:_MAX_ALERTS]:
            # Shortened alerts can still add up: the page ends where its size limit is reached.
            view = _build_alert(alert, annotations)
            size_bytes += len(msgspec.json.encode(view))
            if size_bytes > _MAX_PAGE_BYTES:
                break
            alert_views.append(view)
        return AlertsPage(
            version=run.version,
            num_open=num_open,
            num_critical=num_critical,
            num_left_out=run.digest.num_alerts - len(alert_views),
            alerts=alert_views,
        )


def _build_alert(alert: Alert, annotations: Annotations) -> AlertView:
    return copy_fields(
        AlertView,
        alert,
        id=_truncate(alert.id, _MAX_TITLE_CHARS),
        rule=_truncate(alert.rule, _MAX_TITLE_CHARS),
        severity=_parse_severity(alert.severity),
        title=_truncate(alert.title, _MAX_TITLE_CHARS),
        message=_truncate(alert.message, _MAX_TEXT_CHARS),
        meaning=_truncate(alert.meaning, _MAX_TEXT_CHARS),
        advice=[_truncate(line, _MAX_ADVICE_CHARS) for line in alert.advice[:_MAX_ADVICE]],
        evidence=_shorten_values(alert.evidence),
        occurrences=[_shorten_values(occurrence) for occurrence in alert.occurrences[-_MAX_OCCURRENCES:]],
        outcome=_truncate(alert.outcome, _MAX_TEXT_CHARS),
        cause=_build_cause(alert.cause),
        judgement=judgement_of(alert, annotations),
    )


def _build_cause(cause: dict[str, Any]) -> DumpCause | None:
    if not cause:
        return None
    confidences: dict[str, Confidence] = {name: name for name in get_args(Confidence)}
    return DumpCause(
        kind=_truncate(str(cause.get("kind") or ""), _MAX_TITLE_CHARS),
        text=_truncate(str(cause.get("text")), _MAX_TEXT_CHARS),
        confidence=confidences.get(str(cause.get("confidence")), "possible"),
    )


def _parse_severity(text: str) -> Severity:
    severities: dict[str, Severity] = {name: name for name in get_args(Severity)}
    return severities.get(text, "warning")  # an unknown severity must neither be hidden nor alarm


def _truncate(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def _shorten_values(values: dict[str, Any]) -> dict[str, Any]:
    short_values: dict[str, Any] = mark_non_finite(_shorten(values, 0))
    return short_values


def _shorten(value: Any, depth: int) -> Any:
    """Return a value without the parts that are too long, too many or too deep."""
    if isinstance(value, str):
        return _truncate(value, _MAX_VALUE_CHARS)
    if isinstance(value, (dict, list)) and depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        first = list(value.items())[:_MAX_VALUES]
        return {_truncate(name, _MAX_VALUE_CHARS): _shorten(item, depth + 1) for name, item in first}
    if isinstance(value, list):
        return [_shorten(item, depth + 1) for item in value[:_MAX_VALUES]]
    return value
