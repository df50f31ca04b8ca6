"""The policy has stopped exploring."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import figure, percent

__all__ = ["EntropyCollapse"]


class EntropyCollapse(Rule):
    """The entropy of the policy is a small fraction of its initial value, and the reward has stopped rising.

    Falling entropy alone is normal in reinforcement learning: the policy trades it for reward. It is a fault when the
    reward no longer rises.
    """

    name = "entropy_collapse"
    meaning = (
        "The policy repeats the same answers and cannot find better ones. Rewards will stay where they are, and groups "
        "of samples have no variance to learn from."
    )
    advice = (
        "Raise the sampling temperature, the entropy bonus, or the upper clip range.",
        "Add harder or more varied prompts; lower the learning rate; restart from a checkpoint with more entropy.",
    )
    block_signals = ("entropy", "reward")

    class Thresholds(RuleSettings):
        """When the rule fires."""

        share: Annotated[
            float, Meta(description="Share of the initial entropy below which it has collapsed.", gt=0, lt=1)
        ] = 0.15
        reward_blocks: Annotated[
            int, Meta(description="Blocks of 16 values over which the reward must not have risen.", ge=1, le=100)
        ] = 2

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all rewards."""
        self._rewards: deque[float] = deque(maxlen=self.thresholds.reward_blocks + 1)

    def outlier_band(self, signal: str) -> tuple[float, float] | None:
        """Measure the spread; report no outliers."""
        return math.inf, 0.0

    def on_block(self, stats: SignalStats) -> None:
        """Compare the entropy with its initial value, and the reward with earlier blocks."""
        if stats.level is None:
            return
        if stats.signal == "reward":
            self._rewards.append(stats.level)
            return
        first = stats.first_level
        if first is None or first <= 0 or stats.level < 0:
            return  # the entropy of continuous actions can be negative, where shares are meaningless
        share = stats.level / first
        if self.is_open():
            if share > 2 * self.thresholds.share:  # clearly higher, so that the alert does not flap
                self.resolve(f"{stats.metric} is back at {figure(stats.level)}")
        elif share < self.thresholds.share and not self._may_be_rising():
            evidence = {
                "metric": stats.metric,
                "level": stats.level,
                "first": first,
                "share": share,
                "reward": self._rewards[-1] if self._rewards else None,
                "step": self.context.step,
            }
            title = f"Entropy has collapsed to {percent(share)} of its initial value: {figure(stats.level)}"
            message = "The reward has stopped rising." if self._rewards else "No reward is recorded to compare with."
            self.report(title, message, evidence=evidence)

    def _may_be_rising(self) -> bool:
        """Return whether the reward has risen over the last blocks, or has too few values to tell."""
        reward = self.signals.get("reward")
        if reward is None:
            return False
        if len(self._rewards) <= self.thresholds.reward_blocks or reward.sigma is None:
            return True
        return self._rewards[-1] - self._rewards[0] > 0.25 * reward.sigma
