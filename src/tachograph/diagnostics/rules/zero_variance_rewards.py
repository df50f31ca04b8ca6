"""Groups in which all samples get the same reward."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import percent

__all__ = ["ZeroVarianceRewards"]


class ZeroVarianceRewards(Rule):
    """In most groups of samples all rewards are the same, so that there is nothing to learn from.

    From the share that TRL logs as `frac_reward_zero_std`; where there is none, from a spread of the rewards that is
    zero.
    """

    name = "zero_variance_rewards"
    meaning = (
        "The advantage of every sample in such a group is zero and so is its gradient: the prompts are all too easy "
        "or all too hard for the policy, or the reward function cannot tell answers apart (a parser that fails gives "
        "all 0)."
    )
    advice = (
        "Look at some completions with their rewards: is the reward function right?",
        "Choose prompts that are solved sometimes; sample more per prompt, at a higher temperature.",
        "Leave such groups out and fill the batch with others.",
    )
    hears = ("zero_variance_share", "reward_std")

    class Thresholds(RuleSettings):
        """When it fires."""

        share: Annotated[float, Meta(description="Share of groups without variance that is too much.", gt=0, le=1)] = (
            0.8
        )

    thresholds: Thresholds

    def on_block(self, gauge: SignalStats) -> None:
        """Look at the last sixteen values."""
        if gauge.signal == "reward_std":
            if "zero_variance_share" in self.gauges:
                return
            share = sum(value <= 1e-12 for value in gauge.values) / len(gauge.values)
        else:
            share = sum(gauge.values) / len(gauge.values)
        if self.is_open():
            if share < 0.75 * self.thresholds.share:
                self.over(f"{percent(share)} of the groups now")
        elif share >= self.thresholds.share:
            evidence = {
                "metric": gauge.metric,
                "share": share,
                "step": self.now.step,
                "window_values": len(gauge.values),
            }
            self.found(f"In {percent(share)} of the groups all rewards are the same", evidence=evidence)
