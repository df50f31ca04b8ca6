"""The desk: where rules hand in what they found, and where it becomes alert records, one life per fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tachograph.diagnostics._signal_stats import Now
from tachograph.records import SEVERITIES

if TYPE_CHECKING:
    from tachograph.diagnostics._rule import Rule

__all__ = ["AlertTracker"]

_MOST_TOLD = 100
"""Times that a fault of one alert is told; after that, at each power of two."""


class OpenAlert:
    """An alert that is open, or that is over but may come back any moment."""

    def __init__(self, rule: Rule, alert_id: str, lingers: float) -> None:
        self.rule = rule
        self.id = alert_id
        self.severity = SEVERITIES[0]
        self.title = ""
        self.count = 0
        self.lingers = lingers
        """For how long it stays open after it was over, because it came back so often."""
        self.over_at: float | None = None
        self.outcome: dict[str, Any] = {}

    def is_worth_telling(self) -> bool:
        """Tell whether it has not come back so often that nobody wants to know of each time."""
        return self.count <= _MOST_TOLD or self.count & (self.count - 1) == 0


class AlertTracker:
    """Gives alerts their ids, sees that one fault is one alert, and collects the records to be written.

    A fault that comes back again and again is one alert too: from its third time on an alert stays open for a while
    after it was over, four times as long as the fault last took to come back.
    """

    def __init__(self, now: Now, prefix: str = "") -> None:
        self.now = now
        self.is_reinforcement = False
        """Whether rewards are recorded: a loss says little then."""
        self.change: Callable[[str], None] = lambda what: None
        """Tells every rule that something changed that explains other values."""
        self.outbox: list[dict[str, Any]] = []
        self._prefix = prefix
        self._num_opened = 0
        self._lives: dict[tuple[str, str], OpenAlert] = {}
        self._past: dict[tuple[str, str], tuple[int, float]] = {}
        self.num_lingering = 0
        """Alerts whose fault is over, but which may come back any moment."""
        self._silent: dict[str, int] = {}

    def found(self, rule: Rule, key: str, severity: str, said: dict[str, Any]) -> None:
        """Open an alert, or update it."""
        if self._silent.get(rule.name):
            return
        place = (rule.name, key)
        life = self._lives.get(place)
        is_new = life is None
        if life is None:
            life = self._lives[place] = self._opened(rule, place)
        comes_back = life.over_at is not None
        if comes_back or is_new:
            self.num_lingering -= comes_back
            life.over_at = None
            life.count += 1
            self._absorb(rule)
        fields = {name: value for name, value in said.items() if value}
        if comes_back:
            fields.setdefault("occurrence", {"step": self.now.step})
        life.severity, life.title = max(severity, life.severity, key=SEVERITIES.index), said["title"]
        identity = {"id": life.id, "rule": rule.name, "status": "opened" if is_new else "updated"}
        identity["severity"] = life.severity
        if is_new:
            self._write({**identity, **fields, "meaning": rule.meaning, "advice": list(rule.advice)})
        elif life.is_worth_telling():
            self._write({**identity, **fields})

    def over(
        self, rule: str, key: str, outcome: str, evidence: dict[str, Any] | None = None, *, absorbed_by: str = ""
    ) -> None:
        """Resolve an alert, if it is open."""
        life = self._lives.get((rule, key))
        if life is None or life.over_at is not None:
            return
        for absorbed in life.rule.absorbs:
            self._silent[absorbed] -= 1
        more = {"outcome": outcome, "evidence": evidence, "absorbed_by": absorbed_by}
        life.over_at = self._clock()
        life.outcome = {name: value for name, value in more.items() if value}
        self.num_lingering += 1
        if absorbed_by or not life.lingers:
            self._close((rule, key), life)

    def settle(self) -> None:
        """Close alerts that have been over for long enough."""
        if self.num_lingering:
            now = self._clock()
            for place, life in list(self._lives.items()):
                if life.over_at is not None and not life.over_at <= now < life.over_at + life.lingers:
                    self._close(place, life)

    def is_open(self, rule: str, key: str = "") -> bool:
        """Tell whether an alert is open and its fault there."""
        life = self._lives.get((rule, key))
        return life is not None and life.over_at is None

    @property
    def num_open(self) -> tuple[int, int]:
        """How many alerts are open, and how many of these are critical."""
        return len(self._lives), sum(life.severity == "critical" for life in self._lives.values())

    def clear(self) -> None:
        """Leave everything that is open behind: a new attempt begins."""
        self._lives.clear()
        self._past.clear()
        self._silent.clear()
        self.num_lingering = 0
        self.is_reinforcement = False

    def _opened(self, rule: Rule, place: tuple[str, str]) -> OpenAlert:
        self._num_opened += 1
        num_before, over_at = self._past.get(place, (0, 0.0))
        lingers = 4 * max(self._clock() - over_at, 0.0) if num_before >= 2 else 0.0
        return OpenAlert(rule, f"{self._prefix}{self._num_opened}", lingers)

    def _absorb(self, rule: Rule) -> None:
        for absorbed in rule.absorbs:
            self._silent[absorbed] = self._silent.get(absorbed, 0) + 1
            for name, key in list(self._lives):
                if name == absorbed:
                    self.over(name, key, f"part of {rule.name} now", absorbed_by=rule.name)

    def _close(self, place: tuple[str, str], life: OpenAlert) -> None:
        del self._lives[place]
        self.num_lingering -= 1
        self._past[place] = (self._past.get(place, (0, 0.0))[0] + 1, self._clock())
        fields = {"id": life.id, "rule": place[0], "status": "resolved", "severity": life.severity}
        self._write({**fields, "title": life.title, **life.outcome})

    def _clock(self) -> float:
        """Return when it is: by the time, or by the step where no time is recorded."""
        now = self.now
        return now.time_s if now.time_s is not None else float(now.step or 0)

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
