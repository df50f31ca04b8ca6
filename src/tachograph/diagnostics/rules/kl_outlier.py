"""The policy leaps away from its reference."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import factor, figure

__all__ = ["KlOutlier"]

_ALL_TOLD = 8


class KlOutlier(Rule):
    """The KL divergence from the reference policy is far above its recent level.

    Told once until it has been calm for a while; the alert counts the values. Of many, it is told when they have
    doubled.
    """

    name = "kl_outlier"
    meaning = (
        "One update took the policy far from its reference: a batch with extreme advantages, a learning rate that is "
        "too high, or samples so unlikely that the estimate itself is off. Several of them come before a collapse."
    )
    advice = (
        "Look at the completions of that step.",
        "Lower the learning rate, raise the KL coefficient, or clip advantages and gradients more tightly.",
    )
    hears = ("kl",)

    class Thresholds(RuleSettings):
        """When it fires."""

        sigmas: Annotated[float, Meta(description="Spreads above the recent level.", ge=2)] = 8.0
        least_share: Annotated[float, Meta(description="And by this share of the level.", ge=0)] = 3.0
        least: Annotated[float, Meta(description="The least KL divergence that is worth telling of.", ge=0)] = 0.02
        quiet_values: Annotated[int, Meta(description="Values without one that resolve it.", ge=1)] = 128

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._count = 0
        self._last_at = 0
        self._num_told = 0

    def band(self, signal: str) -> tuple[float, float] | None:
        """Say which values it wants to hear of."""
        return self.thresholds.sigmas, self.thresholds.least_share

    def on_loud(self, gauge: SignalStats, value: float) -> bool:
        """Tell of a value that is far off."""
        level = gauge.level
        if level is None or value < self.thresholds.least:
            return False
        self._count += 1
        self._last_at = gauge.num_taken
        if self._count > _ALL_TOLD and self._count < 2 * self._num_told and self.is_open():
            return True
        self._num_told = self._count
        spot = {"step": self.now.step, "value": value, "level": level}
        times = f", {factor(value / level)} its level" if level > 0 else ""
        title = f"KL divergence of {figure(value)} at step {self.now.step}{times}"
        if self._count > 1:
            title = f"{self._count} outliers of the KL divergence, the last {figure(value)} at step {self.now.step}"
        self.found(title, evidence={"metric": gauge.metric, "count": self._count, **spot}, occurrence=spot)
        return True

    def on_block(self, gauge: SignalStats) -> None:
        """See whether it is over."""
        if self.is_open() and gauge.num_taken - self._last_at >= self.thresholds.quiet_values:
            self.over(f"none in the last {self.thresholds.quiet_values} values")
            self._count = self._num_told = 0
