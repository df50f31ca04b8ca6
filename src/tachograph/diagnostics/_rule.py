"""What a rule is: something that listens to the signals of a run and says when one of its faults begins and ends."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from tachograph.diagnostics._alert_tracker import AlertTracker
from tachograph.diagnostics._signal_stats import Listener, Now, SignalStats

__all__ = ["Rule", "RuleSettings"]


class RuleSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings of a rule; each field says what it means."""


class Rule(Listener):
    """Base of all rules. A rule is pure: it sees values and records, and speaks to its desk.

    The docstring of a rule says what it finds and how; with `meaning`, `advice` and the thresholds it is the rule's
    page.
    """

    name: ClassVar[str]
    severity: ClassVar[str] = "warning"
    meaning: ClassVar[str]
    """What it usually means."""
    advice: ClassVar[tuple[str, ...]]
    """What people do about it."""
    hears: ClassVar[tuple[str, ...]] = ()
    """Signals of which it hears by the block, and of values that are loud or not finite."""
    hears_each: ClassVar[tuple[str, ...]] = ()
    """Signals of which it hears every value; for those that come seldom."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of records that it sees."""
    absorbs: ClassVar[tuple[str, ...]] = ()
    """Rules whose alerts are part of the same fault: they are closed when it opens, and silent while it is open."""
    Thresholds: ClassVar[type[RuleSettings]] = RuleSettings

    def __init__(self, thresholds: Any, desk: AlertTracker, gauges: dict[str, SignalStats]) -> None:
        """Get ready.

        Args:
            thresholds: an instance of the class's `Thresholds`.
            desk: takes what the rule finds.
            gauges: those of the signals that the run has, by signal; filled as they appear.
        """
        self.thresholds = thresholds
        self.desk = desk
        self.gauges = gauges
        self.reset()

    @property
    def now(self) -> Now:
        """Where the run is."""
        return self.desk.now

    def reset(self) -> None:
        """Forget everything: a new attempt begins."""

    def band(self, signal: str) -> tuple[float, float] | None:
        """Return how many spreads, and what share of the level, a value of the signal must be above it to be loud.

        A rule that needs the spread of a signal must say so here, if only with an infinite number of spreads.
        """
        return None

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Hear of a value of a signal in `hears_each`."""

    def on_record(self, record: dict[str, Any]) -> None:
        """See a record of one of `kinds`."""

    def on_change(self, what: str) -> None:
        """Hear that something changed that explains other values: `lr`, `batch`, or `restart` with fresh weights."""

    def on_tick(self, time_s: float) -> None:
        """Hear that time has passed, about every second while a run is recorded."""

    # What it says --------------------------------------------------------------------------------------------------

    def found(
        self,
        title: str,
        message: str = "",
        *,
        key: str = "",
        severity: str | None = None,
        evidence: dict[str, Any] | None = None,
        occurrence: dict[str, Any] | None = None,
    ) -> None:
        """Open an alert, or update the one that is open.

        Args:
            title: what is wrong, in one line with its numbers.
            message: more about it, in a sentence or two.
            key: tells several alerts of the rule apart, such as one per GPU.
            severity: unless it is the rule's own.
            evidence: numbers, window and steps; `metric` names the chart to look at.
            occurrence: what is said of this time, of a fault that comes back while the alert is open.
        """
        said = {"title": title, "message": message, "evidence": evidence or {}, "occurrence": occurrence}
        self.desk.found(self, key, severity or self.severity, said)

    def over(self, outcome: str, *, key: str = "", evidence: dict[str, Any] | None = None) -> None:
        """Resolve an alert, if it is open."""
        self.desk.over(self.name, key, outcome, evidence)

    def is_open(self, key: str = "") -> bool:
        """Tell whether an alert is open."""
        return self.desk.is_open(self.name, key)
