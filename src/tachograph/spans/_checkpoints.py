"""The progress that checkpoints keep, and the time they cost."""

from __future__ import annotations

from typing import Any

from tachograph.spans._progress import DurationStats

__all__ = ["Checkpoints"]

_MAX_SNAPSHOTS = 64


class Checkpoints:
    """The checkpoints of a job."""

    def __init__(self) -> None:
        self._waits = DurationStats()
        self._snapshots: dict[int, tuple[str, dict[str, Any]]] = {}
        self._best: dict[str, Any] | None = None
        self._num_saves = 0
        self._first_save_at: float | None = None

    def start(self, step: int, strategy: str, progress: dict[str, Any]) -> None:
        """Remember the progress at the start of a save."""
        self._snapshots.pop(step, None)
        self._snapshots[step] = (strategy, progress)
        while len(self._snapshots) > _MAX_SNAPSHOTS:  # saves that never succeeded
            del self._snapshots[next(iter(self._snapshots))]

    def restart(self) -> None:
        """Forget all checkpoints: training started over."""
        self._best = None
        self._snapshots.clear()

    def strategy_of(self, step: int, default: str) -> str:
        """Return the strategy with which the checkpoint of a step is being saved."""
        return self._snapshots[step][0] if step in self._snapshots else default

    def add_save(self, step: int, progress: dict[str, Any], wall_s: float) -> dict[str, Any]:
        """Record that the checkpoint of a step is complete; return the progress that it keeps.

        Args:
            step: the step of the checkpoint.
            progress: the current progress, used if the start of the save was not recorded.
            wall_s: the time.
        """
        best = self._best
        if step in self._snapshots:
            progress = self._snapshots[step][1]
        elif step + 1 < progress["productive_train_iterations"]:
            progress = best or dict.fromkeys(progress, 0)  # an earlier step, whose progress is unknown
        if best is not None and best["productive_train_iterations"] > progress["productive_train_iterations"]:
            progress = best  # an older checkpoint that completes later takes nothing away
        self._best = progress
        self._num_saves += 1
        if self._first_save_at is None:
            self._first_save_at = wall_s
        return {
            "first_successful_save_checkpoint_timestamp_sec": self._first_save_at,
            "latest_successful_save_checkpoint_timestamp_sec": wall_s,
            "save_checkpoint_success_count": self._num_saves,
            **progress,
        }

    def add_wait(self, seconds: float) -> dict[str, float]:
        """Add the time that training waited for a save; return the totals."""
        self._waits.add(seconds)
        return {
            "save_checkpoint_sync_time_total_sec": self._waits.total_s,
            "save_checkpoint_sync_time_min_sec": self._waits.low_s,
            "save_checkpoint_sync_time_max_sec": self._waits.high_s,
        }
