"""A GPU that has little to do."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure
from tachograph.records import finite_or_none

__all__ = ["LowGpuUtilisation"]


class LowGpuUtilisation(Rule):
    """GPUs of the run are busy for a small part of the time while steps are being made.

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
        self._num_low = 0

    def on_record(self, record: dict[str, Any]) -> None:
        """Take a sample, if steps were made since the last."""
        step, self._last_step = self._last_step, self.now.step
        if self.now.step is None or step is None or self.now.step == step:
            return
        for name, value in record.items():
            if name.startswith("gpu/") and name.endswith("/util_pct") and (share := finite_or_none(value)) is not None:
                self._samples.setdefault(name, deque(maxlen=self.thresholds.samples)).append(share)
        self._judge()

    def _judge(self) -> None:
        limits = self.thresholds
        means = {
            name: sum(samples) / len(samples)
            for name, samples in self._samples.items()
            if len(samples) == limits.samples
        }
        low = sorted((mean, name) for name, mean in means.items() if mean < limits.least_pct)
        if self.is_open():
            if means and min(means.values()) > 1.2 * limits.least_pct:
                self.over(f"{_gpus(list(means))} busy {figure(min(means.values()))} % of the time now, or more")
            elif len(low) > self._num_low:
                self._tell(low)
        elif low:
            self._tell(low)

    def _tell(self, low: list[tuple[float, str]]) -> None:
        """Tell of all of them at once: what keeps one GPU waiting mostly keeps the others waiting too."""
        self._num_low = len(low)
        mean, worst = low[0]
        evidence = {
            "metric": worst,
            "mean_pct": mean,
            "gpus": [_number(name) for _, name in low],
            "samples": self.thresholds.samples,
            "step": self.now.step,
        }
        most = f" {figure(low[-1][0])} %" if len(low) == 1 else f" {figure(mean)} to {figure(low[-1][0])} %"
        self.found(f"{_gpus([name for _, name in low])} busy only{most} of the time", evidence=evidence)


def _number(name: str) -> str:
    return name.split("/")[1]


def _gpus(names: list[str]) -> str:
    numbers = sorted((_number(name) for name in names), key=lambda number: (len(number), number))
    return f"GPU {numbers[0]} is" if len(numbers) == 1 else f"GPUs {', '.join(numbers)} are"
