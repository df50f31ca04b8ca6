"""The base class of all rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tachograph.diagnostics._alert_tracker import AlertTracker, Finding, RuleInfo
from tachograph.diagnostics._context import RunContext
from tachograph.diagnostics._rank_status import RankStatus
from tachograph.diagnostics._signal_stats import SignalListener, SignalStats

if TYPE_CHECKING:
    from tachograph.diagnostics._ranks import ScoredWindow

__all__ = ["Rule", "RuleSettings"]


class RuleSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the thresholds of a rule. Every field has a default and a `Meta` with a description and a range."""


class Rule(SignalListener):
    """Base of all rules. A rule observes signals and records, and reports when its fault begins and ends.

    A rule does no I/O, starts no thread and reads no clock: the same records always give the same alerts. It keeps a
    bounded amount of state, however long the run is.

    The docstring of a rule describes the fault and how the rule detects it. Together with `meaning`, `advice` and
    `Thresholds` it becomes the rule's page in the documentation and the output of `tacho doctor --explain`.
    """

    name: ClassVar[str]
    """Its name in settings, alert records and messages."""
    severity: ClassVar[str] = "warning"
    """`info`, `warning` or `critical`."""
    meaning: ClassVar[str]
    """The usual causes and consequences of the fault."""
    advice: ClassVar[tuple[str, ...]]
    """What to do about it, the most useful step first."""
    block_signals: ClassVar[tuple[str, ...]] = ()
    """Signals whose blocks, outliers and non-finite values the rule receives."""
    value_signals: ClassVar[tuple[str, ...]] = ()
    """Signals of which the rule receives every value. Only for signals that are recorded rarely."""
    record_kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of records the rule receives. `step` is not possible: steps arrive in batches, as signals."""
    absorbs: ClassVar[tuple[str, ...]] = ()
    """Rules whose alerts are symptoms of this fault: resolved when it opens, suppressed while it is open."""
    Thresholds: ClassVar[type[RuleSettings]] = RuleSettings

    def __init__(
        self, thresholds: Any, context: RunContext, tracker: AlertTracker, signals: dict[str, SignalStats]
    ) -> None:
        """Start with no state.

        Args:
            thresholds: an instance of the class's `Thresholds`.
            context: the position of the run.
            tracker: receives the findings.
            signals: the statistics of every signal some rule observes, by signal name. A signal is added when its first
                value appears.
        """
        self.thresholds = thresholds
        self.context = context
        self.tracker = tracker
        self.signals = signals
        self._info = RuleInfo(self.name, self.meaning, self.advice, self.absorbs)
        self.reset()

    def reset(self) -> None:
        """Set up the state of the rule. Called at the start of every attempt."""

    def outlier_band(self, signal: str) -> tuple[float, float] | None:
        """Return how far above its level a value must be to be an outlier: in spreads, and as a share of the level.

        The first rule that returns a band for a signal defines it. A rule that needs only the spread of a signal
        returns an infinite number of spreads.
        """
        return None

    def on_signal(self, stats: SignalStats) -> None:
        """Handle the first appearance of one of `block_signals`: called once in an attempt, before its first value."""

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Handle a value of one of `value_signals`."""

    def preview_values(self, signal: str, metric: str, values: Sequence[float]) -> Callable[[], None] | None:
        """Find out whether several values of one of `value_signals` are quiet, without changing anything.

        A rule that does not implement this method receives all values singly, and so do the rules of all other signals
        in the same records.

        Returns:
            A function that does what `on_value` would have done for each value; None if one of them would be reported
            or would end an alert.
        """
        return None

    def on_other_loss(self, metric: str, value: float) -> None:
        """Handle a value that is not finite of a loss other than the signal, and the next finite one."""

    def on_record(self, record: dict[str, Any]) -> None:
        """Handle a record of one of `record_kinds`. The record must not be changed."""

    def on_change(self, change: str) -> None:
        """Handle a change that explains the values after it: `lr`, `batch`, or `restart` with fresh weights."""

    def on_interval_change(self) -> None:
        """Handle that values are recorded far more rarely or more often than before."""

    def on_first_steps(self, other_metrics: list[str]) -> None:
        """Handle that the first 64 steps are complete; `other_metrics` are names that belong to no signal."""

    def on_tick(self, time_s: float) -> None:
        """Handle the passing of time, about once per second while the run is being recorded."""

    def on_rank_window(self, window: ScoredWindow) -> None:
        """Handle a window of iterations of all ranks, with their scores. Only in jobs with several ranks.

        The step and the time of the context are those of the end of the window while this is called.
        """

    def on_rank_restart(self, rank: int) -> None:
        """Handle that another process has the number of a rank now, while the others continue."""

    def on_rank_record(self, rank: int, record: dict[str, Any]) -> None:
        """Handle the `start`, an `error` or the `end` of any rank, also of rank 0. Only in jobs with several ranks."""

    def on_rank_statuses(self, statuses: Sequence[RankStatus], time_s: float) -> None:
        """Handle what all ranks of a job are doing, every few seconds while the run is being recorded."""

    def report(
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
            title: the fault in one line, with its numbers.
            message: one or two sentences more.
            key: distinguishes several alerts of one rule, such as one per GPU.
            severity: overrides the severity of the rule.
            evidence: numbers, window and steps; `metric` names the chart to look at, `expected` is the lowest and the
                highest value that would have been fine (None: any), and `from_step` or `since_step` the onset.
            occurrence: facts about this occurrence of a fault that comes and goes while the alert is open.
        """
        self.tracker.report(self._info, Finding(title, message, key, severity or self.severity, evidence, occurrence))

    def resolve(self, outcome: str, *, key: str = "", evidence: dict[str, Any] | None = None) -> None:
        """Resolve the alert, if it is open. `outcome` says why, in a few words."""
        if self.tracker.alerts:  # most runs have no alert at all
            self.tracker.resolve(self.name, key, outcome, evidence)

    def is_open(self, key: str = "") -> bool:
        """Return whether the alert is open and its fault is present."""
        tracker = self.tracker
        return bool(tracker.alerts) and tracker.is_open(self.name, key)
