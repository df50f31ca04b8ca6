"""Memory that grows."""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._slope import slope_of
from tachograph.diagnostics._text import duration, figure
from tachograph.records import finite_or_none

__all__ = ["MemoryGrowth"]

_POINTS = 64


class MemoryGrowth(Rule):
    """The memory of the process or of a GPU grows steadily, and will be full within a day.

    Peaks over equal stretches of time are kept, and longer stretches as the run gets longer. A line is laid through the
    later half of them; if its slope is far beyond its own error, it is followed to where the memory ends. Nothing is
    said in the first minutes, in which memory grows in most runs, nor of a growth that slows down by itself.
    """

    name = "memory_growth"
    meaning = (
        "Something is kept that should be let go: losses added up as tensors with their graph, a list of outputs or "
        "batches, a cache without a limit, data workers that copy what they touch."
    )
    advice = (
        "Add up loss.item() or loss.detach(), never the loss itself.",
        "On the host, compare two tracemalloc snapshots; on the GPU use torch.cuda.memory._record_memory_history().",
        "Limit caches; use arrays instead of lists of Python objects in datasets that workers share.",
    )
    kinds = ("system",)

    class Thresholds(RuleSettings):
        """When it fires."""

        horizon_h: Annotated[float, Meta(description="Hours within which the memory must be full.", gt=0)] = 24.0
        critical_h: Annotated[float, Meta(description="Hours within which that is critical.", gt=0)] = 1.0
        least_growth: Annotated[
            float, Meta(description="Growth over the stretch looked at, as a share of what is in use.", gt=0)
        ] = 0.03
        least_gb: Annotated[float, Meta(description="And in GiB.", gt=0)] = 0.25
        sigmas: Annotated[float, Meta(description="How many times its error the slope must be.", gt=0)] = 6.0
        least_s: Annotated[
            float, Meta(description="Seconds for which it must have grown, unless less than that is left.", ge=0)
        ] = 600.0

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._peaks: dict[str, _Peaks] = {}
        self._is_critical: dict[str, bool] = {}

    def on_record(self, record: dict[str, Any]) -> None:
        """Take a sample of the host and of each GPU."""
        time_s = finite_or_none(record.get("time"))
        if time_s is None:
            return
        rss_mb, free_gb = (
            finite_or_none(record.get("cpu_mem_rss_mb")),
            finite_or_none(record.get("host_mem_available_gb")),
        )
        if rss_mb is not None and free_gb is not None:
            self._take("cpu_mem_rss_mb", "the process", time_s, rss_mb / 1024, rss_mb / 1024 + free_gb)
        for name, value in record.items():
            if name.startswith("gpu/") and name.endswith("/mem_used_gb"):
                total = finite_or_none(record.get(f"{name[: -len('used_gb')]}total_gb"))
                used = finite_or_none(value)
                if used is not None and total is not None:
                    self._take(name, f"GPU {name.split('/')[1]}", time_s, used, total)

    def _take(self, name: str, whose: str, time_s: float, used_gb: float, limit_gb: float) -> None:
        peaks = self._peaks.setdefault(name, _Peaks())
        if not peaks.take(time_s, used_gb):
            return
        per_s, error = peaks.slope()
        stretch_s = peaks.stretch_s()
        grown_gb = per_s * stretch_s
        limits = self.thresholds
        left_s = max(limit_gb - used_gb, 0.0) / per_s if per_s > 0 else math.inf
        is_urgent = left_s < stretch_s and self.now.step is not None  # loading a model is no leak
        is_growing = (
            (stretch_s >= limits.least_s or is_urgent)
            and per_s > limits.sigmas * error
            and grown_gb >= limits.least_gb
            and grown_gb >= limits.least_growth * used_gb
            and not peaks.is_slowing()
        )
        if not is_growing or left_s > 3600 * limits.horizon_h:
            if per_s < 3 * error or left_s > 2 * 3600 * limits.horizon_h:
                self.over(f"the memory of {whose} does not grow any more: {figure(used_gb)} GiB", key=name)
            return
        is_critical = left_s < 3600 * limits.critical_h
        if self.is_open(name) and not (is_critical and not self._is_critical.get(name)):
            return
        self._is_critical[name] = is_critical
        evidence = {
            "metric": name,
            "used_gb": used_gb,
            "limit_gb": limit_gb,
            "gb_per_hour": 3600 * per_s,
            "hours_left": left_s / 3600,
            "window_s": stretch_s,
            "step": self.now.step,
        }
        title = f"Memory of {whose} grows by {figure(3600 * per_s)} GiB an hour and is full in {duration(left_s)}"
        message = f"It uses {figure(used_gb)} of {figure(limit_gb)} GiB now."
        self.found(title, message, key=name, severity="critical" if is_critical else None, evidence=evidence)


class _Peaks:
    """Peaks over equal stretches of time; when there are many, two become one."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._per_point = 1
        self._waiting: list[tuple[float, float]] = []

    def take(self, time_s: float, value: float) -> bool:
        """Take a sample; return whether there is a new peak, and enough of them."""
        self._waiting.append((time_s, value))
        if len(self._waiting) < self._per_point:
            return False
        self._points.append((self._waiting[-1][0], max(value for _, value in self._waiting)))
        self._waiting = []
        if len(self._points) >= _POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            self._points = [(later[0], max(earlier[1], later[1])) for earlier, later in pairs]
            self._per_point *= 2
        return len(self._points) >= _POINTS // 4

    def _later(self) -> list[tuple[float, float]]:
        return self._points[len(self._points) // 2 :]

    def stretch_s(self) -> float:
        """Return how long the stretch is that the slope is of."""
        points = self._later()
        return points[-1][0] - points[0][0]

    def is_slowing(self) -> bool:
        """Tell whether the growth is coming to its end by itself, as that of a cache that fills."""
        points = self._later()
        half = len(points) // 2
        return slope_of(*zip(*points[half:], strict=True))[0] < 0.5 * slope_of(*zip(*points[:half], strict=True))[0]

    def slope(self) -> tuple[float, float]:
        """Return the growth per second over the later half, and its error."""
        return slope_of(*zip(*self._later(), strict=True))
