"""The run has become slower."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._creep import CreepDetector
from tachograph.diagnostics._rule import RuleSettings
from tachograph.diagnostics._shift import ShiftDetector
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats, median
from tachograph.diagnostics._step_time import StepTimeRule
from tachograph.diagnostics._text import percent

__all__ = ["ThroughputRegression"]

_NUM_MERGED = 4
_NUM_TO_RESOLVE = 3


class ThroughputRegression(StepTimeRule):
    """Steps have become slower, at some point or little by little, and stay slower.

    The rule compares the median step times of the last four blocks of sixteen steps with the twelve blocks before, and
    does the same with blocks of 64 steps, which shows smaller changes in noisier steps. All four must be slower, by a
    share and by several times the usual difference between blocks. Growth that is spread over the run, or over its
    later half or quarter, is compared with a higher share; not in reinforcement learning, where steps take longer as
    completions do. Steps after a validation or checkpoint are ignored.

    Where no step time is recorded, the rule uses the throughput. A large change within one block that leaves steps as
    steady as before may be planned; `step_time_change` reports it, unless a recorded batch size shows that the work is
    the same. A change of the batch size resolves the alert.
    """

    name = "throughput_regression"
    meaning = (
        "The same work takes longer. Common causes: a GPU that is throttled by heat or power, another job on the node, "
        "a slow rank that all others wait for, slower storage or network, swapping, or a list in the training loop "
        "that keeps growing."
    )
    advice = (
        "Check in the timeline which phase became slower: data, forward, backward or optimizer.",
        "Compare GPU clocks, power and temperature before and after (nvidia-smi -q -d PERFORMANCE).",
        "On several nodes, compare step times per rank to find the slow one.",
        "Check whether something else is running on the machine.",
    )

    class Thresholds(RuleSettings):
        """When the rule fires."""

        rise: Annotated[float, Meta(description="Minimum increase of the step time, as a share.", gt=0)] = 0.1
        scheduled_rise: Annotated[
            float,
            Meta(
                description="A clean change of at least this share is left to `step_time_change`, if no batch size is "
                "recorded.",
                gt=0,
            ),
        ] = 0.35
        gradual_rise: Annotated[
            float, Meta(description="Minimum increase of a step time that grows gradually, as a share.", gt=0)
        ] = 0.2

        least_step_s: Annotated[
            float, Meta(description="Step time in seconds below which steps are ignored.", ge=0)
        ] = 0.001

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all step times."""
        rise = self.thresholds.rise
        self._detectors = (ShiftDetector(rise), ShiftDetector(rise, min_merged=_NUM_MERGED))
        self._creep = CreepDetector(self.thresholds.gradual_rise)
        self._old = 0.0
        self._new = 0.0
        self._recent: deque[float] = deque(maxlen=_NUM_TO_RESOLVE)

    def _clear(self) -> None:
        for detector in self._detectors:
            detector.clear()
        self._creep.clear()

    def on_change(self, change: str) -> None:
        """Start over when the batch size changes."""
        if change == "batch":
            self._clear()
            self.resolve("the batch size changed")

    def on_block(self, stats: SignalStats) -> None:
        """Check for a shift, for gradual growth, or for the end of either."""
        if not self.is_observed(stats):
            return
        middle = stats.values[len(stats.values) // 2]
        if self.is_open():
            # Halfway back, so that noise around either level neither resolves nor reopens the alert. A shift that
            # took more blocks to find takes more of them to end.
            self._recent.append(middle)
            now_s = median(sorted(self._recent))
            if len(self._recent) == self._recent.maxlen and now_s < self._old + 0.5 * (self._new - self._old):
                now = self.describe(stats, now_s)
                self.resolve(f"steps take {now} again" if stats.signal == "step_s" else f"throughput is {now} again")
                self._clear()
            return
        is_timed = stats.signal == "step_s"
        fine_detector, coarse_detector = self._detectors
        shift = fine_detector.add_block(stats, self.context)
        coarse_shift = coarse_detector.add_block(stats, self.context)
        creep = self._creep.add_level(middle) if not (is_timed and self.context.is_reinforcement) else None
        if is_timed and middle < self.thresholds.least_step_s:
            return
        num_to_resolve = _NUM_TO_RESOLVE if shift is not None else 2 * _NUM_MERGED
        shift = shift or coarse_shift
        if shift is not None:
            self._recent = deque(maxlen=num_to_resolve)
            self._clear()
            # Completions of varying length make steps of reinforcement learning slower little by little.
            if self.context.is_reinforcement and not (shift.is_sharp and shift.is_clean):
                return
            is_large = shift.after >= (1 + self.thresholds.scheduled_rise) * shift.before
            if not (is_timed and shift.is_clean and is_large and not self.context.is_work_recorded):
                self._report(stats, shift.before, shift.after, f"since about step {shift.step}", shift.step)
        elif creep is not None:
            self._recent = deque(maxlen=num_to_resolve)
            self._clear()
            self._report(stats, creep.before, creep.after, f"than {BLOCK * creep.num_blocks} values ago", None)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Skip blocks in which the detectors find nothing."""
        if self.is_open() or not self.is_observed(stats):
            return None
        fine_detector, coarse_detector = self._detectors
        add_fine, add_coarse = fine_detector.preview_blocks(batch), coarse_detector.preview_blocks(batch)
        if add_fine is None or add_coarse is None:
            return None
        creep = self._creep.copy()
        if not (stats.signal == "step_s" and self.context.is_reinforcement):
            middles = [block[BLOCK // 2] for block in batch.sorted_blocks]
            if not creep.add_levels(middles):
                return None

        def commit() -> None:
            add_fine()
            add_coarse()
            self._creep = creep

        return commit

    def _report(self, stats: SignalStats, old: float, new: float, since: str, from_step: int | None) -> None:
        self._old, self._new = old, new
        rise = new / old - 1
        evidence = {
            "metric": stats.metric,
            "before_s": old,
            "after_s": new,
            "rise": rise,
            "from_step": from_step,
            "step": self.context.step,
            "expected": [None, old * (1 + self.thresholds.rise)],
        }
        before, after = self.describe(stats, old), self.describe(stats, new)
        title = f"Steps take {percent(rise)} longer {since}: {after}"
        message = f"They took {before} before."
        if stats.signal != "step_s":
            least = 1 / (old * (1 + self.thresholds.rise))
            evidence |= {"before": 1 / old, "after": 1 / new, "expected": [least, None]}
            title, message = (
                f"Throughput is {percent(1 - old / new)} lower {since}: {after}",
                f"It was {before} before.",
            )
        self.report(title, message, evidence=evidence)
