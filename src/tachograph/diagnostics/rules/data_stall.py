"""Training waits for data."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import percent

__all__ = ["DataStall"]


class DataStall(Rule):
    """A large share of the time of the training loop is spent waiting for the next batch.

    It is measured in the process, by the `data_loading` spans, as the share of each window; the mean over several
    windows counts.
    """

    name = "data_stall"
    meaning = (
        "The accelerator waits for the data loader: storage, decoding, augmentation or tokenisation cannot keep up."
    )
    advice = (
        "Use more workers, pin_memory and a larger prefetch_factor; keep workers alive between epochs.",
        "Decode, resize and tokenise once and store the result; put the data on local disks.",
        "Read larger chunks in order; see whether the host's CPUs are all busy.",
    )
    hears_each = ("data_share",)
    absorbs = ("low_gpu_utilisation",)

    class Thresholds(RuleSettings):
        """When it fires."""

        share: Annotated[float, Meta(description="Share of the time that is too much.", gt=0, lt=1)] = 0.25
        windows: Annotated[int, Meta(description="Windows over which the mean is taken.", ge=1, le=1000)] = 6

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._shares: deque[float] = deque(maxlen=self.thresholds.windows)

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Take the share of a window."""
        if not math.isfinite(value):
            return
        self._shares.append(value)
        if len(self._shares) < self.thresholds.windows:
            return
        mean = sum(self._shares) / len(self._shares)
        if self.is_open():
            if mean < 0.6 * self.thresholds.share:
                self.over(f"waiting for data takes {percent(mean)} of the time now")
        elif mean >= self.thresholds.share:
            evidence = {"metric": metric, "share": mean, "step": self.now.step, "windows": len(self._shares)}
            title = f"{percent(mean)} of the time is spent waiting for data"
            self.found(title, f"That is the mean over the last {len(self._shares)} windows.", evidence=evidence)
