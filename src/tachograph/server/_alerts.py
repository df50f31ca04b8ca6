"""The alerts of a run as the API tells them: whatever is in the journal, an answer that a page can hold."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from tachograph.reader import Alert
from tachograph.records import mark_non_finite
from tachograph.server._models import Alerts, AlertView, Severity
from tachograph.store import StoredRun

__all__ = ["alerts"]

_MOST_ALERTS = 200
_MOST_BYTES = 2 << 20
_LONGEST_TITLE = 300
_LONGEST_TEXT = 4_000
_LONGEST_ADVICE = 500
_LONGEST_VALUE = 300
_MOST_ADVICE = 20
_MOST_VALUES = 30
_MOST_OCCURRENCES = 20
_DEEPEST = 2


def alerts(run: StoredRun) -> Alerts:
    """Return what rules found wrong with a run: what is open first, the worst of it before the rest."""
    with run.lock:
        found = run.digest.open_alerts
        num_open, num_critical = len(found), sum(alert.severity == "critical" for alert in found)
        found += [alert for alert in reversed(run.digest.alerts) if not alert.is_open]
        listed = []
        size_bytes = 0
        for alert in found[:_MOST_ALERTS]:
            view = _alert(alert)
            size_bytes += len(msgspec.json.encode(view))
            if size_bytes > _MOST_BYTES:
                break
            listed.append(view)
        return Alerts(
            version=run.version,
            num_open=num_open,
            num_critical=num_critical,
            num_left_out=run.digest.num_alerts - len(listed),
            alerts=listed,
        )


def _alert(alert: Alert) -> AlertView:
    return AlertView(
        id=_cut(alert.id, _LONGEST_TITLE),
        rule=_cut(alert.rule, _LONGEST_TITLE),
        severity=_severity(alert.severity),
        title=_cut(alert.title, _LONGEST_TITLE),
        message=_cut(alert.message, _LONGEST_TEXT),
        meaning=_cut(alert.meaning, _LONGEST_TEXT),
        advice=[_cut(line, _LONGEST_ADVICE) for line in alert.advice[:_MOST_ADVICE]],
        evidence=_values(alert.evidence),
        occurrences=[_values(occurrence) for occurrence in alert.occurrences[-_MOST_OCCURRENCES:]],
        num_occurrences=alert.num_occurrences,
        attempt=alert.attempt,
        opened_time=alert.opened_time,
        opened_step=alert.opened_step,
        updated_time=alert.updated_time,
        updated_step=alert.updated_step,
        resolved_time=alert.resolved_time,
        resolved_step=alert.resolved_step,
        outcome=_cut(alert.outcome, _LONGEST_TEXT),
        is_open=alert.is_open,
    )


def _severity(text: str) -> Severity:
    known: dict[str, Severity] = {name: name for name in get_args(Severity)}
    return known.get(text, "warning")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _values(values: dict[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = mark_non_finite(_small(values, 0))
    return small


def _small(value: Any, depth: int) -> Any:
    """Return a value without what is too long, too much or too deep for a page; the journal has all of it."""
    if isinstance(value, str):
        return _cut(value, _LONGEST_VALUE)
    if isinstance(value, (dict, list)) and depth > _DEEPEST:
        return "…"
    if isinstance(value, dict):
        few = list(value.items())[:_MOST_VALUES]
        return {_cut(name, _LONGEST_VALUE): _small(item, depth + 1) for name, item in few}
    if isinstance(value, list):
        return [_small(item, depth + 1) for item in value[:_MOST_VALUES]]
    return value
