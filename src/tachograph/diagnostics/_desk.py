"""The desk: where rules hand in what they found, and where it becomes alert records, one life per fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tachograph.diagnostics._gauge import Now

if TYPE_CHECKING:
    from tachograph.diagnostics._rule import Rule

__all__ = ["SEVERITIES", "Desk"]

SEVERITIES = ("info", "warning", "critical")


class Desk:
    """Gives alerts their ids, sees that one fault is one alert, and collects the records to be written."""

    def __init__(self, now: Now, prefix: str = "") -> None:
        self.now = now
        self.change: Callable[[str], None] = lambda what: None
        """Tells every rule that something changed that explains other values."""
        self.outbox: list[dict[str, Any]] = []
        self._prefix = prefix
        self._num_opened = 0
        self._open: dict[tuple[str, str], dict[str, Any]] = {}
        self._silent: dict[str, int] = {}

    def found(self, rule: Rule, key: str, severity: str, said: dict[str, Any]) -> None:
        """Open an alert, or update it."""
        if self._silent.get(rule.name):
            return
        fields = {name: value for name, value in said.items() if value}
        alert = self._open.get((rule.name, key))
        if alert is not None:
            worse = max(severity, alert["severity"], key=SEVERITIES.index)
            alert["severity"], alert["title"] = worse, said["title"]
            self._write({"id": alert["id"], "rule": rule.name, "status": "updated", "severity": worse, **fields})
            return
        for absorbed in rule.absorbs:
            self._silent[absorbed] = self._silent.get(absorbed, 0) + 1
            for name, other in list(self._open):
                if name == absorbed:
                    self.over(name, other, f"part of {rule.name} now", absorbed_by=rule.name)
        self._num_opened += 1
        alert = {"id": f"{self._prefix}{self._num_opened}", "severity": severity, "absorbs": rule.absorbs}
        alert["title"] = said["title"]
        self._open[rule.name, key] = alert
        identity = {"id": alert["id"], "rule": rule.name, "status": "opened", "severity": severity}
        self._write({**identity, **fields, "meaning": rule.meaning, "advice": list(rule.advice)})

    def over(
        self, rule: str, key: str, outcome: str, evidence: dict[str, Any] | None = None, *, absorbed_by: str = ""
    ) -> None:
        """Resolve an alert, if it is open."""
        alert = self._open.pop((rule, key), None)
        if alert is None:
            return
        for absorbed in alert["absorbs"]:
            self._silent[absorbed] -= 1
        fields = {"id": alert["id"], "rule": rule, "status": "resolved", "severity": alert["severity"]}
        more = {name: value for name, value in (("evidence", evidence), ("absorbed_by", absorbed_by)) if value}
        self._write({**fields, "title": alert["title"], "outcome": outcome, **more})

    def is_open(self, rule: str, key: str = "") -> bool:
        """Tell whether an alert is open."""
        return (rule, key) in self._open

    @property
    def num_open(self) -> tuple[int, int]:
        """How many alerts are open, and how many of these are critical."""
        return len(self._open), sum(alert["severity"] == "critical" for alert in self._open.values())

    def clear(self) -> None:
        """Leave everything that is open behind: a new attempt begins."""
        self._open.clear()
        self._silent.clear()

    def _write(self, fields: dict[str, Any]) -> None:
        record: dict[str, Any] = {"event": "alert", "time": self.now.time_s}
        if self.now.step is not None:
            record["global_step"] = self.now.step
        self.outbox.append(_plain({**record, **fields}))


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: what was logged may be a numpy number."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
