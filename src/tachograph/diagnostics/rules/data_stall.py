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
    """The training loop spends a large share of its time waiting for the next batch.

    The `data_loading` spans measure that share in the training process, for each window. The rule uses the mean over
    several windows.
    """

    name = "data_stall"
    meaning = (
        "The accelerator waits for the data loader: storage, decoding, augmentation or tokenisation cannot keep up."
    )
    advice = (
        "Use more workers, pin_memory and a larger prefetch_factor; keep workers alive between epochs.",
        "Decode, resize and tokenise once and store the result; put the data on local disks.",
        "Read larger chunks sequentially; check whether all CPU cores of the host are busy.",
    )
    value_signals = ("data_share",)
    absorbs = ("low_gpu_utilisation",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        share: Annotated[float, Meta(description="Minimum share of the time spent waiting for data.", gt=0, lt=1)] = (
            0.25
        )
        windows: Annotated[int, Meta(description="Number of windows in the mean.", ge=1, le=1000)] = 6

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all windows."""
        self._shares: deque[float] = deque(maxlen=self.thresholds.windows)

    def on_value(self, signal: str, metric: str, value: float) -> None:
        """Add the share of a window."""
        if not math.isfinite(value):
            return
        self._shares.append(value)
        if len(self._shares) < self.thresholds.windows:
            return
        mean = sum(self._shares) / len(self._shares)
        if self.is_open():
            if mean < 0.6 * self.thresholds.share:  # clearly lower, so that the alert does not flap
                self.resolve(f"waiting for data takes {percent(mean)} of the time now")
        elif mean >= self.thresholds.share:
            num_windows = len(self._shares)
            evidence = {"metric": metric, "share": mean, "step": self.context.step, "windows": num_windows}
            windows = "last window" if num_windows == 1 else f"last {num_windows} windows"
            message = f"This is the mean over the {windows}."
            self.report(f"Training spends {percent(mean)} of its time waiting for data", message, evidence=evidence)
