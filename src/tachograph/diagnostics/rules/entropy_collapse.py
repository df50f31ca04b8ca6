"""The policy has stopped exploring."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._history import History
from tachograph.diagnostics._reward_trend import RewardTrend
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import figure, percent

__all__ = ["EntropyCollapse"]

_MIN_POINTS = 4
_FALL = 0.93
_SUDDEN_SHARE = 0.3
_NUM_SUDDEN = 4


class EntropyCollapse(Rule):
    """The entropy of the policy is a small fraction of its initial value or on its way there, without gain in reward.

    Falling entropy alone is normal in reinforcement learning: the policy trades it for reward. It is a fault when the
    reward no longer rises, or rises at less than half its average pace. While the entropy keeps falling, a larger
    fraction is enough, provided that a reward is recorded. An entropy that collapses within a few blocks is a fault
    whatever the reward does.
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
        falling_share: Annotated[
            float, Meta(description="The same share while the entropy keeps falling.", gt=0, lt=1)
        ] = 0.4

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all rewards and entropies."""
        self._reward = RewardTrend()
        self._history = History()
        self._levels: deque[float] = deque(maxlen=_NUM_SUDDEN)
        self._opened_at = 0.0

    def outlier_band(self, signal: str) -> tuple[float, float] | None:
        """Measure the spread; report no outliers."""
        return math.inf, 0.0

    def on_block(self, stats: SignalStats) -> None:
        """Compare the entropy with its initial value, and the reward with earlier blocks."""
        if stats.level is None:
            return
        if stats.signal == "reward":
            self._reward.add_block(stats)
            return
        first = stats.first_level
        if first is None or first <= 0 or stats.level < 0:
            return  # the entropy of continuous actions can be negative, where shares are meaningless
        self._history.add(stats.level)
        self._levels.append(stats.level)
        share = stats.level / first
        if self.is_open():
            if share > 2 * self._opened_at:  # clearly higher, so that the alert does not flap
                self.resolve(f"{stats.metric} is back at {figure(stats.level)}")
            if self._opened_at <= self.thresholds.share or share >= self.thresholds.share:
                return  # otherwise it has collapsed since it was reported as falling
        limits, has_reward = self.thresholds, "reward" in self.signals
        if "loss" in self.signals and not (has_reward or self.context.is_reinforcement or "kl" in self.signals):
            return  # the entropy of tokens in supervised fine-tuning falls with the loss
        is_rising = self._reward.is_rising() if has_reward else False
        has_collapsed = share < limits.share
        is_sudden = has_collapsed and stats.level < _SUDDEN_SHARE * max(self._levels)
        if is_rising is not False and not is_sudden:
            return
        if has_collapsed or (share < limits.falling_share and has_reward and self._is_falling()):
            self._opened_at = limits.share if has_collapsed else limits.falling_share
            evidence = {
                "metric": stats.metric,
                "level": stats.level,
                "first": first,
                "share": share,
                "reward": self._reward.level,
                "step": self.context.step,
                "expected": [self._opened_at * first, None],
            }
            verb = "has collapsed to" if has_collapsed else "keeps falling and is at"
            title = f"Entropy {verb} {percent(share)} of its initial value: {figure(stats.level)}"
            message = "It fell within a few blocks." if is_sudden else "The reward has stopped rising."
            if not has_reward:
                message = "No reward is recorded to compare with."
            self.report(title, message, evidence=evidence)

    def _is_falling(self) -> bool:
        """Return whether the entropy fell over the last two quarters of the run, or of its later half."""
        num_points = len(self._history.points)
        for last_points in (num_points, num_points // 2):
            if last_points >= _MIN_POINTS:
                *_, earlier, before, last = self._history.parts(last_points)
                if last < _FALL * before and before < earlier:
                    return True
        return False
