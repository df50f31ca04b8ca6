"""Turns the findings of rules into alerts: one fault is one alert, and every alert has one life cycle.

A rule calls `report` as long as, and as often as, it finds a fault, and `resolve` when the fault is over. The tracker
turns that into alert records with the statuses of this state machine:

    (no alert) ── report: "opened" ──► open ── resolve ──► (no alert): "resolved"
                                       │  ▲
                          report again └──┘ "updated"

    open ── resolve ──► cooling down ── cooldown expires ──► (no alert): "resolved"
                          │
                          └── report: "updated", with an occurrence ──► open

Cooldown. A fault that comes and goes would open a new alert each time. So from the third alert of a fault on, the
alert stays open for a *cooldown* after the fault is over: four times as long as the fault stayed away before this alert
was opened. If the fault comes back within the cooldown, that is one more occurrence of the same alert. After 100
occurrences only those are written whose number is a power of two. The clock is the time in the records, or the step if
they have no time, so a journal gives the same alerts when it is read later.

Absorption. A rule can name rules whose alerts are symptoms of the same fault. While its alert is open and not cooling
down, theirs are resolved and suppressed: a divergence absorbs the loss spikes that led to it.

Cause. What caused the fault may be known later, from the evidence that a dump has captured. `explain` adds it to the
alert with one more record: "updated", or "resolved" again if the alert was resolved in the meantime.

The key of an alert is the pair of rule name and the key the rule chose, such as a GPU number. Alert ids are numbered
within an attempt; the prefix makes them unique across attempts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tachograph.diagnostics._context import RunContext
from tachograph.records import SEVERITIES, AlertRecord

__all__ = ["AlertTracker", "Finding", "RuleInfo"]

_MAX_OCCURRENCES_WRITTEN = 100
_COOLDOWN_FACTOR = 4
_MIN_ALERTS_FOR_COOLDOWN = 2
_MAX_EXPLAINABLE = 32


class RuleInfo(NamedTuple):
    """The facts about a rule that its alerts carry. Keeps the tracker independent of the `Rule` class."""

    name: str
    meaning: str
    advice: tuple[str, ...]
    absorbs: tuple[str, ...]


class Finding(NamedTuple):
    """A fault as a rule reports it; see `Rule.report` for the fields."""

    title: str
    message: str
    key: str
    severity: str
    evidence: dict[str, Any] | None
    occurrence: dict[str, Any] | None


class OpenAlert:
    """An alert whose fault is present, or is over but still in its cooldown."""

    __slots__ = ("cooldown", "id", "num_occurrences", "over_since", "resolution", "rule", "severity", "title")

    def __init__(self, rule: RuleInfo, alert_id: str, cooldown: float) -> None:
        self.rule = rule
        self.id = alert_id
        self.cooldown = cooldown
        self.severity = SEVERITIES[0]
        self.title = ""
        self.num_occurrences = 0
        self.over_since: float | None = None
        """When the fault ended; None while it is present."""
        self.resolution: dict[str, Any] = {}
        """The fields that the record of its resolution will have."""


class AlertTracker:
    """Opens, updates and resolves alerts, and collects the records to write; see the module docstring."""

    def __init__(self, context: RunContext, prefix: str = "") -> None:
        self.num_cooling_down = 0
        """Alerts in their cooldown. The engine calls `close_expired` only while there are some."""
        self._context = context
        self._prefix = prefix
        self._num_opened = 0
        self.alerts: dict[tuple[str, str], OpenAlert] = {}
        """The open alerts by rule and key, including alerts in their cooldown."""
        self._closed_alerts: dict[
            tuple[str, str], tuple[int, float]
        ] = {}  # by alert key: number closed, time of the last one
        self._num_suppressors: dict[str, int] = {}  # by rule: open alerts that absorb it
        self._pending: list[AlertRecord] = []
        self._latest_alerts: dict[str, OpenAlert] = {}
        """The latest alerts by id, also closed ones: their cause may follow."""

    def report(self, rule: RuleInfo, finding: Finding) -> None:
        """Open an alert, or update the one that is open."""
        if self._num_suppressors.get(rule.name):
            return
        key = (rule.name, finding.key)
        alert = self.alerts.get(key)
        is_new = alert is None
        if alert is None:
            alert = self.alerts[key] = self._create(rule, key)
        is_recurring = alert.over_since is not None
        if is_recurring or is_new:
            self.num_cooling_down -= is_recurring
            alert.over_since = None
            alert.num_occurrences += 1
            self._absorb(rule)
        alert.severity = max(finding.severity, alert.severity, key=SEVERITIES.index)
        alert.title = finding.title
        occurrence = finding.occurrence or None
        if is_recurring and occurrence is None:
            occurrence = {"step": self._context.step}
        if is_new or _is_worth_writing(alert.num_occurrences):
            self._add_record(
                alert,
                "opened" if is_new else "updated",
                title=finding.title or None,
                message=finding.message or None,
                evidence=finding.evidence or None,
                occurrence=occurrence,
                meaning=rule.meaning if is_new else None,
                advice=list(rule.advice) if is_new else None,
            )

    def resolve(
        self, rule: str, key: str, outcome: str, evidence: dict[str, Any] | None = None, *, absorbed_by: str = ""
    ) -> None:
        """Resolve an alert, if its fault is present; it is closed at once, or after its cooldown."""
        alert = self.alerts.get((rule, key))
        if alert is None or alert.over_since is not None:
            return
        for absorbed_rule in alert.rule.absorbs:
            self._num_suppressors[absorbed_rule] -= 1
        alert.over_since = self._now()
        alert.resolution = {
            "outcome": outcome or None,
            "evidence": evidence or None,
            "absorbed_by": absorbed_by or None,
        }
        self.num_cooling_down += 1
        if absorbed_by or not alert.cooldown:
            self._close((rule, key), alert)

    def explain(self, alert_id: str, rule: str, cause: dict[str, Any]) -> None:
        """Add the cause of a fault to its alert; without an alert of that id, to the last one of the rule.

        Ids differ when a journal is read later.
        """
        alert = self._latest_alerts.get(alert_id)
        if alert is None:
            alert = next((one for one in reversed(self._latest_alerts.values()) if one.rule.name == rule), None)
        if alert is not None:
            is_open = any(one is alert for one in self.alerts.values())
            self._add_record(alert, "updated" if is_open else "resolved", title=alert.title or None, cause=cause)

    def close_expired(self) -> None:
        """Close the alerts whose cooldown has expired."""
        if self.num_cooling_down:
            now = self._now()
            for key, alert in list(self.alerts.items()):
                # A clock that was set back closes an alert too: its cooldown might never expire.
                if alert.over_since is not None and not alert.over_since <= now < alert.over_since + alert.cooldown:
                    self._close(key, alert)

    def is_open(self, rule: str, key: str = "") -> bool:
        """Return whether an alert is open and its fault is present."""
        alert = self.alerts.get((rule, key))
        return alert is not None and alert.over_since is None

    @property
    def num_open(self) -> tuple[int, int]:
        """Number of open alerts, including alerts in their cooldown, and how many of them are critical."""
        return len(self.alerts), sum(alert.severity == "critical" for alert in self.alerts.values())

    def drain(self) -> list[AlertRecord]:
        """Return the records collected since the last call."""
        self.close_expired()
        pending, self._pending = self._pending, []
        return pending

    def reset(self) -> None:
        """Abandon all open alerts without resolving them: a new attempt starts. Ids stay unique."""
        self.alerts.clear()
        self._closed_alerts.clear()
        self._num_suppressors.clear()
        self._latest_alerts.clear()
        self.num_cooling_down = 0

    def _create(self, rule: RuleInfo, key: tuple[str, str]) -> OpenAlert:
        self._num_opened += 1
        num_before, closed_at = self._closed_alerts.get(key, (0, 0.0))
        quiet_s = max(self._now() - closed_at, 0.0)
        cooldown = _COOLDOWN_FACTOR * quiet_s if num_before >= _MIN_ALERTS_FOR_COOLDOWN else 0.0
        alert = OpenAlert(rule, f"{self._prefix}{self._num_opened}", cooldown)
        self._latest_alerts[alert.id] = alert
        if len(self._latest_alerts) > _MAX_EXPLAINABLE:
            del self._latest_alerts[next(iter(self._latest_alerts))]
        return alert

    def _absorb(self, rule: RuleInfo) -> None:
        for absorbed_rule in rule.absorbs:
            self._num_suppressors[absorbed_rule] = self._num_suppressors.get(absorbed_rule, 0) + 1
            for name, key in list(self.alerts):
                if name == absorbed_rule:
                    self.resolve(name, key, f"absorbed by {rule.name}", absorbed_by=rule.name)

    def _close(self, key: tuple[str, str], alert: OpenAlert) -> None:
        del self.alerts[key]
        self.num_cooling_down -= 1
        self._closed_alerts[key] = (self._closed_alerts.get(key, (0, 0.0))[0] + 1, self._now())
        self._add_record(alert, "resolved", title=alert.title, **alert.resolution)

    def _now(self) -> float:
        context = self._context
        return context.time_s if context.time_s is not None else float(context.step or 0)

    def _add_record(self, alert: OpenAlert, status: str, **fields: Any) -> None:
        self._pending.append(
            AlertRecord(
                time=self._context.time_s,
                global_step=self._context.step,
                id=alert.id,
                rule=alert.rule.name,
                status=status,
                severity=alert.severity,
                **fields,
            )
        )


def _is_worth_writing(num_occurrences: int) -> bool:
    return num_occurrences <= _MAX_OCCURRENCES_WRITTEN or num_occurrences & (num_occurrences - 1) == 0
