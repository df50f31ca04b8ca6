"""The common part of rules about the speed of a run."""

from __future__ import annotations

from typing import ClassVar

from tachograph.diagnostics._rule import Rule
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import duration, figure

__all__ = ["StepTimeRule"]


class StepTimeRule(Rule):
    """Observes the step time or, where none is recorded, the throughput.

    The engine turns a throughput into the seconds per sample or token, so that more is worse for both signals.
    """

    block_signals: ClassVar[tuple[str, ...]] = ("step_s", "throughput")

    def is_observed(self, stats: SignalStats) -> bool:
        """Return whether a signal is the one to observe, and not a throughput beside a step time."""
        return stats.signal == "step_s" or "step_s" not in self.signals

    def describe(self, stats: SignalStats, seconds: float) -> str:
        """Return a level of the signal as it was recorded: a duration, or a throughput."""
        return duration(seconds) if stats.signal == "step_s" else f"{figure(1 / seconds)} ({stats.metric})"
