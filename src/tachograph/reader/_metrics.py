"""Summaries of the metrics of a run: count, last value, extremes; and metrics recorded under two names."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from tachograph.reader._batches import RecordBatch
from tachograph.records import METRIC_KINDS, SIGNALS, is_number, signal_of, step_of

__all__ = ["NOT_METRICS", "MetricSummaries", "MetricSummary", "cover_windows", "find_copies"]

NOT_METRICS = frozenset({"event", "time", "global_step"})
"""Fields of a metric record that locate a point but are not metrics."""


class MetricSummary(msgspec.Struct):
    """Summary of a metric; the extremes cover finite values only."""

    kind: str = "step"
    """The kind of the first record with this metric."""
    count: int = 0
    last: float = math.nan
    last_step: int | None = None
    low: float = math.inf
    high: float = -math.inf
    num_not_finite: int = 0

    def add(self, value: float, step: int | None) -> None:
        """Add a value."""
        self.count += 1
        self.last, self.last_step = value, step
        if not -math.inf < value < math.inf:
            self.num_not_finite += 1
            return
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def add_many(self, values: list[float], step: int | None) -> None:
        """Add consecutive values; `step` is the step of the last one."""
        *before, last = values
        self.count += len(before)
        finite = before
        # The sum is finite only if every value is; it may overflow, which costs only time.
        if not -math.inf < sum(before) < math.inf:
            finite = [value for value in before if -math.inf < value < math.inf]
            self.num_not_finite += len(before) - len(finite)
        if finite:
            self.low = min(self.low, *finite)
            self.high = max(self.high, *finite)
        self.add(last, step)


def cover_windows(summaries: dict[str, MetricSummary]) -> dict[str, MetricSummary]:
    """Return summaries whose extremes cover all steps of a window, and not only the latest one, which is recorded.

    With `log_every` above 1, or after thinning, ``loss/min`` and ``loss/max`` have the extremes of ``loss``.
    """
    if "window_steps" not in summaries:
        return summaries
    covering = dict(summaries)
    for name, summary in summaries.items():
        low, high = summaries.get(f"{name}/min"), summaries.get(f"{name}/max")
        if low is not None and high is not None:
            extremes = {"low": min(summary.low, low.low), "high": max(summary.high, high.high)}
            covering[name] = msgspec.structs.replace(summary, **extremes)
    return covering


_COPIED_SIGNALS = ("loss", "val_loss", "lr", "grad_norm")
"""Signals that integrations record under their own name and under the trainer's."""


def find_copies(summaries: Mapping[str, MetricSummary]) -> dict[str, str]:
    """Return the metrics that repeat another one under a different name, with the name to use instead.

    Two metrics are the same if they are the same signal and agree in the number of values, the last one and the
    extremes. Of their names, the one that comes first in `SIGNALS` is used.
    """
    first: dict[tuple[object, ...], str] = {}
    candidates = []
    for name in summaries:
        signal, rank = signal_of(name) or ("", 0)
        # Past the list are learning rates of several optimizers, which may be equal without being the same.
        if signal in _COPIED_SIGNALS and rank < len(SIGNALS[signal]):
            candidates.append((rank, name, signal))
    copies: dict[str, str] = {}
    for _, name, signal in sorted(candidates):
        each = summaries[name]
        key = (signal, each.count, repr(each.last), each.last_step, each.low, each.high, each.num_not_finite)
        better = first.setdefault(key, name)
        if better != name:
            copies[name] = better
    return copies


class MetricSummaries:
    """Summarises all metrics of a run."""

    def __init__(self) -> None:
        self.summaries: dict[str, MetricSummary] = {}
        self._step: int | None = None

    def add(self, batch: RecordBatch) -> None:
        """Add a batch of records; a record without a step belongs to the last step."""
        records = batch.records
        if batch.are_plain_steps:
            for name in batch.names:
                column = [(record[name], record["global_step"]) for record in records if is_number(record[name])]
                if column and name not in NOT_METRICS:
                    self._summary(name, "step").add_many([value for value, _ in column], column[-1][1])
            self._step = records[-1]["global_step"]
            return
        if batch.event not in METRIC_KINDS:
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
