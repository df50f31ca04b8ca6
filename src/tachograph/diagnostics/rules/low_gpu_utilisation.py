"""A GPU is mostly idle."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure
from tachograph.records import finite_or_none

__all__ = ["LowGpuUtilisation"]


class LowGpuUtilisation(Rule):
    """GPUs of the run are busy only a small part of the time while steps are being made.

    The rule uses the utilisation that the driver reports, never the memory in use. Utilisation says that a kernel was
    running, not that it used the GPU well: a low value is a fault, but a high value proves nothing.
    """

    name = "low_gpu_utilisation"
    meaning = (
        "The GPU waits: for data, for a Python loop that launches small kernels one by one, or for other ranks. Or the "
        "model and the batch are too small for it."
    )
    advice = (
        "Check the share of time spent waiting for data first.",
        "Use larger batches, torch.compile or CUDA graphs; avoid .item() calls and prints in the loop.",
        "If the model is that small, use a smaller GPU or run several jobs on one.",
    )
    record_kinds = ("system",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        least_pct: Annotated[
            float, Meta(description="Mean utilisation in percent below which the rule fires.", gt=0, le=100)
        ] = 50.0
        samples: Annotated[int, Meta(description="Number of system samples in the mean.", ge=2)] = 36

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all samples."""
        self._samples: dict[str, deque[float]] = {}
        self._last_step: int | None = None
        self._num_low = 0

    def on_record(self, record: dict[str, Any]) -> None:
        """Add a sample, if there were steps since the last one."""
        step, self._last_step = self._last_step, self.context.step
        if self.context.step is None or step is None or self.context.step == step:
            return  # a GPU may be idle during setup, validation or a checkpoint
        for name, value in record.items():
            if name.startswith("gpu/") and name.endswith("/util_pct") and (share := finite_or_none(value)) is not None:
                self._samples.setdefault(name, deque(maxlen=self.thresholds.samples)).append(share)
        self._evaluate()

    def _evaluate(self) -> None:
        limits = self.thresholds
        means = {
            name: sum(samples) / len(samples)
            for name, samples in self._samples.items()
            if len(samples) == limits.samples
        }
        low = sorted((mean, name) for name, mean in means.items() if mean < limits.least_pct)
        if self.is_open():
            # Clearly higher than the threshold, so that the alert does not flap.
            if means and min(means.values()) > 1.2 * limits.least_pct:
                self.resolve(f"{_gpus(list(means))} busy at least {figure(min(means.values()))} % of the time now")
            elif len(low) > self._num_low:
                self._report(low)
        elif low:
            self._report(low)

    def _report(self, low: list[tuple[float, str]]) -> None:
        # One alert for all GPUs: the cause usually makes all of them wait.
        self._num_low = len(low)
        mean, lowest = low[0]
        evidence = {
            "metric": lowest,
            "mean_pct": mean,
            "gpus": [_number(name) for _, name in low],
            "samples": self.thresholds.samples,
            "step": self.context.step,
        }
        busy = f"{figure(mean)} %" if len(low) == 1 else f"{figure(mean)} to {figure(low[-1][0])} %"
        self.report(f"{_gpus([name for _, name in low])} busy only {busy} of the time", evidence=evidence)


def _number(name: str) -> str:
    return name.split("/")[1]


def _gpus(names: list[str]) -> str:
    numbers = sorted((_number(name) for name in names), key=lambda number: (len(number), number))
    return f"GPU {numbers[0]} is" if len(numbers) == 1 else f"GPUs {', '.join(numbers)} are"
