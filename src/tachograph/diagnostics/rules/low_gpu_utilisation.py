"""A GPU that has little to do."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure
from tachograph.records import finite

__all__ = ["LowGpuUtilisation"]


class LowGpuUtilisation(Rule):
    """A GPU of the run is busy for a small part of the time while steps are being made.

    What counts is the utilisation that the driver reports, never how much memory is in use. It says that a kernel was
    running, not that it used the GPU well: a low figure is a fault, a high one is no praise.
    """

    name = "low_gpu_utilisation"
    meaning = (
        "The GPU waits: for data, for a Python loop that launches small kernels one by one, for other ranks, or "
        "because the model and batch are too small for it."
    )
    advice = (
        "Look at the share of time spent on data first.",
        "Use larger batches, torch.compile or CUDA graphs, and fewer .item() calls and prints in the loop.",
        "If the model is that small, use a smaller GPU or run several jobs on one.",
    )
    kinds = ("system",)

    class Thresholds(RuleSettings):
        """When it fires."""

        least_pct: Annotated[float, Meta(description="Mean utilisation below which it fires.", gt=0, le=100)] = 50.0
        samples: Annotated[int, Meta(description="Samples of the system over which the mean is taken.", ge=2)] = 36

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._samples: dict[str, deque[float]] = {}
        self._last_step: int | None = None

    def on_record(self, record: dict[str, Any]) -> None:
        """Take a sample, if steps were made since the last."""
        step, self._last_step = self._last_step, self.now.step
        if self.now.step is None or step is None or self.now.step == step:
            return
        for name, value in record.items():
            if name.startswith("gpu/") and name.endswith("/util_pct") and (share := finite(value)) is not None:
                self._take(name, share)

    def _take(self, name: str, value: float) -> None:
        samples = self._samples.setdefault(name, deque(maxlen=self.thresholds.samples))
        samples.append(value)
        if len(samples) < self.thresholds.samples:
            return
        mean, gpu = sum(samples) / len(samples), name.split("/")[1]
        if mean > 1.2 * self.thresholds.least_pct:
            self.over(f"GPU {gpu} is busy {figure(mean)} % of the time now", key=name)
        elif mean < self.thresholds.least_pct and not self.is_open(name):
            evidence = {"metric": name, "mean_pct": mean, "samples": len(samples), "step": self.now.step}
            self.found(f"GPU {gpu} is busy only {figure(mean)} % of the time", key=name, evidence=evidence)
