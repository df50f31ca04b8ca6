"""The run is slower than earlier runs that should be equally fast."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._earlier_levels import EarlierLevels, measure_earlier
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median
from tachograph.diagnostics._text import duration, percent
from tachograph.records import BASELINE_SPEED

__all__ = ["SlowerThanBaseline"]

_NUM_SKIPPED = 2
_MIN_BLOCKS = 8
_MAX_BLOCKS = 64
_MIN_S = 30.0
_FLOOR = 0.01
_VARIATION_FACTOR = 1.5
_ASSUMED_DEGREES = 4
# Quantiles of Student's t for an interval of 99 %, with 4 degrees of freedom and more: one run against one to twenty.
_QUANTILES = (
    *(4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012),
    *(2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807),
)


class SlowerThanBaseline(Rule):
    """Steps take longer than in earlier runs of the same log folder with the same `perf_tag`, which should be as fast.

    When a run gets a `perf_tag`, at its start or later, it looks up the median step times of the last twenty finished
    runs with this tag, among the 200 runs of the log folder that were written last. A thread does so once: it reads the
    summaries that the list of runs stores, and parts of journals without one. After 160 steps and 30 seconds, the run's
    own median is compared with theirs as `tacho compare` does: the difference must exceed a share, and the
    difference to be expected from the spread between the runs and from the variation within this one. If the earlier
    runs became slower or faster for good, those since then count. A few that were far off the others do not raise the
    spread, but the difference must exceed theirs. The alert is opened once; it is resolved if later steps are as fast
    as in the earlier runs.

    A run whose steps are planned to become faster later looks slow at first: use a `perf_tag` of its own, or turn the
    rule off.
    """

    name = "slower_than_baseline"
    meaning = (
        "Runs with a common perf_tag are meant to be equally fast, and this one is certainly not. Common causes: a "
        "change of the code or of a library, a driver update, another kind of machine, a throttled GPU, or other jobs "
        "on the node."
    )
    advice = (
        "Compare this run with an earlier one: tacho compare THIS EARLIER shows speed, phases, config and versions.",
        "Compare commits and packages: tacho diff EARLIER THIS.",
        "If the change is intended, use a new perf_tag from now on.",
    )
    block_signals = ("step_s",)
    record_kinds = ("event",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        rise: Annotated[float, Meta(description="Minimum increase of the step time, as a share.", gt=0)] = 0.05

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget the baseline and all step times."""
        self._earlier: EarlierLevels | None = None
        self._blocks: deque[float] = deque(maxlen=_MAX_BLOCKS)
        self._num_skipped = 0
        self._passed_s = 0.0
        self._has_reported = False

    def on_record(self, record: dict[str, Any]) -> None:
        """Take the step times of earlier runs."""
        if record.get("name") == BASELINE_SPEED:
            times = record.get("step_times_s")
            step_times_s = times if isinstance(times, list) else []
            valid_times_s = [
                time_s for time_s in step_times_s if isinstance(time_s, (int, float)) and 0 < time_s < math.inf
            ]
            newest_first = [math.log(time_s) for time_s in valid_times_s[: len(_QUANTILES)]]
            self._earlier = measure_earlier(newest_first[::-1]) if newest_first else None

    def on_change(self, change: str) -> None:
        """Start over when the batch size changes."""
        if change == "batch":
            self._blocks.clear()

    def on_block(self, stats: SignalStats) -> None:
        """Compare the step times so far with earlier runs."""
        middle = stats.values[len(stats.values) // 2]
        self._passed_s += BLOCK * middle
        if self._num_skipped < _NUM_SKIPPED or middle <= 0:
            self._num_skipped += 1
            return
        self._blocks.append(math.log(middle))
        if self._earlier is None or len(self._blocks) < _MIN_BLOCKS:
            return
        if self._has_reported:
            self._check_end(self._earlier)
        elif self._passed_s >= _MIN_S:
            self._compare(stats, self._earlier)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Without earlier runs, blocks are only collected."""
        if self._earlier is not None or self._num_skipped < _NUM_SKIPPED or batch.lowest <= 0:
            return None

        def commit() -> None:
            middles = [block[BLOCK // 2] for block in batch.sorted_blocks]
            for middle in middles:
                self._passed_s += BLOCK * middle
            self._blocks.extend(map(math.log, middles[-_MAX_BLOCKS:]))

        return commit

    def _compare(self, stats: SignalStats, earlier: EarlierLevels) -> None:
        level = median(sorted(self._blocks))
        variation = 1.4826 * median(sorted(abs(block - level) for block in self._blocks))
        count, typical = earlier.num_runs, earlier.mean
        noise = max(_FLOOR, _VARIATION_FACTOR * variation)
        spread = math.sqrt((_ASSUMED_DEGREES * noise**2 + earlier.squares) / (_ASSUMED_DEGREES + count - 1))
        max_difference = _QUANTILES[count - 1] * spread * math.sqrt(1 + 1 / count) + earlier.max_deviation
        if level - typical <= max(max_difference, math.log1p(self.thresholds.rise)):
            return
        self._has_reported = True
        rise = math.expm1(level - typical)
        before, after = math.exp(typical), math.exp(level)
        runs = "an earlier run" if count == 1 else f"{count} earlier runs"
        self.report(
            f"Steps take {percent(rise)} longer than in {runs} with the same perf_tag: {duration(after)}",
            f"They took {duration(before)} there.",
            evidence={
                "metric": stats.metric,
                "before_s": before,
                "after_s": after,
                "rise": rise,
                "num_runs": count,
                "step": self.context.step,
                "expected": [None, before * (1 + self.thresholds.rise)],
            },
        )

    def _check_end(self, earlier: EarlierLevels) -> None:
        if not self.is_open():
            return
        recent = median(sorted(list(self._blocks)[-_MIN_BLOCKS:]))
        if recent - earlier.mean < 0.5 * math.log1p(self.thresholds.rise):
            self.resolve(f"steps take {duration(math.exp(recent))} now")
