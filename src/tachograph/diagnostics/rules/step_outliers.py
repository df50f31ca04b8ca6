"""Some steps take far longer than the others."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._text import duration, factor

__all__ = ["StepOutliers"]


class StepOutliers(Rule):
    """Now and then a step takes several times as long as the others, at no regular distance.

    Steps after a validation or checkpoint do not count, nor do slow steps that come at a regular distance, which is
    work somebody planned. One step alone is reported if it cost much time.
    """

    name = "step_outliers"
    severity = "info"
    meaning = (
        "Something stops the loop for a moment: garbage collection, a data worker that starts anew or waits for "
        "storage, the allocator of the GPU that frees and retries, a slow rank, or a compiler that meets a new shape."
    )
    advice = (
        "See in the timeline which phase those steps spent their time in.",
        "Use persistent data workers and a larger prefetch; pad to few shapes; call gc.freeze() after set-up.",
    )
    hears = ("step_s",)

    class Thresholds(RuleSettings):
        """When it fires."""

        least_share: Annotated[
            float, Meta(description="How much longer than usual it must take, as a share.", gt=0)
        ] = 2.0
        count: Annotated[int, Meta(description="Outliers that make an alert.", ge=2)] = 5
        window_values: Annotated[int, Meta(description="Among how many steps.", ge=16)] = 500
        one_s: Annotated[float, Meta(description="Seconds that one step must lose to be reported alone.", gt=0)] = 30.0
        least_lost: Annotated[
            float, Meta(description="Share of the time of that many steps that they must have cost.", ge=0, lt=1)
        ] = 0.05
        least_lost_s: Annotated[float, Meta(description="And seconds that they must have cost.", ge=0)] = 5.0
        least_step_s: Annotated[
            float, Meta(description="Seconds that a usual step must take to be worth a look.", ge=0)
        ] = 0.001

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._places: deque[tuple[int, int | None, float]] = deque(maxlen=64)
        self._told_s = 0.0

    def on_change(self, what: str) -> None:
        """Begin anew when the steps are others."""
        if what == "batch":
            self.over("the batch size changed")
            self.reset()

    def band(self, signal: str) -> tuple[float, float] | None:
        """Say which values it wants to hear of."""
        return 0.0, self.thresholds.least_share

    def on_loud(self, gauge: SignalStats, value: float) -> bool:
        """Note a slow step; see whether there are too many."""
        limits, level = self.thresholds, gauge.level or 0.0
        if level <= 0 or level < limits.least_step_s:
            return False
        self._places.append((gauge.num_taken, self.now.step, value - level))
        recent = [place for place in self._places if place[0] > gauge.num_taken - limits.window_values]
        is_long = value - level >= limits.one_s and value >= 10 * level
        is_regular = _is_regular([step if step is not None else place for place, step, _ in recent])
        lost_s = sum(excess for _, _, excess in recent)
        is_costly = lost_s >= max(limits.least_lost * limits.window_values * level, limits.least_lost_s)
        is_fault = is_long or (len(recent) >= limits.count and is_costly and not is_regular)
        if is_fault and (not self.is_open() or lost_s >= 2 * self._told_s):
            self._told_s = lost_s
            steps = [step for _, step, _ in recent][-10:]
            evidence = {
                "metric": gauge.metric,
                "step": self.now.step,
                "value_s": value,
                "usual_s": level,
                "count": len(recent),
                "lost_s": lost_s,
                "steps": steps,
                "window_values": limits.window_values,
            }
            title = f"Step {self.now.step} took {duration(value)}, {factor(value / level)} the usual"
            if len(recent) > 1:
                title = f"{len(recent)} steps took far longer than the usual {duration(level)}; {duration(lost_s)} lost"
            self.found(title, f"The last was step {self.now.step} with {duration(value)}.", evidence=evidence)
        return True

    def on_block(self, gauge: SignalStats) -> None:
        """See whether it is over."""
        if self.is_open() and self._places[-1][0] < gauge.num_taken - self.thresholds.window_values:
            self.over(f"no such step in the last {self.thresholds.window_values}")


def _is_regular(steps: list[int]) -> bool:
    """Tell whether the distances between the steps are multiples of one number, near enough."""
    distances = [later - earlier for earlier, later in itertools.pairwise(steps)]
    if len(distances) < 2:
        return False
    base = min(distances)
    if base <= 3:
        return False
    num_regular = sum(min(distance % base, base - distance % base) <= max(1, base // 20) for distance in distances)
    return num_regular >= 0.8 * len(distances)
