"""All samples of a group get the same reward."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._high_share import HighShareRule
from tachograph.diagnostics._history import History
from tachograph.diagnostics._reward_trend import RewardTrend
from tachograph.diagnostics._signal_stats import SignalStats

__all__ = ["ZeroVarianceRewards"]

_MIN_POINTS = 8


class ZeroVarianceRewards(HighShareRule):
    """In most groups of samples all rewards are equal, or in more and more of them, so there is nothing to learn from.

    The rule uses the share that TRL logs as `frac_reward_zero_std`. Without it, the rule counts how often the standard
    deviation of the rewards is zero. A share that has risen far above its lowest level and keeps rising is reported
    before it reaches the threshold, unless the reward rises as well: then more and more prompts are solved.
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
    block_signals = ("zero_variance_share", "reward_std", "reward")
    title = "All rewards are equal in {share} of the groups"
    outcome = "all rewards are equal in {share} of the groups now"

    class Thresholds(HighShareRule.Thresholds):
        """When the rule fires."""

        share: Annotated[float, Meta(description="Minimum share of groups with equal rewards.", gt=0, le=1)] = 0.8
        rise: Annotated[
            float, Meta(description="Minimum rise of a share that keeps rising, in shares of the groups.", gt=0, le=1)
        ] = 0.25

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all shares and rewards."""
        super().reset()
        self._history = History()
        self._reward = RewardTrend()

    def share_of(self, stats: SignalStats) -> float | None:
        """Return the recorded share, or the share of standard deviations that are zero."""
        if stats.signal == "reward":
            self._reward.add_block(stats)
            return None
        if stats.signal != "reward_std":
            return super().share_of(stats)
        if "zero_variance_share" in self.signals:
            return None
        return sum(value <= 1e-12 for value in stats.values) / len(stats.values)

    def limit_of(self, stats: SignalStats, share: float) -> float:
        """Return a lower limit while the share keeps rising."""
        self._history.add(share)
        if len(self._history.points) < _MIN_POINTS or self._reward.is_rising():
            return self.thresholds.share
        parts = self._history.parts()
        lowest, before, last = min(parts), parts[-2], parts[-1]
        keeps_rising = last > before + 0.1 * self.thresholds.rise and share > before
        if keeps_rising and share - lowest >= self.thresholds.rise and last - lowest >= 0.6 * self.thresholds.rise:
            return min(self.thresholds.share, share)
        return self.thresholds.share
