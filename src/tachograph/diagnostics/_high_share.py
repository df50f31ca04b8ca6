"""The common part of rules that fire while a recorded share is too high."""

from __future__ import annotations

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import percent

__all__ = ["HighShareRule"]


class HighShareRule(Rule):
    """Opens an alert when the mean of a block reaches `thresholds.share`, and resolves it below 75 % of that."""

    title: str
    """Title of the alert; `{share}` is the share."""
    outcome: str
    """Outcome of the alert; `{share}` is the share."""

    class Thresholds(RuleSettings):
        """When the rule fires; each rule declares its own default and description."""

        share: float = 1.0

    thresholds: Thresholds

    def share_of(self, stats: SignalStats) -> float | None:
        """Return the share in the last block; None to ignore the block."""
        return sum(stats.values) / len(stats.values)

    def limit_of(self, stats: SignalStats, share: float) -> float:
        """Return the share from which an alert is opened."""
        return self.thresholds.share

    def reset(self) -> None:
        """Forget the share that opened the alert."""
        self._limit = self.thresholds.share

    def on_block(self, stats: SignalStats) -> None:
        """Compare the share with the threshold."""
        share = self.share_of(stats)
        if share is None:
            return
        limit = self.limit_of(stats, share)
        if self.is_open():
            # Resolving needs a clearly lower share, so that a share near the threshold does not flap.
            if share < 0.75 * self._limit:
                self.resolve(self.outcome.format(share=percent(share)))
        elif share >= limit:
            self._limit = limit
            evidence = {
                "metric": stats.metric,
                "share": share,
                "limit": limit,
                "step": self.context.step,
                "window_values": len(stats.values),
            }
            self.report(self.title.format(share=percent(share)), evidence=evidence)
