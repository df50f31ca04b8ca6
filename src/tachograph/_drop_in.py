"""What the drop-ins for other trackers share: `tachograph.tensorboard` and `tachograph.wandb`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tachograph._base.guard import warn
from tachograph.recorder import Run

__all__ = ["NotRecorded", "as_scalar", "histogram", "log_histogram"]

_MAX_BINS = 512


class NotRecorded:
    """Counts the calls of a run whose data are not recorded, and records the counts when the run ends."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._calls: Counter[str] = Counter()
        run.collectors.append(self)

    def count(self, name: str, reason: str) -> None:
        """Count a call; the first one of each name is a warning."""
        if name not in self._calls:
            warn("%s: %s; the run counts the calls", name, reason)
        self._calls[name] += 1

    def collect(self) -> None:
        """Do nothing: the calls are counted until the run ends."""

    def close(self) -> None:
        """Record the counts; called when the run ends, however it ends."""
        if self._calls:
            self._run.event("not_recorded", **self._calls)

    def forget(self) -> None:
        """In a forked child, the run belongs to the parent."""


def as_scalar(value: Any) -> Any:
    """Return an array with one element without its dimensions; other values unchanged."""
    if getattr(value, "ndim", 0):
        num_values = value.numel() if hasattr(value, "numel") else getattr(value, "size", None)
        return value.reshape(()) if num_values == 1 else value
    return value


def histogram(values: Any, num_bins: int) -> tuple[list[int], list[float], int]:
    """Return counts and edges of bins of equal width, and the number of values that are not finite."""
    import numpy as np

    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()  # numpy has no bfloat16
    array = np.asarray(values, dtype=np.float64).ravel()
    finite = array[np.isfinite(array)]
    counts, edges = np.histogram(finite, bins=max(1, min(num_bins, _MAX_BINS)))
    return counts.tolist(), edges.tolist(), array.size - finite.size


def log_histogram(
    run: Run, tag: str, counts: Iterable[Any], edges: Iterable[Any], *, step: int | None = None, **more: Any
) -> None:
    """Record a distribution as an event named `histogram`."""
    numbers = {"counts": [_as_number(count) for count in counts], "edges": [_as_number(edge) for edge in edges]}
    run.event("histogram", step=step, tag=tag, **numbers, **more)


def _as_number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
