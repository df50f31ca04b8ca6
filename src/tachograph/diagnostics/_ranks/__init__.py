"""Compares the ranks of a distributed job, window by window. Needs numpy; imported when a second rank appears."""

from tachograph.diagnostics._ranks._judge import RankJudge
from tachograph.diagnostics._ranks._map import RankMapBuilder
from tachograph.diagnostics._ranks._scores import ScoredWindow, SlowGroup, Spike
from tachograph.diagnostics._ranks._stragglers import SlowRanks, StragglerDetector, StragglerLimits

__all__ = [
    "RankJudge",
    "RankMapBuilder",
    "ScoredWindow",
    "SlowGroup",
    "Spike",
    "SlowRanks",
    "StragglerDetector",
    "StragglerLimits",
]
