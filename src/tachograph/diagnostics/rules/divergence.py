"""The loss leaves for good."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, SignalStats, median
from tachograph.diagnostics._text import figure

__all__ = ["Divergence"]

_BLOCKS = 8


class Divergence(Rule):
    """The loss has risen far above the best level it had, and stays there.

    The best level is that of the best block of sixteen values, in a long run of several in a row. Most of the last
    values must lie above it by a share of what the run has gained since its start, or of the best level, whichever is
    less, and by many spreads; the longer the run has been going, the more values are asked for. A slow rise is found
    when eight blocks in a row are that high. So a spike is none, nor is a loss with two modes. A loss that goes back to
    where the run started is another fault: see `loss_reset`. After a sudden change of the learning rate or the batch
    size, as at a warm restart, most of what was gained must be lost, until the loss has come back once. Not looked for
    in reinforcement learning, where the loss does not say how well it goes.
    """

    name = "divergence"
    severity = "critical"
    meaning = (
        "The optimizer has left the region in which it made progress; what was learnt is being lost. Most often the "
        "learning rate is too high, or grew too fast; sometimes a change of the data mix, a numerical fault in one "
        "layer, or a loss scale that collapsed came before."
    )
    advice = (
        "Stop, and go back to the last checkpoint from before the step named here.",
        "Resume with a lower learning rate (half of it, say), or skip the batches around that step.",
        "Lengthen the warm-up, clip gradients by norm, check weight decay and the epsilon of the optimizer.",
        "See what changed at that step: data mix, batch size, schedule, precision.",
    )
    hears = ("loss",)
    absorbs = ("loss_spike", "plateau", "exploding_gradients")

    class Thresholds(RuleSettings):
        """When it fires."""

        share_of_best: Annotated[
            float, Meta(description="Rise above the best level, as a share of that level.", gt=0)
        ] = 0.33
        share_of_gain: Annotated[
            float, Meta(description="Or as a share of what was gained since the start, if that is less.", gt=0)
        ] = 0.3
        share_after_change: Annotated[
            float, Meta(description="Share of the gain, or of the best if more, after a change of rate or batch.", gt=0)
        ] = 0.6
        least_gain: Annotated[float, Meta(description="But at least this share of what was gained.", ge=0, lt=1)] = 0.05
        sigmas: Annotated[float, Meta(description="And by so many spreads of a calm block.", ge=1)] = 5.0
        window_values: Annotated[
            int, Meta(description="Values that are looked at together, in a short run; up to four times that.", ge=4)
        ] = 8
        runaway: Annotated[
            float,
            Meta(description="Times the first level that is beyond anything: three such values are enough.", gt=1),
        ] = 10.0
        least_above: Annotated[float, Meta(description="The share of them that must be that high.", gt=0, le=1)] = 0.75

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._best: float | None = None
        self._best_step: int | None = None
        self._levels: deque[float] = deque(maxlen=_BLOCKS)
        self._lows: deque[float] = deque(maxlen=_BLOCKS)
        self._widths: deque[float] = deque(maxlen=2 * _BLOCKS)
        self._width = 0.0
        self._onset: int | None = None
        self._slow_onset: int | None = None
        self._is_lenient = False
        self._far: deque[int] = deque(maxlen=3)
        self._places: deque[int] = deque(maxlen=4 * self.thresholds.window_values)
        self._values: deque[float] = deque(maxlen=4 * self.thresholds.window_values)

    def on_change(self, what: str) -> None:
        """Begin anew with fresh weights; expect a rise after other changes."""
        if what == "restart":
            self.reset()
        else:
            self._is_lenient = True

    def on_block(self, gauge: SignalStats) -> None:
        """Keep the best level; ask for values far above it; see whether whole blocks are."""
        level, first = gauge.level, gauge.first
        if level is None or first is None or self.desk.is_reinforcement:
            return
        values, low = gauge.values, gauge.values[BLOCK // 4]
        best = self._kept(level, gauge.num_values // BLOCK)
        rise = self._usual_rise(best, first)
        if level < best + 0.5 * rise or not self._widths:
            self._is_lenient = False
            self._widths.append(1.48 * (values[BLOCK // 2] - low))  # what is above may be the fault
            self._width = sorted(self._widths)[len(self._widths) // 8]
        rise = self._rise(best, first)
        self._lows.append(low)
        if self.is_open():
            if values[-BLOCK // 4] < best + 0.5 * rise:
                self.over(f"{gauge.metric} is back at {figure(level)}", evidence={"level": level, "best": best})
            return
        limit = best + rise
        if low <= limit:
            self._slow_onset = self.now.step
        if min(self._lows) > limit and len(self._lows) == _BLOCKS:
            self._tell(gauge, level, limit, _BLOCKS * BLOCK, self._slow_onset)
        else:
            gauge.ask(self, limit if rise > 0 else None)

    def _kept(self, level: float, num_blocks: int) -> float:
        """Return the best level: over several blocks in a long run, of which the luckiest would be too low."""
        self._levels.append(level)
        num_smoothed = max(1, min(num_blocks // 8, _BLOCKS))
        smoothed = median(sorted(list(self._levels)[-num_smoothed:]))
        if self._best is None or smoothed < self._best:
            self._best, self._best_step = smoothed, self.now.step
        return self._best

    def on_loud(self, gauge: SignalStats, value: float) -> bool:
        """See whether most of the last values were that high, and were not before."""
        if self._best is None or gauge.first is None or self.is_open() or self.desk.is_reinforcement:
            return False
        limit = self._best + self._rise(self._best, gauge.first)
        if value < limit or limit <= self._best:
            return False
        limits, place = self.thresholds, gauge.num_taken
        if not self._places or place - self._places[-1] > 4 * limits.window_values:
            self._onset = self.now.step
        self._places.append(place)
        self._values.append(value)
        window = max(limits.window_values, min(place // 16, 4 * limits.window_values))
        if not self._runs_away(gauge, value, place):
            least = math.ceil(limits.least_above * window)
            if len(self._places) < least or place - self._places[-least] >= window:
                return False
            trend = self._trend(self._best, least)
            num_here = sum(place - other < window for other in self._places)
            num_before = gauge.num_above(limit, 2 + window // BLOCK) - num_here
            if trend < 0.75 or (num_before > 4 and trend < 1.5):
                return False  # a slow spike, or a loss that is like that
        self._tell(gauge, value, limit, window, self._onset)
        gauge.ask(self, None)
        return False

    def _runs_away(self, gauge: SignalStats, value: float, place: int) -> bool:
        """Tell whether there were several values lately that are beyond anything."""
        if value > self.thresholds.runaway * max(abs(gauge.first or 0.0), abs(self._best or 0.0)):
            self._far.append(place)
        return len(self._far) == 3 and place - self._far[0] < self.thresholds.window_values

    def _trend(self, best: float, num_values: int) -> float:
        """Return how much higher the last of some values are than the first, both seen from the best level."""
        values = list(self._values)[-num_values:]
        first, last = sorted(values[: num_values // 2]), sorted(values[-max(2, num_values // 4) :])
        return (median(last) - best) / (median(first) - best)

    def _rise(self, best: float, first: float) -> float:
        rise = self._usual_rise(best, first)
        return (
            max(rise, self.thresholds.share_after_change * max(first - best, abs(best))) if self._is_lenient else rise
        )

    def _usual_rise(self, best: float, first: float) -> float:
        limits = self.thresholds
        gained = max(first - best, 0.0)
        share = limits.share_of_gain * gained
        if best > 0:
            share = min(limits.share_of_best * best, share)
        if gained < 0.1 * abs(best):
            share = 0.5 * abs(best)  # nothing was gained that could be lost
        return max(share, 0.1 * abs(best), limits.sigmas * self._width, limits.least_gain * gained)

    def _tell(self, gauge: SignalStats, value: float, limit: float, window: int, since: int | None) -> None:
        evidence = {
            "metric": gauge.metric,
            "value": value,
            "best": self._best,
            "best_step": self._best_step,
            "since_step": since,
            "step": self.now.step,
            "threshold": limit,
            "window_values": window,
        }
        best = f"its best was {figure(self._best)} at step {self._best_step}"
        message = f"Most of the last {window} values are above {figure(limit)}."
        self.found(f"Loss diverges since step {since}: {figure(value)}, {best}", message, evidence=evidence)
