"""Checkpoints that cost too much, or come too seldom."""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import median
from tachograph.diagnostics._text import duration, percent
from tachograph.records import finite_or_none

__all__ = ["CheckpointInterval"]

_SAVES = frozenset({"checkpoint_save_sync", "checkpoint_save_async"})


class CheckpointInterval(Rule):
    """Checkpoints are saved too seldom, or saving them takes too much of the time.

    From the time a save takes and the time between failures that is to be expected, the best interval follows
    (Young and Daly): the root of twice their product. The alert tells it. Measured are the last saves, from
    `checkpoint_save_sync` spans or from `save_s` in checkpoint records; an asynchronous save costs what the loop waits.
    """

    name = "checkpoint_interval"
    severity = "info"
    meaning = (
        "Too seldom: a failure throws away more work than the saves in between would have cost. Too often, or too "
        "slow: the run spends its time on saving."
    )
    advice = (
        "Save about as often as the best interval named here says; set hours_between_failures to what your cluster "
        "has.",
        "Make saves cheaper: asynchronous or sharded ones, local disks first, optimizer state less often.",
    )
    kinds = ("checkpoint", "span", "span_stop")

    class Thresholds(RuleSettings):
        """When it fires."""

        hours_between_failures: Annotated[
            float, Meta(description="Hours between two failures of the whole job that are to be expected.", gt=0)
        ] = 24.0
        times_off: Annotated[float, Meta(description="How many times the best interval is too long.", gt=1)] = 2.0
        most_share: Annotated[float, Meta(description="Share of the time that saving may take.", gt=0, lt=1)] = 0.05
        saves: Annotated[int, Meta(description="Saves that must be known.", ge=2, le=100)] = 3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._saves: deque[tuple[float, float]] = deque(maxlen=self.thresholds.saves)

    def on_record(self, record: dict[str, Any]) -> None:
        """Take a save, if the record is of one."""
        time_s = finite_or_none(record.get("time"))
        took_s = finite_or_none(record.get("save_s"))
        if record["event"] != "checkpoint":
            took_s = finite_or_none(record.get("duration_s")) if record.get("name") in _SAVES else None
        if time_s is None or took_s is None or took_s < 0:
            return
        if self._saves and 0 <= time_s - self._saves[-1][0] < took_s:
            return  # the same save, told by its span and by a record
        self._saves.append((time_s, took_s))
        if len(self._saves) == self.thresholds.saves:
            self._judge()

    def _judge(self) -> None:
        limits, saves = self.thresholds, list(self._saves)
        took_s = median(sorted(took for _, took in saves))
        gaps = sorted(later - earlier for (earlier, _), (later, _) in itertools.pairwise(saves))
        interval_s = median(gaps)
        if interval_s <= 0 or took_s <= 0:
            return
        best_s = math.sqrt(2 * 3600 * limits.hours_between_failures * took_s)
        share = took_s / interval_s
        evidence = {
            "save_s": took_s,
            "interval_s": interval_s,
            "best_interval_s": best_s,
            "share": share,
            "hours_between_failures": limits.hours_between_failures,
            "step": self.now.step,
            "saves": len(saves),
        }
        best = f"With saves of {duration(took_s)} about every {duration(best_s)} is best."
        is_new = not self.is_open()
        if share > limits.most_share:
            if is_new:
                self.found(f"Saving checkpoints takes {percent(share)} of the time", best, evidence=evidence)
        elif interval_s > limits.times_off * best_s:
            if is_new:
                self.found(
                    f"Checkpoints are {duration(interval_s)} apart, which is a lot to lose", best, evidence=evidence
                )
        else:
            self.over(f"they are {duration(interval_s)} apart now and take {percent(share)} of the time")
