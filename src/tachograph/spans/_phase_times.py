"""The time of a window by phase, with every moment counted once."""

from __future__ import annotations

from tachograph._base.timeline import Timeline

__all__ = ["PHASES", "PhaseTimes"]

PHASES = (
    "data",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "validation",
    "testing",
    "iteration",
    "failed",
)
"""`iteration` is time inside iterations outside any phase, `failed` is time inside iterations that raised. Time outside
all of them is reported as `other`.
"""


class PhaseTimes:
    """Sums up intervals by phase.

    The first phase to claim a moment keeps it. An inner span stops before the one around it and so claims first; the
    outer one gets the rest. The sum never exceeds the time that has passed, however intervals nest or overlap.
    """

    def __init__(self, since_s: float) -> None:
        self.until_s = since_s
        self.seconds: dict[str, float] = {}
        self._timeline = Timeline(since_s)

    def add(self, phase: str, start_s: float, stop_s: float, within_s: float | None = None) -> None:
        """Add the part of an interval that no phase has claimed yet.

        Args:
            phase: the phase.
            start_s: when the interval started.
            stop_s: when it stopped.
            within_s: how much of the interval belongs to the phase, if it has gaps.
        """
        gained_s = self._timeline.claim(start_s, stop_s)
        if within_s is not None:
            gained_s = max(0.0, gained_s - (stop_s - start_s - within_s))
        if gained_s <= 0:
            return
        self.until_s = max(self.until_s, stop_s)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + gained_s
