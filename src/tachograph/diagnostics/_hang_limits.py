"""How long an iteration of a job may take before the job counts as hanging."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import RuleSettings

__all__ = ["PAUSES", "HangLimits", "HangThresholds"]

PAUSES = frozenset({"validation", "testing", "checkpoint"})
"""Phases in which training pauses, which may take long."""

_EARLY_ITERATIONS = 10
_EARLY_FACTOR = 2


class HangThresholds(RuleSettings):
    """When a job counts as hanging."""

    times_longest: Annotated[
        float, Meta(description="Minimum multiple of the longest iteration; twice that in the first ten.", gt=1)
    ] = 5.0
    least_s: Annotated[float, Meta(description="Seconds below which no pause is a hang.", gt=0)] = 60.0
    pause_s: Annotated[float, Meta(description="Seconds that a validation or checkpoint may take.", gt=0)] = 600.0
    first_step_s: Annotated[float, Meta(description="Seconds allowed before the first iteration.", gt=0)] = 1800.0


class HangLimits:
    """Learns how long iterations and pauses take.

    Args:
        thresholds: the thresholds of the rule `rank_hang`.
    """

    def __init__(self, thresholds: HangThresholds) -> None:
        self._thresholds = thresholds
        self._first: int | None = None
        self._is_pause = False
        self._longest_pause_s = 0.0
        self._observed_at = 0.0
        self.iteration: int | None = None
        """The last completed iteration."""
        self.since_s: float | None = None
        """When it was completed, or first seen."""
        self.longest_s = 0.0
        """The longest iteration so far, as far as it was observed."""

    def observe(self, iteration: int | None, phase: str, now_s: float) -> float | None:
        """Add an observation; return how long the last iteration took, if another one has completed.

        Args:
            iteration: the number of completed iterations; None until the first one of this attempt is complete.
            phase: the work of the training thread.
            now_s: the time.
        """
        last_observed_at, self._observed_at = self._observed_at, now_s
        if self.since_s is not None and iteration == self.iteration and now_s >= self.since_s:
            self._is_pause = self._is_pause or phase in PAUSES
            return None
        took_s = None
        if self.since_s is not None and now_s > self.since_s and self.iteration is not None:
            took_s = now_s - self.since_s
            # It may have ended right after the last observation, and others since: long pauses between observations
            # are not long iterations.
            num_completed = max(1, (iteration or 0) - self.iteration)
            least_s = max(last_observed_at - self.since_s, took_s / num_completed)
            if self._is_pause:
                self._longest_pause_s = max(self._longest_pause_s, least_s)
            else:
                self.longest_s = max(self.longest_s, least_s)
        self.iteration, self.since_s, self._is_pause = iteration, now_s, phase in PAUSES
        self._first = iteration if self._first is None else self._first
        return took_s

    @property
    def limit_s(self) -> float:
        """How long the current iteration may take."""
        limits = self._thresholds
        if self.iteration is None or self._first is None:
            return max(limits.first_step_s, limits.least_s)
        is_early = self.iteration - self._first < _EARLY_ITERATIONS
        factor = limits.times_longest * (_EARLY_FACTOR if is_early else 1)
        limit_s = max(limits.least_s, factor * self.longest_s)
        if self._is_pause:
            limit_s = max(limit_s, limits.pause_s, limits.times_longest * self._longest_pause_s)
        return limit_s

    def is_exceeded(self, now_s: float) -> bool:
        """Return whether the current iteration takes too long."""
        return self.since_s is not None and now_s - self.since_s > self.limit_s

    def remaining_s(self, now_s: float) -> float:
        """Return how much longer the current iteration may take."""
        return max(1.0, self.limit_s - (now_s - (now_s if self.since_s is None else self.since_s)))
