"""The metrics of a run, each in a few numbers."""

from __future__ import annotations

import math

import msgspec

from tachograph.reader._digest import RecordBatch
from tachograph.records import METRIC_KINDS, is_number, step_of

__all__ = ["NOT_METRICS", "MetricSummaries", "MetricSummary"]

NOT_METRICS = frozenset({"event", "time", "global_step"})
"""Fields of a metric record that are where a point lies, not what it says."""


class MetricSummary(msgspec.Struct):
    """A metric in a few numbers; the extremes are over finite values."""

    kind: str = "step"
    """The kind of record it was first seen in."""
    count: int = 0
    last: float = math.nan
    last_step: int | None = None
    low: float = math.inf
    high: float = -math.inf
    num_not_finite: int = 0

    def add(self, value: float, step: int | None) -> None:
        """Take one more value."""
        self.count += 1
        self.last, self.last_step = value, step
        if not -math.inf < value < math.inf:
            self.num_not_finite += 1
            return
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def add_many(self, values: list[float], step: int | None) -> None:
        """Take values that were recorded one after the other, the last of them at a step."""
        *before, last = values
        self.count += len(before)
        finite = before
        if not -math.inf < sum(before) < math.inf:
            finite = [value for value in before if -math.inf < value < math.inf]
            self.num_not_finite += len(before) - len(finite)
        if finite:
            self.low = min(self.low, *finite)
            self.high = max(self.high, *finite)
        self.add(last, step)


class MetricSummaries:
    """Sums up every metric of a run."""

    def __init__(self) -> None:
        self.summaries: dict[str, MetricSummary] = {}
        self._step: int | None = None

    def take(self, alike: RecordBatch) -> None:
        """Take neighbours that are alike; what has no step of its own was recorded at the last one."""
        records = alike.records
        if alike.are_plain_steps:
            for name in alike.names:
                column = [(record[name], record["global_step"]) for record in records if is_number(record[name])]
                if column and name not in NOT_METRICS:
                    self._summary(name, "step").add_many([value for value, _ in column], column[-1][1])
            self._step = records[-1]["global_step"]
            return
        if alike.event not in METRIC_KINDS:
            return
        for record in records:
            if (step := step_of(record)) is not None:
                self._step = step
            for name, value in record.items():
                if is_number(value) and name not in NOT_METRICS:
                    self._summary(name, record["event"]).add(value, self._step)

    def _summary(self, name: str, kind: str) -> MetricSummary:
        summary = self.summaries.get(name)
        if summary is None:
            summary = self.summaries[name] = MetricSummary(kind=kind)
        return summary
