"""The loss jumps."""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import factor, figure

__all__ = ["LossSpike"]

_MOST_TOLD = 100
"""Spikes of one alert that are told one by one; of more, every sixteenth."""


class LossSpike(Rule):
    """The loss jumps far above its recent level, and it is told how it comes back.

    A value is a spike if it lies many spreads above the level of the last values and by a share of that level, and if
    the last values hardly ever did the same: a loss that jumps up by habit, as with mixup, is left alone. From then on
    every value is watched. The spike is *recovering* if the loss is back soon, *slow* if it takes its time, and *not
    recovering* if it stays above. Further spikes before the loss has been calm for a while are told in the same alert,
    and the more alerts there were, the longer that while is. Silent for a while after a resume and after a sudden
    change of the learning rate or the batch size.
    """

    name = "loss_spike"
    meaning = (
        "One that recovers at once is mostly a hard or broken batch and does little harm. Many of them, or slow ones, "
        "say that training is close to the edge of stability: the learning rate is too high for this point of the "
        "run, or the second moments of the optimizer react too slowly. The same step in several runs points to the "
        "data."
    )
    advice = (
        "If it recovered: go on, and look at the batches of the steps named here if it comes again.",
        "If it is slow or does not recover: go back to a checkpoint from about 100 steps before and skip some "
        "hundred batches.",
        "Lower the learning rate, lengthen the warm-up, clip gradients by norm, or lower Adam's beta2 to 0.95.",
        "Check whether data order or sampler state was restored after a resume.",
    )
    hears = ("loss",)

    class Thresholds(RuleSettings):
        """When it fires."""

        sigmas: Annotated[float, Meta(description="Spreads above the recent level that make a spike.", ge=2)] = 5.5
        least_share: Annotated[
            float, Meta(description="How far above the level it must be at least, as a share of the level.", ge=0)
        ] = 0.05
        least_gain: Annotated[
            float, Meta(description="And as a share of what the run has gained since its start.", ge=0)
        ] = 0.03
        most_peers: Annotated[
            int, Meta(description="Of the last 64 values, how many may have risen more than 60 % as high.", ge=0)
        ] = 2
        fast_values: Annotated[int, Meta(description="Values within which a recovery is not slow.", ge=1)] = 16
        slow_values: Annotated[
            int, Meta(description="Values after which a spike that is not over counts as not recovering.", ge=2)
        ] = 128
        quiet_values: Annotated[int, Meta(description="Values without a spike that resolve the alert.", ge=1)] = 128

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._spike: dict[str, Any] | None = None
        self._calm_below = 0.0
        self._num_calm = 0
        self._num_spikes = 0
        self._quiet_since = 0
        self._stays_up = False

    def band(self, signal: str) -> tuple[float, float] | None:
        """Say which values it wants to hear of."""
        return self.thresholds.sigmas, self.thresholds.least_share

    def on_change(self, what: str) -> None:
        """Begin anew with fresh weights."""
        if what == "restart":
            self.over("training started again with fresh weights")
            self.reset()

    def on_loud(self, gauge: SignalStats, value: float) -> bool:
        """Begin a spike, or see how it goes on."""
        if self._spike is not None:
            return self._go_on(self._spike, gauge, value)
        level, sigma = gauge.level, gauge.sigma or 0.0
        if level is None or self._stays_up or sigma <= 0:
            return False  # not back from the last one, or always the same, beside which any number is far off
        if value - level < self.thresholds.least_gain * ((gauge.first or 0.0) - level):
            return False  # next to nothing, seen from where the run began
        if gauge.num_above(level + 0.6 * (value - level)) > self.thresholds.most_peers:
            return False
        if level > 0 and math.log(value / level) < self.thresholds.sigmas * gauge.log_sigma():
            return False  # a loss that is skewed by nature, as with small batches
        self._calm_below = level + 0.5 * (gauge.loud_above - level)
        self._num_calm = 0
        self._num_spikes = self._num_spikes + 1 if self.is_open() else 1
        self._spike = {
            "step": self.now.step,
            "value": value,
            "peak": value,
            "level_before": level,
            "sigmas": (value - level) / sigma,
            "class": "open",
            "values": 0,
            **self._gradient(),
        }
        gauge.ask(self, -math.inf)
        if self._is_worth_telling():
            self._tell(gauge, self._spike)
        return True

    def on_block(self, gauge: SignalStats) -> None:
        """See whether a spike that did not recover has done so after all, and whether all is calm."""
        if self._spike is not None:
            return
        if self._stays_up:
            if gauge.values[-4] >= self._calm_below:
                return
            self._stays_up = False
            self._quiet_since = gauge.num_taken
        elif self.is_open() and gauge.num_taken - self._quiet_since >= self.thresholds.quiet_values:
            self.over(
                f"no spike in the last {self.thresholds.quiet_values} values", evidence={"num_spikes": self._num_spikes}
            )

    def _is_worth_telling(self) -> bool:
        return self._num_spikes <= _MOST_TOLD or self._num_spikes % 16 == 0

    def _gradient(self) -> dict[str, Any]:
        """Say what the gradient norm did, if it is known: a spike in both is of the optimizer, else rather of the
        batch.
        """
        gauge = self.gauges.get("grad_norm")
        if gauge is None or not gauge.level or not gauge.last:
            return {}
        return {"grad_norm": gauge.last, "grad_norm_before": gauge.level}

    def _go_on(self, spike: dict[str, Any], gauge: SignalStats, value: float) -> bool:
        spike["values"] += 1
        spike["peak"] = max(spike["peak"], value)
        self._num_calm = self._num_calm + 1 if value < self._calm_below else 0
        is_back = self._num_calm >= 2
        if is_back or spike["values"] >= self.thresholds.slow_values:
            took = spike["values"] - 1
            spike["class"] = "not recovering"
            if is_back:
                spike["class"] = "recovering" if took <= self.thresholds.fast_values else "slow"
                spike["recovery_values"] = took
                if isinstance(self.now.step, int) and isinstance(spike["step"], int):
                    spike["recovery_steps"] = self.now.step - spike["step"]
            self._stays_up = not is_back
            self._quiet_since = gauge.num_taken
            self._spike = None
            gauge.ask(self, None)
            if self.is_open() and self._is_worth_telling():  # it may have become part of another alert
                self._tell(gauge, {**spike, "level_after": value if is_back else gauge.level})
        return value >= gauge.loud_above

    def _tell(self, gauge: SignalStats, spike: dict[str, Any]) -> None:
        before = spike["level_before"]
        rise = f", {factor(spike['peak'] / before)} its level" if before > 0 and spike["peak"] > 2 * before else ""
        title = f"Loss spike at step {spike['step']}: {figure(spike['peak'])}, from {figure(before)}{rise}"
        if self._num_spikes > 1:
            last = f"the last at step {spike['step']}: {figure(spike['peak'])}, from {figure(before)}"
            title = f"{self._num_spikes} loss spikes, {last}"
        said = {
            "open": "How it goes on will be told.",
            "recovering": f"It was back after {_values(spike.get('recovery_values', 0))}.",
            "slow": f"It took {_values(spike.get('recovery_values', 0))} to come back.",
            "not recovering": f"It has not come back in {spike['values']} values and stays at {figure(gauge.level)}.",
        }[spike["class"]]
        severity = "critical" if spike["class"] == "not recovering" else None
        evidence = {"metric": gauge.metric, "num_spikes": self._num_spikes, **spike}
        self.found(title, said, severity=severity, evidence=evidence, occurrence=dict(spike))


def _values(count: int) -> str:
    return "one value" if count == 1 else f"{count} values"
