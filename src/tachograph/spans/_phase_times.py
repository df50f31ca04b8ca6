"""Where the time of a window went: each moment is counted once."""

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
"""`iteration` is time inside iterations that no phase explains, `failed` that inside iterations that raised. What lies
outside of all is called `other`.
"""


class PhaseTimes:
    """Sums up stretches of time by phase.

    What is told first keeps its time: an inner stretch ends, and is told, before the one around it, which then gets
    what is left. So the sum never exceeds the time that has passed, however stretches nest or overlap.
    """

    def __init__(self, since_s: float) -> None:
        self.until_s = since_s
        self.seconds: dict[str, float] = {}
        self._timeline = Timeline(since_s)

    def add(self, phase: str, start_s: float, stop_s: float, within_s: float | None = None) -> None:
        """Count what of a stretch was not counted before.

        Args:
            phase: what it was.
            start_s: when it began.
            stop_s: when it ended.
            within_s: how much of the stretch is meant, if it has gaps.
        """
        gained_s = self._timeline.claim(start_s, stop_s)
        if within_s is not None:
            gained_s = max(0.0, gained_s - (stop_s - start_s - within_s))
        if gained_s <= 0:
            return
        self.until_s = max(self.until_s, stop_s)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + gained_s
