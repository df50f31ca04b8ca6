"""The policy jumps away from its reference."""

from __future__ import annotations

from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import factor, figure

__all__ = ["KlOutlier"]

_MAX_REPORTED_SINGLY = 8


class KlOutlier(Rule):
    """The KL divergence from the reference policy is far above its recent level.

    The estimate of the divergence has single outliers in healthy runs, so the alert is for information until several
    outliers follow each other closely, which is a warning. It stays open, and counts the outliers, until there has been
    none for a while. After the first eight it is updated only when their number has doubled.
    """

    name = "kl_outlier"
    meaning = (
        "One update moved the policy far from its reference: a batch with extreme advantages, a learning rate that is "
        "too high, or samples so unlikely that the estimate itself is wrong. Several outliers often precede a collapse."
    )
    advice = (
        "Read the completions of that step.",
        "Lower the learning rate, raise the KL coefficient, or clip advantages and gradients more tightly.",
    )
    severity = "info"
    block_signals = ("kl",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        sigmas: Annotated[
            float, Meta(description="Minimum height above the recent level, in standard deviations.", ge=2)
        ] = 8.0
        least_share: Annotated[
            float, Meta(description="Minimum height above the recent level, as a share of that level.", ge=0)
        ] = 3.0
        least: Annotated[float, Meta(description="Minimum KL divergence that is reported.", ge=0)] = 0.02
        frequent: Annotated[int, Meta(description="Outliers that are a warning if they are close.", ge=2, le=1000)] = 4
        frequent_within: Annotated[int, Meta(description="Values within which they are close.", ge=2)] = 32
        quiet_values: Annotated[int, Meta(description="Values without an outlier that resolve the alert.", ge=1)] = 128

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all outliers."""
        self._count = 0
        self._last_at = 0
        self._num_reported = 0
        self._recent: deque[int] = deque(maxlen=self.thresholds.frequent)
        self._is_frequent = False

    def outlier_band(self, signal: str) -> tuple[float, float] | None:
        """Define the outliers of the KL divergence."""
        return self.thresholds.sigmas, self.thresholds.least_share

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Report an outlier."""
        level = stats.level
        if level is None or value < self.thresholds.least:
            return False
        self._count += 1
        self._last_at = stats.num_added
        limits, recent = self.thresholds, self._recent
        recent.append(stats.num_added)
        is_frequent = len(recent) == limits.frequent and recent[-1] - recent[0] < limits.frequent_within
        is_worse, self._is_frequent = is_frequent and not self._is_frequent, is_frequent or self._is_frequent
        if (
            not is_worse
            and self._count > _MAX_REPORTED_SINGLY
            and self._count < 2 * self._num_reported
            and self.is_open()
        ):
            return True
        self._num_reported = self._count
        step = self.context.step
        occurrence = {"step": step, "value": value, "level": level}
        times = f", {factor(value / level)} its level" if level > 0 else ""
        title = f"KL divergence of {figure(value)} at step {step}{times}"
        if self._count > 1:
            title = f"{self._count} KL divergence outliers, most recently {figure(value)} at step {step}"
        evidence = {"metric": stats.metric, "count": self._count, **occurrence, "expected": [None, stats.outlier_above]}
        severity = "warning" if self._is_frequent else None
        self.report(title, severity=severity, evidence=evidence, occurrence=occurrence)
        return True

    def on_block(self, stats: SignalStats) -> None:
        """Resolve the alert when there has been no outlier for a while."""
        if self.is_open() and stats.num_added - self._last_at >= self.thresholds.quiet_values:
            self.resolve(f"no outlier in the last {self.thresholds.quiet_values} values")
            self._count = self._num_reported = 0
            self._is_frequent = False
