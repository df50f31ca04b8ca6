"""`DeviceTimer`: how long a part of a step takes on its device, without waiting for the device in the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from tachograph.plugins._report import PluginReport

__all__ = ["DeviceTimer"]


class DeviceTimer:
    """Adds durations in milliseconds to a metric. Call `flush`, which reads GPU times, when the trainer logs."""

    def __init__(self, report: PluginReport, metric: str) -> None:
        self._report = report
        self._metric = metric
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def measure(self, device: torch.device) -> Iterator[None]:
        """Measure a `with` block whose work runs on a device."""
        if device.type != "cuda":
            start_s = perf_counter()
            yield
            self._report.add(self._metric, (perf_counter() - start_s) * 1e3)
            return
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._events.append((start, end))

    def flush(self) -> None:
        """Add the durations that a GPU has measured. The trainer has just read the loss, so they are complete."""
        events, self._events = self._events, []
        for start, end in events:
            end.synchronize()
            self._report.add(self._metric, start.elapsed_time(end))
