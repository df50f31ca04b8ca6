"""Some steps take far longer than the others."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BlockBatch, SignalStats
from tachograph.diagnostics._text import duration, factor, percent

if TYPE_CHECKING:
    from tachograph.diagnostics._ranks import ScoredWindow, Spike

__all__ = ["StepOutliers"]

_MIN_PERIODS = 8


class StepOutliers(Rule):
    """Some steps take several times as long as the others, at irregular or at very short intervals.

    Steps after a validation or checkpoint are ignored, and so are slow steps at regular intervals of more than 32
    steps, which are usually planned work. At shorter intervals they are reported if they cost a large share of the
    time. A single step is reported only if it cost a lot of time.

    In a job with several ranks, a step that took one rank far longer than its others is reported with that rank, if it
    cost a noticeable share of the window of iterations it is in.
    """

    name = "step_outliers"
    severity = "info"
    meaning = (
        "Something pauses the training loop: garbage collection, a data worker that restarts or waits for storage, a "
        "GPU allocation that is retried, a slow rank, or a compiler that meets a new shape. If one of every few steps "
        "is slow, the data loader often delivers batches in bursts, or something logs or saves that often."
    )
    advice = (
        "Check in the timeline which phase of those steps took the time.",
        "Use persistent data workers and a larger prefetch; pad to few shapes; call gc.freeze() after setup.",
    )
    block_signals = ("step_s",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        least_share: Annotated[
            float, Meta(description="Minimum excess over the usual step time, as a share of it.", gt=0)
        ] = 2.0
        least_regular_share: Annotated[
            float, Meta(description="The same for slow steps at short regular intervals.", gt=0)
        ] = 0.8
        least_regular_lost: Annotated[
            float, Meta(description="Minimum share of the time lost to slow steps at short intervals.", gt=0, lt=1)
        ] = 0.1
        longest_period: Annotated[
            int, Meta(description="Maximum number of steps between slow steps at short intervals.", ge=2)
        ] = 32
        count: Annotated[int, Meta(description="Minimum number of slow steps.", ge=2)] = 5
        window_values: Annotated[
            int, Meta(description="Number of recent steps among which they are counted.", ge=16)
        ] = 500
        one_s: Annotated[float, Meta(description="Seconds a single step must lose to be reported alone.", gt=0)] = 30.0
        least_lost: Annotated[
            float, Meta(description="Minimum time lost, as a share of the time of those recent steps.", ge=0, lt=1)
        ] = 0.05
        least_lost_s: Annotated[float, Meta(description="Minimum time lost in seconds.", ge=0)] = 5.0
        least_step_s: Annotated[
            float, Meta(description="Usual step time in seconds below which steps are ignored.", ge=0)
        ] = 0.001
        least_rank_share: Annotated[
            float, Meta(description="Minimum excess of one rank over its usual own time, as a share of it.", gt=0)
        ] = 3.0
        least_rank_lost: Annotated[
            float, Meta(description="Minimum time lost by that, as a share of the window of iterations.", ge=0, lt=1)
        ] = 0.02

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all slow steps."""
        self._slow_steps: deque[tuple[int, int | None, float]] = deque(
            maxlen=64
        )  # value index, step, excess in seconds
        self._reported_s = 0.0
        self._period = 0  # distance between the last two slow steps
        self._watched_level = 0.0
        self._values_per_period = 0
        self._num_periods = 0
        self._period_excess_s = 0.0
        self._last_at = 0
        self._last_step: int | None = None
        self._spike_iteration: int | None = None  # the last one that took one rank far longer

    def on_change(self, change: str) -> None:
        """Start over when the batch size changes."""
        if change == "batch":
            self.resolve("the batch size changed")
            self.resolve("the batch size changed", key="regular")
            self.reset()

    def outlier_band(self, signal: str) -> tuple[float, float] | None:
        """Define the outliers of the step time, by share only."""
        return 0.0, self.thresholds.least_share

    def ignores_outliers(self, level: float) -> bool:
        """Return whether steps take too little time to matter."""
        return level <= 0 or level < self.thresholds.least_step_s

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Add a slow step; report if there are too many."""
        limits, level = self.thresholds, stats.level or 0.0
        if self.ignores_outliers(level):
            return False
        self._add_period(stats, value, level)
        if value < stats.outlier_above:
            return False
        self._slow_steps.append((stats.num_added, self.context.step, value - level))
        recent = [slow for slow in self._slow_steps if slow[0] > stats.num_added - limits.window_values]
        is_long = value - level >= limits.one_s and value >= 10 * level
        is_regular = _is_regular([step if step is not None else index for index, step, _ in recent])
        lost_s = sum(excess for _, _, excess in recent)
        is_costly = lost_s >= max(limits.least_lost * limits.window_values * level, limits.least_lost_s)
        is_fault = is_long or (len(recent) >= limits.count and is_costly and not is_regular)
        # An open alert is updated only when the lost time has doubled.
        if is_fault and (not self.is_open() or lost_s >= 2 * self._reported_s):
            self._reported_s = lost_s
            steps = [step for _, step, _ in recent][-10:]
            evidence = {
                "metric": stats.metric,
                "step": self.context.step,
                "value_s": value,
                "usual_s": level,
                "count": len(recent),
                "lost_s": lost_s,
                "steps": steps,
                "window_values": limits.window_values,
                "expected": [None, level * (1 + limits.least_share)],
            }
            title = f"Step {self.context.step} took {duration(value)}, {factor(value / level)} the usual"
            if len(recent) > 1:
                title = f"{len(recent)} steps took far longer than the usual {duration(level)}; {duration(lost_s)} lost"
            self.report(title, f"The last one, step {self.context.step}, took {duration(value)}.", evidence=evidence)
        return True

    def _add_period(self, stats: SignalStats, value: float, level: float) -> None:
        """Count slow steps at equal distances; report if they cost too much."""
        limits, value_index, step = self.thresholds, stats.num_added, self.context.step
        num_values = value_index - self._last_at
        # Steps after a validation are not among the values, so distances are counted in steps if they are known.
        period = step - self._last_step if step is not None and self._last_step is not None else num_values
        self._last_at, self._last_step = value_index, step
        is_same = 0 < self._period <= period <= 4 * self._period and period % self._period == 0
        if not is_same or num_values > limits.longest_period:
            self._period, self._num_periods, self._period_excess_s = max(period, 0), 0, 0.0
            self._values_per_period = num_values
            return
        self._num_periods += 1
        self._period_excess_s += value - level
        excess_s = self._period_excess_s / self._num_periods
        lost_share = excess_s / (self._values_per_period * level + excess_s)
        is_fault = self._num_periods >= _MIN_PERIODS and self._values_per_period >= 2
        if not is_fault or lost_share < limits.least_regular_lost or self.is_open("regular"):
            return
        evidence = {
            "metric": stats.metric,
            "step": step,
            "value_s": value,
            "usual_s": level,
            "period": self._period,
            "lost": lost_share,
            "expected": [None, level * (1 + limits.least_regular_share)],
        }
        title = f"A slow step every {self._period} steps takes {percent(lost_share)} of the time"
        message = f"It takes {duration(level + excess_s)}, the others {duration(level)}."
        self.report(title, message, key="regular", evidence=evidence)

    def on_block(self, stats: SignalStats) -> None:
        """Watch for slower steps, and resolve the alert when the last slow step is far back."""
        level = stats.level or 0.0
        if not 0.95 * level < self._watched_level < 1.05 * level:
            self._watched_level = level
            stats.watch(self, (1 + self.thresholds.least_regular_share) * level)
        window = self.thresholds.window_values
        if self.is_open() and self._slow_steps[-1][0] < stats.num_added - window:
            self.resolve(f"no slow step in the last {window} steps")
        if self.is_open("regular") and stats.num_added - self._last_at > 4 * self.thresholds.longest_period:
            self.resolve(f"no slow step in the last {stats.num_added - self._last_at} values", key="regular")

    def on_rank_window(self, window: ScoredWindow) -> None:
        """Report steps that took one rank far longer than usual; resolve the alert when the last one is far back."""
        if window.level:
            return
        limits = self.thresholds
        least_s = limits.least_rank_lost * window.length * window.step_s
        for spike in window.spikes(limits.least_rank_share):
            if window.step_s >= limits.least_step_s and spike.own_s - spike.usual_s >= least_s:
                self._spike_iteration = max(spike.iteration, self._spike_iteration or 0)
                self._report_spike(window, spike)
        is_over = self._spike_iteration is not None and window.end - self._spike_iteration > limits.window_values
        if is_over and self.is_open("rank"):
            self.resolve(f"no slow step of one rank in the last {limits.window_values} steps", key="rank")

    def _report_spike(self, window: ScoredWindow, spike: Spike) -> None:
        name = window.labels.name_of(spike.rank)
        lost_s = spike.own_s - spike.usual_s
        times = factor(spike.own_s / spike.usual_s)
        title = f"Step {spike.iteration} took {name} {times} as long as usual; {duration(lost_s)} lost"
        facts = {
            "step": spike.iteration,
            "rank": spike.rank,
            "host": window.labels.host_of(spike.rank),
            "value_s": spike.own_s,
            "usual_s": spike.usual_s,
            "lost_s": lost_s,
        }
        message = f"Its own work took {duration(spike.own_s)}, and all other ranks waited for it."
        self.report(title, message, key="rank", evidence=facts, occurrence=facts)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Follow the usual step time over blocks without a slow step."""
        if self.is_open() or self.is_open("regular"):
            return None
        watched, excess = self._watched_level, 1 + self.thresholds.least_regular_share
        for index, level in enumerate(batch.levels):
            if not 0.95 * level < watched < 1.05 * level:
                watched = level
            if batch.peaks[index + 1] >= excess * watched and not self.ignores_outliers(level):
                batch.num_quiet = index + 1
                return None

        def commit() -> None:
            if watched != self._watched_level:
                self._watched_level = watched
                stats.watch(self, excess * watched)

        return commit


def _is_regular(steps: list[int]) -> bool:
    """Return whether most distances between the steps are multiples of the smallest one, within 5 %."""
    distances = [later - earlier for earlier, later in itertools.pairwise(steps)]
    if len(distances) < 2:
        return False
    base = min(distances)
    if base <= 3:
        return False
    num_regular = sum(min(distance % base, base - distance % base) <= max(1, base // 20) for distance in distances)
    return num_regular >= 0.8 * len(distances)
