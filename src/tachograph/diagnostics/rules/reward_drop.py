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
    """The reward has lost a large part of what it had gained.

    The rule compares the levels of blocks of sixteen values: the current one must be below the peak by a share of the
    gain since the start and by several standard deviations. It ignores rewards of preference training, such as
    `rewards/chosen`, because those are expected to fall.
    """

    name = "reward_drop"
    meaning = (
        "The policy has become worse at the task. Common causes: updates that are too large, an entropy collapse, or a "
        "reward model that is applied to texts unlike its training data."
    )
    advice = (
        "Restart from the checkpoint closest to the peak.",
        "Lower the learning rate, raise the KL coefficient, or use larger groups.",
        "Compare completions from the peak with current ones.",
    )
    block_signals = ("reward",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        share: Annotated[float, Meta(description="Minimum drop, as a share of the gain.", gt=0)] = 0.5
        sigmas: Annotated[float, Meta(description="Minimum drop in standard deviations.", gt=0)] = 2.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget the peak."""
        self._peak: float | None = None
        self._peak_step: int | None = None
        self._initial: float | None = None

    def outlier_band(self, signal: str) -> tuple[float, float] | None:
        """Measure the spread; report no outliers."""
        return math.inf, 0.0

    def on_block(self, stats: SignalStats) -> None:
        """Compare the level with the peak."""
        level, sigma = stats.level, stats.sigma
        if level is None or sigma is None:
            return
        self._initial = level if self._initial is None else self._initial
        if self._peak is None or level > self._peak:
            self._peak, self._peak_step = level, self.context.step
        gain, drop = self._peak - self._initial, self._peak - level
        limit = max(self.thresholds.share * gain, self.thresholds.sigmas * sigma)
        if self.is_open():
            if drop < 0.5 * limit:  # clearly smaller, so that the alert does not flap
                self.resolve(f"{stats.metric} is back at {figure(level)}")
        elif gain > self.thresholds.sigmas * sigma and drop > limit:
            evidence = {
                "metric": stats.metric,
                "level": level,
                "peak": self._peak,
                "peak_step": self._peak_step,
                "step": self.context.step,
            }
            title = f"Reward fell to {figure(level)} from its peak of {figure(self._peak)} at step {self._peak_step}"
            self.report(title, f"It has lost {percent(drop / gain)} of its gain.", evidence=evidence)
