"""The loss jumps."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BlockBatch, SignalStats, median
from tachograph.diagnostics._text import factor, figure

__all__ = ["LossSpike"]

_MAX_WAIT_VALUES = 8
_MAX_REPORTED = 100
_MIN_EARLY = 6
_NUM_EARLY = 16
_EARLY_CHANGES = 12.0
_EARLY_SHARE = 0.6
_CLEAR_SIGMAS = 8.0
"""From this height on, a spike may have peers: batches that are far too hard now and then are a fault."""
_NUM_PEAKS = 256
_PEER_SHARE = 0.85
_MAX_PEERS = 4
"""Blocks among the last 256 whose highest value is nearly as far above its level: then such values are usual."""
_WARNING_SIGMAS = 7.0
_MIN_WARNING_BLOCKS = 3
_WARNING_PEER_SHARE = 0.6
_MAX_WARNING_PEERS = 2
_NUM_WIDTHS = 64
_TO_SIGMA = 1.48
_CALM_SHARE = 0.35
"""Spread as a share of a high one among the last 64 blocks from which on the loss is calmer than it usually is."""
_CALM_SIGMAS = 8.0
"""Minimum height in that high spread, if the loss is that calm: a running mean is, at the end of each epoch."""
_MIN_SUDDEN_SHARE = 0.25
"""Share of its height by which a spike exceeds the values right before it. A slope has no such step."""
_NUM_BEFORE = 6
_REPORT_EVERY = 16
"""Of the spikes after the first 100 of an alert, only every sixteenth is reported."""


class LossSpike(Rule):
    """The loss jumps far above its recent level; the alert reports how it recovers.

    A value is a spike if it exceeds the recent level by many standard deviations and by a share of that level, and if
    the loss hardly ever rose this far recently, or in the last 4096 values without being a spike. A loss that jumps
    regularly, as with mixup, is therefore ignored, and so is one that rises gradually. From
    then on the rule follows every value. The spike is *recovering* if the loss is back soon, *slow* if that takes
    longer, and *not recovering* if the loss stays up. A jump that is barely a spike is reported when it has come
    halfway back or risen further; if it does neither within a few values, it is a new level: see `loss_shift`.

    Until 32 values have shown the spread, a value is a spike if it is far above the last values, by many times their
    usual change and by a large share.

    A spike is a warning if it is clear: seven standard deviations high, after 48 values, and hardly any of the last
    4096 values came near. A faint one that recovers harms nothing, and is for information. One that does not recover
    is critical if it is clear, and a warning otherwise.

    Spikes that follow before the loss has been calm for a while are added to the same alert. The rule is inactive for a
    while after a resume and after a sudden change of the learning rate or the batch size, and in reinforcement
    learning, where the loss does not measure progress.
    """

    name = "loss_spike"
    meaning = (
        "A spike that recovers at once usually comes from a hard or corrupt batch and does little harm. Frequent or "
        "slow ones mean that training is close to instability: the learning rate is too high for this phase, or the "
        "optimizer's second moments adapt too slowly. If several runs spike at the same step, suspect the data."
    )
    advice = (
        "If it recovered, continue; if it happens again, inspect the batches of the steps in the alert.",
        "If it is slow or does not recover, restart from a checkpoint about 100 steps earlier and skip a few hundred "
        "batches.",
        "Lower the learning rate, lengthen the warm-up, clip gradients by norm, or lower Adam's beta2 to 0.95.",
        "After a resume, check that data order and sampler state were restored.",
    )
    block_signals = ("loss",)
    absorbs = ("loss_shift",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        sigmas: Annotated[
            float, Meta(description="Minimum height above the recent level, in standard deviations.", ge=2)
        ] = 5.0
        least_share: Annotated[
            float, Meta(description="Minimum height above the recent level, as a share of that level.", ge=0)
        ] = 0.05
        least_gain: Annotated[
            float, Meta(description="Minimum height as a share of the total improvement since the start.", ge=0)
        ] = 0.03
        most_peers: Annotated[
            int, Meta(description="How often the last 64 values may have risen to 60 % of that height.", ge=0)
        ] = 3
        fast_values: Annotated[int, Meta(description="Values within which a recovery is not slow.", ge=1)] = 16
        slow_values: Annotated[int, Meta(description="Values after which a spike counts as not recovering.", ge=2)] = (
            128
        )
        quiet_values: Annotated[int, Meta(description="Values without a spike that resolve the alert.", ge=1)] = 128

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all spikes."""
        self._spike: dict[str, Any] | None = None
        self._calm_below = 0.0
        self._num_calm = 0
        self._num_spikes = 0
        self._quiet_since = 0
        self._stays_up = False
        self._is_reported = False
        self._muted_until = 0
        self._peaks: deque[tuple[float, float]] = deque(maxlen=_NUM_PEAKS)
        """The highest value of each block without a spike, and its level."""
        self._blocks: deque[tuple[float, float, float]] = deque(maxlen=_NUM_PEAKS)
        """The highest value of each block, its level and its half width."""

    def outlier_band(self, signal: str) -> tuple[float, float] | None:
        """Define the outliers of the loss."""
        return self.thresholds.sigmas, self.thresholds.least_share

    def on_signal(self, stats: SignalStats) -> None:
        """Ask for each of the first values."""
        stats.watch(self, -math.inf)

    def on_change(self, change: str) -> None:
        """Start over with fresh weights."""
        if change == "restart":
            self.resolve("training restarted with fresh weights")
            self.reset()
            if "loss" in self.signals:
                self.on_signal(self.signals["loss"])

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Start a spike, or follow the current one."""
        if self.context.is_reinforcement:
            return False
        if self._spike is not None:
            return self._follow(self._spike, stats, value)
        if stats.sigma is None:
            return self._check_early(stats, value)
        level, sigma = stats.level, stats.sigma or 0.0
        if level is None or sigma <= 0 or stats.num_added < self._muted_until:
            return False  # constant, where every change is infinitely many sigmas, or still up from the last spike
        height = value - level
        if height < self.thresholds.least_gain * ((stats.first_level or 0.0) - level):
            return False  # negligible compared with the progress of the run
        num_peers = stats.num_rises(0.6 * height)
        if num_peers > self.thresholds.most_peers or (num_peers > 1 and height < _CLEAR_SIGMAS * sigma):
            return False
        if value - max(stats.last_values(_NUM_BEFORE)) < _MIN_SUDDEN_SHARE * height:
            return False  # the loss is rising
        if level > 0 and math.log(value / level) < self.thresholds.sigmas * stats.log_sigma():
            return False  # a loss with a skewed distribution, as with small batches
        if height < _CLEAR_SIGMAS * sigma and self._is_usual(height, level):
            return False
        self._begin(stats, value, level, height / sigma, stats.outlier_above)
        return True

    def _is_usual(self, height: float, level: float) -> bool:
        """Return whether the highest values of other blocks are nearly as far above their levels."""
        least = _PEER_SHARE * height
        share = least / level if level > 0 else math.inf
        num_peers = sum(peak - other >= least and peak - other >= share * other for peak, other in self._peaks)
        return num_peers > _MAX_PEERS

    def _is_clear(self, value: float, level: float, sigmas: float) -> bool:
        """Return whether no usual value of this run comes near, as far as it is known."""
        blocks = self._blocks
        if sigmas < _WARNING_SIGMAS or len(blocks) < _MIN_WARNING_BLOCKS:
            return False
        height = value - level
        is_positive = level > 0 and all(other > 0 for _, other, _ in blocks)
        least = _WARNING_PEER_SHARE * height
        share = least / level if is_positive else 0.0
        num_peers = sum(peak - other >= max(least, share * other) for peak, other, _ in blocks)
        if num_peers > _MAX_WARNING_PEERS:
            return False
        scale = level if is_positive else 1.0  # the noise of most losses is in proportion to their level
        widths = sorted(width / (other if is_positive else 1.0) for _, other, width in list(blocks)[-_NUM_WIDTHS:])
        usual_sigma = _TO_SIGMA * scale * widths[len(widths) * 9 // 10]
        return height > _CALM_SHARE * sigmas * usual_sigma or height >= _CALM_SIGMAS * usual_sigma

    def _check_early(self, stats: SignalStats, value: float) -> bool:
        """Compare one of the first values with those before it, whose spread is not known yet."""
        values = stats.last_values(_NUM_EARLY)
        if len(values) < _MIN_EARLY:
            return False
        level = median(sorted(values[-5:]))
        changes = sorted(abs(after - before) for before, after in itertools.pairwise(values))
        distance = max(_EARLY_CHANGES * changes[len(changes) // 2], _EARLY_SHARE * abs(level), 2 * changes[-2])
        height = value - level
        if height <= 0 or height < distance or height < 2 * (max(values[-8:]) - level):
            return False
        self._begin(stats, value, level, height / (changes[len(changes) // 2] or height), level + distance)
        return True

    def _begin(self, stats: SignalStats, value: float, level: float, sigmas: float, limit: float) -> None:
        # Frozen at the start of the spike: the level itself follows the spike if it lasts.
        self._calm_below = level + 0.5 * (limit - level)
        self._num_calm = 0
        self._num_spikes = self._num_spikes + 1 if self.is_open() else 1
        self._spike = {
            "step": self.context.step,
            "value": value,
            "peak": value,
            "level_before": level,
            "sigmas": sigmas,
            "class": "open",
            "values": 0,
            "is_clear": self._is_clear(value, level, sigmas),
            **self._gradient_norms(),
        }
        stats.watch(self, -math.inf)
        self._is_reported = value >= self._clear_above and not self.context.may_be_reset
        if self._is_reported:
            self._report(stats, self._spike)

    def on_block(self, stats: SignalStats) -> None:
        """Detect a late recovery, and resolve the alert when the loss has been calm for long enough."""
        self._blocks.append((stats.values[-1], stats.level or 0.0, stats.half_width))
        if self._spike is None and max(stats.last_block) == stats.values[-1]:
            self._peaks.append((stats.values[-1], stats.level or 0.0))
        if self._spike is not None:
            return
        if stats.is_spread_known:
            stats.watch(self, None)  # no longer for every value
        if self._stays_up:
            if stats.values[-4] < self._calm_below:
                self._stays_up = False
                self._quiet_since = stats.num_added
        elif self.is_open() and stats.num_added - self._quiet_since >= self.thresholds.quiet_values:
            self.resolve(
                f"no spike in the last {self.thresholds.quiet_values} values", evidence={"num_spikes": self._num_spikes}
            )

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Note the highest values; other than that, blocks matter only after a spike."""
        if self._spike is not None or self._stays_up or self.is_open():
            return None

        def commit() -> None:
            self._peaks.extend(zip(batch.peaks, batch.levels, strict=False))
            self._blocks.extend(zip(batch.peaks, batch.levels, batch.half_widths, strict=False))

        return commit

    @property
    def _clear_above(self) -> float:
        """The value from which on a jump is a spike for certain: twice as high as an outlier."""
        before = self._spike["level_before"] if self._spike is not None else 0.0
        return before + 4 * (self._calm_below - before)

    def _is_worth_reporting(self) -> bool:
        return self._num_spikes <= _MAX_REPORTED or self._num_spikes % _REPORT_EVERY == 0

    def _gradient_norms(self) -> dict[str, Any]:
        # A spike of loss and gradient norm points to the optimizer, a spike of the loss alone to the batch.
        stats = self.signals.get("grad_norm")
        if stats is None or not stats.level or not stats.last:
            return {}
        return {"grad_norm": stats.last, "grad_norm_before": stats.level}

    def _follow(self, spike: dict[str, Any], stats: SignalStats, value: float) -> bool:
        spike["values"] += 1
        spike["peak"] = max(spike["peak"], value)
        self._num_calm = self._num_calm + 1 if value < self._calm_below else 0
        if not self._is_reported and not self.context.may_be_reset:
            halfway = 0.5 * (spike["level_before"] + spike["value"])
            self._is_reported = value < halfway or spike["peak"] >= self._clear_above
            if self._is_reported:
                self._report(stats, spike)
            elif spike["values"] >= _MAX_WAIT_VALUES:
                self._num_spikes -= 1
                self._end(stats)
                self._muted_until = stats.num_added + self.thresholds.quiet_values
                return False
        is_back = self._num_calm >= 2  # one low value between high ones is not a recovery
        if is_back or spike["values"] >= self.thresholds.slow_values:
            num_values = spike["values"] - 1
            spike["class"] = "not recovering"
            if is_back:
                spike["class"] = "recovering" if num_values <= self.thresholds.fast_values else "slow"
                spike["recovery_values"] = num_values
                if isinstance(self.context.step, int) and isinstance(spike["step"], int):
                    spike["recovery_steps"] = self.context.step - spike["step"]
            self._stays_up = not is_back
            if self._stays_up:
                self._muted_until = stats.num_added + self.thresholds.quiet_values
            self._quiet_since = stats.num_added
            self._end(stats)
            if self.is_open():  # another alert may have absorbed it
                self._report(stats, {**spike, "level_after": value if is_back else stats.level})
        return value >= (stats.outlier_above if stats.sigma is not None else self._calm_below)

    def _end(self, stats: SignalStats) -> None:
        self._spike = None
        stats.watch(self, None if stats.sigma is not None else -math.inf)

    def _report(self, stats: SignalStats, spike: dict[str, Any]) -> None:
        if not self._is_worth_reporting():
            return
        before = spike["level_before"]
        rise = f", {factor(spike['peak'] / before)} its level" if before > 0 and spike["peak"] > 2 * before else ""
        title = f"Loss spike at step {spike['step']}: {figure(spike['peak'])}, from {figure(before)}{rise}"
        if self._num_spikes > 1:
            last = f"most recently at step {spike['step']}: {figure(spike['peak'])}, from {figure(before)}"
            title = f"{self._num_spikes} loss spikes, {last}"
        no_recovery = f"It has not recovered after {_values(spike['values'])}"
        message = {
            "open": "Recovery will be reported.",
            "recovering": f"It recovered after {_values(spike.get('recovery_values', 0))}.",
            "slow": f"It recovered slowly, after {_values(spike.get('recovery_values', 0))}.",
            "not recovering": f"{no_recovery} and stays at {figure(stats.level)}.",
        }[spike["class"]]
        severity = "warning" if spike["is_clear"] else "info"
        if spike["class"] == "not recovering":
            severity = "critical" if spike["is_clear"] else "warning"
        level = spike["level_before"]
        highest = level + 2 * (self._calm_below - level)  # a value is calm halfway up to an outlier
        evidence = {"metric": stats.metric, "num_spikes": self._num_spikes, **spike, "expected": [None, highest]}
        self.report(title, message, severity=severity, evidence=evidence, occurrence=dict(spike))


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"
