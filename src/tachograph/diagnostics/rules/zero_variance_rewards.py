"""All samples of a group get the same reward."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._high_share import HighShareRule
from tachograph.diagnostics._signal_stats import SignalStats

__all__ = ["ZeroVarianceRewards"]


class ZeroVarianceRewards(HighShareRule):
    """In most groups of samples all rewards are equal, so there is nothing to learn from.

    The rule uses the share that TRL logs as `frac_reward_zero_std`. Without it, the rule counts how often the standard
    deviation of the rewards is zero.
    """

    name = "zero_variance_rewards"
    meaning = (
        "Every sample in such a group has zero advantage and therefore zero gradient. Either the prompts are all too "
        "easy or all too hard for the policy, or the reward function cannot distinguish answers (a parser that always "
        "fails returns 0 for all)."
    )
    advice = (
        "Read some completions with their rewards: is the reward function correct?",
        "Choose prompts that are solved some of the time; draw more samples per prompt, at a higher temperature.",
        "Skip such groups and fill the batch with others.",
    )
    block_signals = ("zero_variance_share", "reward_std")
    title = "All rewards are equal in {share} of the groups"
    outcome = "all rewards are equal in {share} of the groups now"

    class Thresholds(HighShareRule.Thresholds):
        """When the rule fires."""

        share: Annotated[float, Meta(description="Minimum share of groups with equal rewards.", gt=0, le=1)] = 0.8

    thresholds: Thresholds

    def share_of(self, stats: SignalStats) -> float | None:
        """Return the recorded share, or the share of standard deviations that are zero."""
        if stats.signal != "reward_std":
            return super().share_of(stats)
        if "zero_variance_share" in self.signals:
            return None
        return sum(value <= 1e-12 for value in stats.values) / len(stats.values)
