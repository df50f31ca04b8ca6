"""Where the time of a window went: each moment is counted once."""

from __future__ import annotations

__all__ = ["PHASES", "Shares"]

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

_MOST_STRETCHES = 10_000


class Shares:
    """Sums up stretches of time by phase.

    What is told first keeps its time: an inner stretch ends, and is told, before the one around it, which then gets
    what is left. So the sum never exceeds the time that has passed, however stretches nest or overlap.
    """

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.until_s = since_s
        self.seconds: dict[str, float] = {}
        self._covered: list[tuple[float, float]] = []

    def add(self, phase: str, start_s: float, stop_s: float, within_s: float | None = None) -> None:
        """Count what of a stretch was not counted before.

        Args:
            phase: what it was.
            start_s: when it began.
            stop_s: when it ended.
            within_s: how much of the stretch is meant, if it has gaps.
        """
        full_s = stop_s - start_s
        start_s = max(start_s, self.since_s)
        if stop_s <= start_s:
            return
        gained_s = stop_s - start_s
        if within_s is not None:
            gained_s = max(0.0, gained_s - (full_s - within_s))
        covered = self._covered
        low_s, high_s = start_s, stop_s
        while covered and covered[-1][1] > start_s:
            from_s, to_s = covered.pop()
            gained_s -= max(0.0, min(to_s, stop_s) - max(from_s, start_s))
            low_s, high_s = min(low_s, from_s), max(high_s, to_s)
        covered.append((low_s, high_s))
        if len(covered) > _MOST_STRETCHES:
            self.since_s = covered.pop(0)[1]  # nothing before it is counted any more
        self.until_s = max(self.until_s, stop_s)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + max(0.0, gained_s)
