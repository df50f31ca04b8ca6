"""What checkpoints keep, and what they cost. Numbers in, numbers out, like the progress of loops."""

from __future__ import annotations

from typing import Any

from tachograph.spans._progress import Stats

__all__ = ["Checkpoints"]

_MOST_SNAPSHOTS = 64


class Checkpoints:
    """The checkpoints of a job."""

    def __init__(self) -> None:
        self._waits = Stats()
        self._snapshots: dict[int, tuple[str, dict[str, Any]]] = {}
        self._best: dict[str, Any] | None = None
        self._num_saved = 0
        self._first_saved_s: float | None = None

    def begin(self, step: int, strategy: str, productive: dict[str, Any]) -> None:
        """Take it that a checkpoint is being made of what is there now."""
        self._snapshots.pop(step, None)
        self._snapshots[step] = (strategy, productive)
        while len(self._snapshots) > _MOST_SNAPSHOTS:  # of saves that never succeeded
            del self._snapshots[next(iter(self._snapshots))]

    def restart(self) -> None:
        """Forget what was kept: training began anew."""
        self._best = None
        self._snapshots.clear()

    def strategy_of(self, step: int, default: str) -> str:
        """Return how the checkpoint of a step is being saved."""
        return self._snapshots[step][0] if step in self._snapshots else default

    def saved(self, step: int, productive: dict[str, Any], wall_s: float) -> dict[str, Any]:
        """Take it that the checkpoint of a step is safe; return what is productive with it.

        Args:
            step: the step it is of.
            productive: what is there now, for a checkpoint whose beginning nobody told.
            wall_s: the time.
        """
        best = self._best
        if step in self._snapshots:
            productive = self._snapshots[step][1]
        elif step + 1 < productive["productive_train_iterations"]:
            productive = best or dict.fromkeys(productive, 0)  # of an earlier step, and nobody told what was done then
        if best is not None and best["productive_train_iterations"] > productive["productive_train_iterations"]:
            productive = best  # an older one that was finished later takes nothing away
        self._best = productive
        self._num_saved += 1
        if self._first_saved_s is None:
            self._first_saved_s = wall_s
        return {
            "first_successful_save_checkpoint_timestamp_sec": self._first_saved_s,
            "latest_successful_save_checkpoint_timestamp_sec": wall_s,
            "save_checkpoint_success_count": self._num_saved,
            **productive,
        }

    def waited(self, seconds: float) -> dict[str, float]:
        """Take it that training waited for a save; return what all of them come to."""
        self._waits.add(seconds)
        return {
            "save_checkpoint_sync_time_total_sec": self._waits.total_s,
            "save_checkpoint_sync_time_min_sec": self._waits.low_s,
            "save_checkpoint_sync_time_max_sec": self._waits.high_s,
        }
