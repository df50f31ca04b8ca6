"""Checkpoints are too expensive or too rare."""

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

_SAVE_SPANS = ("checkpoint_save_sync", "checkpoint_save_async")  # not a set: a span may have an unhashable name


class CheckpointInterval(Rule):
    """Checkpoints are too far apart, or saving them takes too much of the time.

    The optimal interval follows from the duration of a save and the expected time between failures (Young and Daly): it
    is the square root of twice their product. The alert names it. The rule measures the last saves, from
    `checkpoint_save_sync` and `checkpoint_save_async` spans or from `save_s` in checkpoint records. An asynchronous
    save costs the time the training loop waits for it.
    """

    name = "checkpoint_interval"
    severity = "info"
    meaning = (
        "Too rare: a failure loses more work than additional saves would have cost. Too frequent or too slow: the run "
        "spends its time saving."
    )
    advice = (
        "Save about as often as the optimal interval in the alert; set hours_between_failures to the value of your "
        "cluster.",
        "Make saves cheaper: save asynchronously or sharded, to local disks first, and optimizer state less often.",
    )
    record_kinds = ("checkpoint", "span", "span_stop")

    class Thresholds(RuleSettings):
        """When the rule fires."""

        hours_between_failures: Annotated[
            float, Meta(description="Expected hours between two failures of the whole job.", gt=0)
        ] = 24.0
        times_off: Annotated[float, Meta(description="Multiple of the optimal interval that is too long.", gt=1)] = 2.0
        most_share: Annotated[
            float, Meta(description="Maximum share of the time that saving may take.", gt=0, lt=1)
        ] = 0.05
        saves: Annotated[int, Meta(description="Number of recent saves that are measured.", ge=2, le=100)] = 3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all saves."""
        self._saves: deque[tuple[float, float]] = deque(maxlen=self.thresholds.saves)

    def on_record(self, record: dict[str, Any]) -> None:
        """Add a save, if the record describes one."""
        time_s = finite_or_none(record.get("time"))
        save_s = finite_or_none(record.get("save_s"))
        if record["event"] != "checkpoint":
            save_s = finite_or_none(record.get("duration_s")) if record.get("name") in _SAVE_SPANS else None
        if time_s is None or save_s is None or save_s < 0:
            return
        if self._saves and 0 <= time_s - self._saves[-1][0] < save_s:
            return  # the same save, recorded both by its span and by a checkpoint record
        self._saves.append((time_s, save_s))
        if len(self._saves) == self.thresholds.saves:
            self._evaluate()

    def _evaluate(self) -> None:
        limits, saves = self.thresholds, list(self._saves)
        save_s = median(sorted(took_s for _, took_s in saves))
        interval_s = median(sorted(later - earlier for (earlier, _), (later, _) in itertools.pairwise(saves)))
        if interval_s <= 0 or save_s <= 0:
            return
        best_s = math.sqrt(2 * 3600 * limits.hours_between_failures * save_s)
        share = save_s / interval_s
        evidence = {
            "save_s": save_s,
            "interval_s": interval_s,
            "best_interval_s": best_s,
            "share": share,
            "hours_between_failures": limits.hours_between_failures,
            "step": self.context.step,
            "saves": len(saves),
        }
        message = f"A save takes {duration(save_s)}; the optimal interval is about {duration(best_s)}."
        is_too_frequent, is_too_rare = share > limits.most_share, interval_s > limits.times_off * best_s
        if not is_too_frequent and not is_too_rare:
            self.resolve(f"checkpoints are {duration(interval_s)} apart now and take {percent(share)} of the time")
        elif not self.is_open():
            title = f"Checkpoints are {duration(interval_s)} apart: a failure would lose a lot of work"
            if is_too_frequent:
                title = f"Saving checkpoints takes {percent(share)} of the time"
            self.report(title, message, evidence=evidence)
