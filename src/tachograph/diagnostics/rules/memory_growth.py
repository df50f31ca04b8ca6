"""Memory use keeps growing."""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._slope import fit_slope
from tachograph.diagnostics._text import duration, figure, percent
from tachograph.records import finite_or_none

__all__ = ["MemoryGrowth"]

_MAX_POINTS = 64


class MemoryGrowth(Rule):
    """The memory of the process or of a GPU grows steadily and will be full within a day.

    The rule keeps the peaks over equal intervals, which become longer as the run does, and fits a line to the later
    half of them. If the slope is far larger than its error, the rule extrapolates it to the end of the memory. It
    ignores the first minutes, in which memory grows in most runs, and growth that is slowing down by itself.

    Where the training code records the memory of a GPU itself, its total is unknown. It must then have grown by a
    larger share of the used memory.
    """

    name = "memory_growth"
    meaning = (
        "Something is kept that should be released: losses summed as tensors together with their graph, a list of "
        "outputs or batches, an unbounded cache, or data workers that copy the memory they touch."
    )
    advice = (
        "Sum loss.item() or loss.detach(), never the loss itself.",
        "On the host, compare two tracemalloc snapshots; on the GPU, use torch.cuda.memory._record_memory_history().",
        "Bound caches; use arrays instead of lists of Python objects in datasets that workers share.",
    )
    record_kinds = ("system",)
    block_signals = ("gpu_memory",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        horizon_h: Annotated[float, Meta(description="Hours within which the memory will be full.", gt=0)] = 24.0
        critical_h: Annotated[float, Meta(description="Hours left at which the alert becomes critical.", gt=0)] = 1.0
        least_growth: Annotated[
            float, Meta(description="Minimum growth over the fitted stretch, as a share of the memory in use.", gt=0)
        ] = 0.03
        least_unlimited_growth: Annotated[
            float, Meta(description="The same share where the total memory is unknown.", gt=0)
        ] = 0.1
        least_gb: Annotated[float, Meta(description="Minimum growth over the fitted stretch, in GiB.", gt=0)] = 0.25
        sigmas: Annotated[float, Meta(description="Minimum slope as a multiple of its error.", gt=0)] = 6.0
        least_s: Annotated[
            float, Meta(description="Seconds for which it must have grown, unless less time than that is left.", ge=0)
        ] = 600.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all samples."""
        self._peaks: dict[str, _Peaks] = {}
        self._is_critical: dict[str, bool] = {}

    def on_record(self, record: dict[str, Any]) -> None:
        """Add a sample of the host and of each GPU."""
        time_s = finite_or_none(record.get("time"))
        if time_s is None:
            return
        rss_mb = finite_or_none(record.get("cpu_mem_rss_mb"))
        free_gb = finite_or_none(record.get("host_mem_available_gb"))
        if rss_mb is not None and free_gb is not None:
            self._add_sample("cpu_mem_rss_mb", "the process", time_s, rss_mb / 1024, rss_mb / 1024 + free_gb)
        for name, value in record.items():
            if name.startswith("gpu/") and name.endswith("/mem_used_gb"):
                total = finite_or_none(record.get(f"{name[: -len('used_gb')]}total_gb"))
                used_gb = finite_or_none(value)
                if used_gb is not None and total is not None:
                    self._add_sample(name, f"GPU {name.split('/')[1]}", time_s, used_gb, total)

    def on_block(self, stats: SignalStats) -> None:
        """Add the peak of a block of values that the training code recorded."""
        name = stats.metric
        peaks = self._peaks.setdefault(name, _Peaks())
        if not peaks.add(float(stats.num_in_blocks), stats.values[-1]):
            return
        per_value, error = peaks.slope()
        num_values, latest = peaks.fitted_length(), stats.values[-1]
        growth = per_value * num_values
        if latest <= 0 or per_value < 3 * error:
            self.resolve(f"{name} has stopped growing, at {figure(latest)}", key=name)
            return
        limits = self.thresholds
        is_growing = per_value > limits.sigmas * error and growth >= limits.least_unlimited_growth * latest
        if is_growing and not peaks.is_slowing() and not self.is_open(name):
            evidence = {
                "metric": name,
                "used": latest,
                "grown": growth,
                "values": num_values,
                "step": self.context.step,
            }
            title = f"GPU memory ({name}) has grown by {percent(growth / (latest - growth))} in {num_values:.0f} values"
            self.report(title, f"It is at {figure(latest)} and keeps growing.", key=name, evidence=evidence)

    def _add_sample(self, name: str, owner: str, time_s: float, used_gb: float, limit_gb: float) -> None:
        peaks = self._peaks.setdefault(name, _Peaks())
        if not peaks.add(time_s, used_gb):
            return
        per_s, error = peaks.slope()
        fitted_s = peaks.fitted_length()
        growth_gb = per_s * fitted_s
        limits = self.thresholds
        until_full_s = max(limit_gb - used_gb, 0.0) / per_s if per_s > 0 else math.inf
        is_loading = self.context.step is None  # before the first step, a model is loading
        is_urgent = until_full_s < fitted_s and not is_loading
        is_growing = (
            (fitted_s >= limits.least_s or is_urgent)
            and per_s > limits.sigmas * error
            and growth_gb >= limits.least_gb
            and growth_gb >= limits.least_growth * used_gb
            and not peaks.is_slowing()
        )
        if not is_growing or until_full_s > 3600 * limits.horizon_h:
            # Resolving takes a slope near zero or twice the horizon, so that the alert does not flap.
            if per_s < 3 * error or until_full_s > 2 * 3600 * limits.horizon_h:
                self.resolve(f"the memory of {owner} has stopped growing, at {figure(used_gb)} GiB", key=name)
            return
        is_critical = until_full_s < 3600 * limits.critical_h
        if self.is_open(name) and not (is_critical and not self._is_critical.get(name)):
            return
        self._is_critical[name] = is_critical
        evidence = {
            "metric": name,
            "used_gb": used_gb,
            "limit_gb": limit_gb,
            "gb_per_hour": 3600 * per_s,
            "hours_left": until_full_s / 3600,
            "window_s": fitted_s,
            "step": self.context.step,
        }
        growth = f"{figure(3600 * per_s)} GiB per hour"
        title = f"Memory of {owner} grows by {growth} and will be full in {duration(until_full_s)}"
        message = f"It uses {figure(used_gb)} of {figure(limit_gb)} GiB now."
        self.report(title, message, key=name, severity="critical" if is_critical else None, evidence=evidence)


class _Peaks:
    """Peaks over equal intervals. When there are too many, neighbours are merged and the interval doubles."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._samples_per_point = 1
        self._pending: list[tuple[float, float]] = []

    def add(self, time_s: float, value: float) -> bool:
        """Add a sample; return whether it completes a peak and there are enough of them."""
        self._pending.append((time_s, value))
        if len(self._pending) < self._samples_per_point:
            return False
        self._points.append((self._pending[-1][0], max(value for _, value in self._pending)))
        self._pending = []
        if len(self._points) >= _MAX_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            self._points = [(later[0], max(earlier[1], later[1])) for earlier, later in pairs]
            self._samples_per_point *= 2
        return len(self._points) >= _MAX_POINTS // 4

    def _later_half(self) -> list[tuple[float, float]]:
        return self._points[len(self._points) // 2 :]

    def fitted_length(self) -> float:
        """Return the length of the interval that the line is fitted to."""
        points = self._later_half()
        return points[-1][0] - points[0][0]

    def is_slowing(self) -> bool:
        """Return whether the growth is ending by itself, as with a cache that fills up."""
        points = self._later_half()
        half = len(points) // 2
        return fit_slope(*zip(*points[half:], strict=True))[0] < 0.5 * fit_slope(*zip(*points[:half], strict=True))[0]

    def slope(self) -> tuple[float, float]:
        """Return the growth per second over the later half, and its error."""
        return fit_slope(*zip(*self._later_half(), strict=True))
