"""The reward falls from its peak."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import figure, percent

__all__ = ["RewardDrop"]


class RewardDrop(Rule):
    """The reward has lost a good part of what it had gained.

    Compared are the levels of blocks of sixteen values: the present one must lie below the highest by a share of what
    was gained since the start, and by several spreads. Rewards of preference training, such as `rewards/chosen`, are
    not looked at: that they fall is expected.
    """

    name = "reward_drop"
    meaning = (
        "The policy has become worse at what is rewarded: updates that are too large, a collapse of the entropy, or a "
        "reward model that is asked about texts unlike those it knows."
    )
    advice = (
        "Go back to the checkpoint nearest to the peak.",
        "Lower the learning rate, raise the KL coefficient, or use larger groups.",
        "Read completions from the peak and from now.",
    )
    hears = ("reward",)

    class Thresholds(RuleSettings):
        """When it fires."""

        share: Annotated[float, Meta(description="Share of the gain that must be lost.", gt=0)] = 0.5
        sigmas: Annotated[float, Meta(description="And by so many spreads.", gt=0)] = 2.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._peak: float | None = None
        self._peak_step: int | None = None
        self._lowest: float | None = None

    def band(self, signal: str) -> tuple[float, float] | None:
        """Ask for the spread."""
        return math.inf, 0.0

    def on_block(self, gauge: SignalStats) -> None:
        """Compare with the peak."""
        level, sigma = gauge.level, gauge.sigma
        if level is None or sigma is None:
            return
        self._lowest = level if self._lowest is None else self._lowest
        if self._peak is None or level > self._peak:
            self._peak, self._peak_step = level, self.now.step
        gained, lost = self._peak - self._lowest, self._peak - level
        limit = max(self.thresholds.share * gained, self.thresholds.sigmas * sigma)
        if self.is_open():
            if lost < 0.5 * limit:
                self.over(f"{gauge.metric} is back at {figure(level)}")
        elif gained > self.thresholds.sigmas * sigma and lost > limit:
            evidence = {
                "metric": gauge.metric,
                "level": level,
                "peak": self._peak,
                "peak_step": self._peak_step,
                "step": self.now.step,
            }
            title = f"Reward fell to {figure(level)} from its peak of {figure(self._peak)} at step {self._peak_step}"
            self.found(title, f"{percent(lost / gained)} of what was gained is lost.", evidence=evidence)
