"""From records of ranks to scored windows: labels, collector and scorer together."""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.diagnostics._ranks._collector import WindowCollector
from tachograph.diagnostics._ranks._labels import RankLabels
from tachograph.diagnostics._ranks._scores import ScoredWindow, WindowScorer
from tachograph.records import RankWindow

__all__ = ["RankJudge"]


class RankJudge:
    """Compares the ranks of one attempt. Its state depends on the number of ranks only."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.labels = RankLabels(world_size)
        self.restart()

    def restart(self) -> None:
        """Forget all windows, but not the labels: a new attempt starts."""
        self._collector = WindowCollector(self.world_size)
        self._scorer = WindowScorer(self.labels, self.world_size)

    def restart_rank(self, rank: int) -> None:
        """Forget the windows of one rank: another process has its number now."""
        self._collector.restart(rank)
        self._scorer.restart(rank)

    def set_labels(self, rank: int, host: str | None, coordinates: Mapping[str, int]) -> None:
        """Set the host of a rank and its position in the mesh of the job."""
        self.labels.set(rank, host, coordinates)

    def add(self, rank: int, window: RankWindow) -> list[ScoredWindow]:
        """Add the window of a rank; return the windows that all ranks have reported now, oldest first."""
        tables = self._collector.add(rank, window)
        scored_windows = [self._scorer.score(times) for times in tables] if tables else []
        return [window for window in scored_windows if window is not None]
