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
    """The entropy of the policy is a small part of what it was at the start, and the reward does not rise any more.

    A fall of the entropy alone is how learning by reinforcement looks; it is paid for with reward. It is a fault when
    nothing is gained for it.
    """

    name = "entropy_collapse"
    meaning = (
        "The policy gives the same answers again and again. It cannot find better ones, so the rewards will stay where "
        "they are, and groups of samples have no variance to learn from."
    )
    advice = (
        "Raise the sampling temperature, the entropy bonus, or the upper clip range.",
        "Add harder or more varied prompts; lower the learning rate; go back to a checkpoint with more entropy.",
    )
    hears = ("entropy", "reward")

    class Thresholds(RuleSettings):
        """When it fires."""

        share: Annotated[
            float, Meta(description="Share of the first entropy below which it has collapsed.", gt=0, lt=1)
        ] = 0.15
        reward_blocks: Annotated[
            int, Meta(description="Blocks of 16 values over which the reward must not have risen.", ge=1, le=100)
        ] = 2

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._rewards: deque[float] = deque(maxlen=self.thresholds.reward_blocks + 1)

    def band(self, signal: str) -> tuple[float, float] | None:
        """Ask for the spread."""
        return math.inf, 0.0

    def on_block(self, gauge: SignalStats) -> None:
        """Compare the entropy with the first, and the reward with before."""
        if gauge.level is None:
            return
        if gauge.signal == "reward":
            self._rewards.append(gauge.level)
            return
        first = gauge.first
        if first is None or first <= 0 or gauge.level < 0:
            return  # that of continuous actions can be below zero, where shares mean nothing
        share = gauge.level / first
        if self.is_open():
            if share > 2 * self.thresholds.share:
                self.over(f"{gauge.metric} is back at {figure(gauge.level)}")
        elif share < self.thresholds.share and not self._rises():
            evidence = {
                "metric": gauge.metric,
                "level": gauge.level,
                "first": first,
                "share": share,
                "reward": self._rewards[-1] if self._rewards else None,
                "step": self.now.step,
            }
            title = f"Entropy has collapsed to {percent(share)} of what it was: {figure(gauge.level)}"
            message = (
                "The reward does not rise any more." if self._rewards else "No reward is recorded to compare with."
            )
            self.found(title, message, evidence=evidence)

    def _rises(self) -> bool:
        """Tell whether the reward has risen over the last blocks, or is not known long enough to say."""
        reward = self.gauges.get("reward")
        if reward is None:
            return False
        if len(self._rewards) <= self.thresholds.reward_blocks or reward.sigma is None:
            return True
        return self._rewards[-1] - self._rewards[0] > 0.25 * reward.sigma
