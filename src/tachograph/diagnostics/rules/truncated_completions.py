"""Completions that are all cut off."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import percent

__all__ = ["TruncatedCompletions"]


class TruncatedCompletions(Rule):
    """Nearly all completions reach the longest length and are cut off.

    From the share that TRL logs as `completions/clipped_ratio`, as the mean of the last sixteen values.
    """

    name = "truncated_completions"
    meaning = (
        "The policy does not end its answers: it rambles, has unlearnt the end token, or the limit is too short for "
        "the task. Rewards that look at the end of an answer see none."
    )
    advice = (
        "Read some completions. If they are good, raise max_completion_length.",
        "See that the end token is in the template and is not masked in the loss.",
        "Punish length softly, or leave cut-off completions out of the loss.",
    )
    hears = ("truncated_share",)

    class Thresholds(RuleSettings):
        """When it fires."""

        share: Annotated[float, Meta(description="Share of completions cut off that is too much.", gt=0, le=1)] = 0.9

    thresholds: Thresholds

    def on_block(self, gauge: SignalStats) -> None:
        """Look at the last sixteen values."""
        share = sum(gauge.values) / len(gauge.values)
        if self.is_open():
            if share < 0.75 * self.thresholds.share:
                self.over(f"{percent(share)} are cut off now")
        elif share >= self.thresholds.share:
            evidence = {
                "metric": gauge.metric,
                "share": share,
                "step": self.now.step,
                "window_values": len(gauge.values),
            }
            self.found(f"{percent(share)} of the completions are cut off", evidence=evidence)
