"""Ranks or stages have unequal amounts of work."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import cost, duration, percent

if TYPE_CHECKING:
    from tachograph.diagnostics._ranks import ScoredWindow

__all__ = ["UnequalWork"]

_MAD_TO_SIGMA = 1.4826
_RESOLVE_SHARE = 0.67


class UnequalWork(Rule):
    """Ranks wait for each other because their work differs, from step to step or between pipeline stages.

    *From step to step*: the time of a rank varies, all ranks take the same time on average, and their longest steps are
    different ones. So another rank is the last one in each step, usually the one with the longest sequences. The cost
    is estimated from the variation: how much longer the slowest of so many ranks takes than the mean.

    *Between stages*: all ranks of one pipeline stage take longer than the other stages. That is a matter of how the
    model is split, not of machines.
    """

    name = "unequal_work"
    meaning = (
        "In synchronous training the rank with the most work decides how long a step takes, and all others wait. "
        "Sequences of different lengths, or stages with unequal layers, cost as much as slow machines."
    )
    advice = (
        "Balance batches by their number of tokens: sort or pack sequences, and give each rank about as many tokens.",
        "If a stage has more work, move layers to the others; embedding and output layers count, too.",
        "If the phase that varies is data, cache or prefetch more.",
    )

    class Thresholds(RuleSettings):
        """When the rule fires."""

        variation: Annotated[
            float, Meta(description="Minimum median deviation of the time of a rank, as a share.", gt=0)
        ] = 0.15
        least_cost: Annotated[float, Meta(description="Minimum cost as a share of the step.", gt=0, lt=1)] = 0.05
        stage_excess: Annotated[
            float, Meta(description="Minimum excess of a stage over the typical one, as a share.", gt=0)
        ] = 0.07
        windows: Annotated[int, Meta(description="Number of windows in a row.", ge=1)] = 3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all windows."""
        self._streaks = {"": 0, "stages": 0}  # positive: windows with the fault; negative: windows without
        self._since = {"": 0, "stages": 0}

    def on_rank_window(self, window: ScoredWindow) -> None:
        """Check the variation of the work, and the stages."""
        if window.level:
            return
        cost_s = _cost_of_variation(window)
        # An open alert stays open until both are clearly lower.
        share = _RESOLVE_SHARE if self.is_open() else 1.0
        is_unequal = (
            window.variation >= share * self.thresholds.variation
            and cost_s >= share * self.thresholds.least_cost * window.step_s
            and not window.varies_together
        )
        if self._count("", is_unequal, window):
            self._report_variation(window, cost_s)
        stages = window.slow_stages(self.thresholds.stage_excess)
        if self._count("stages", bool(stages), window):
            worst = max(stages, key=lambda stage: stage.excess)
            self._report_stage(window, worst.code, worst.excess)

    def _count(self, key: str, is_fault: bool, window: ScoredWindow) -> bool:
        """Count windows in a row; return whether the fault is to be reported now."""
        streak, num_windows = self._streaks[key], self.thresholds.windows
        if is_fault:
            if streak <= 0:
                self._since[key] = window.first_iteration
            self._streaks[key] = max(streak, 0) + 1
            return self._streaks[key] >= num_windows and not self.is_open(key)
        self._streaks[key] = min(streak, 0) - 1
        if self._streaks[key] <= -num_windows:
            self.resolve("the work of the ranks is about equal again", key=key)
        return False

    def _report_variation(self, window: ScoredWindow, cost_s: float) -> None:
        title = f"Work is unequal from step to step, another rank is last each time: {cost(cost_s, window.step_s)}"
        message = (
            f"The work of a rank takes {duration(window.typical_own_s)} and typically differs by "
            f"{percent(window.variation)} from that, but no rank is slow in all steps. Sequences of different lengths "
            "are the usual cause."
        )
        if not window.is_measured:
            message += " The cost does not contain the backward pass."
        evidence = {
            "variation": window.variation,
            "cost_s": cost_s,
            "cost_share": cost_s / window.step_s,
            "own_s": window.typical_own_s,
            "step_s": window.step_s,
            "since_step": self._since[""],
            "step": window.end - 1,
            "num_ranks": window.num_ranks,
            "num_missing": window.num_missing,
        }
        self.report(title, message, evidence=evidence)

    def _report_stage(self, window: ScoredWindow, stage: int, excess: float) -> None:
        usual_s = window.typical_own_s
        cost_s = excess * usual_s
        title = f"Stage {stage} has {percent(excess)} more work than the others: {cost(cost_s, window.step_s)}"
        message = (
            f"All its ranks take longer than the other stages since step {self._since['stages']}. Compare how the "
            "layers are split."
        )
        evidence = {
            "stage": stage,
            "excess": excess,
            "cost_s": cost_s,
            "cost_share": cost_s / window.step_s,
            "step_s": window.step_s,
            "since_step": self._since["stages"],
            "step": window.end - 1,
            "num_ranks": window.num_ranks,
            "num_missing": window.num_missing,
        }
        self.report(title, message, key="stages", evidence=evidence)


def _cost_of_variation(window: ScoredWindow) -> float:
    """Return how much longer the slowest of all ranks takes than the mean, if the times are lognormal."""
    sigma = min(_MAD_TO_SIGMA * window.variation, 2.0)
    num_ranks = window.num_ranks
    highest = NormalDist().inv_cdf((num_ranks - 0.375) / (num_ranks + 0.25))
    lost_s = window.typical_own_s * (math.exp(sigma * highest) - math.exp(sigma * sigma / 2))
    return min(max(lost_s, 0.0), window.typical_wait_s)
