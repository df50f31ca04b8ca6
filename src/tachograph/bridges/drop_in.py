"""Shared by the facades of other trackers, such as `tachograph.wandb`, and by `tacho run`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tachograph._base.guard import warn
from tachograph.exceptions import NoRunError
from tachograph.recorder import Run, current_run

__all__ = [
    "RunEndCallback",
    "UnrecordedCalls",
    "as_number",
    "as_scalar",
    "histogram",
    "log_histogram",
    "log_media",
    "num_values",
    "observed_step",
    "place_row",
    "run_to_join",
]

_MAX_BINS = 512


class RunEndCallback:
    """Calls a function when a run ends, however it ends."""

    def __init__(self, run: Run, function: Callable[[], None]) -> None:
        self._function = function
        run.collectors.append(self)

    def collect(self) -> None:
        """Do nothing before the end."""

    def close(self) -> None:
        """Call the function."""
        self._function()

    def forget(self) -> None:
        """In a forked child, the run belongs to the parent."""


class UnrecordedCalls:
    """Counts the calls of a run whose data are not recorded, and records the counts when the run ends."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._calls: Counter[str] = Counter()
        RunEndCallback(run, self._record)

    def count(self, name: str, reason: str) -> None:
        """Count a call; the first one of each name is a warning."""
        if name not in self._calls:
            warn("%s: %s; the run counts the calls", name, reason)
        self._calls[name] += 1

    def _record(self) -> None:
        if self._calls:
            self._run.event("not_recorded", **self._calls)


def observed_step(run: Run) -> int | None:
    """Return the iteration to which a row of a script belongs; None if no integration observes a loop."""
    row_step = getattr(run.span_recorder, "row_step", None)
    return row_step() if row_step is not None else None


def place_row(run: Run, tool: str, step: int | None, count: int | None = None) -> tuple[int | None, dict[str, int]]:
    """Return the step at which to record a row of another tracker, and a column for the script's step if it differs.

    The steps of a loop that an integration observes are iterations. A script may count epochs, tokens or batches
    instead; then the row belongs to the iteration in which it was logged. A count that starts at 1 is accepted.

    Args:
        run: the run that records the row.
        tool: the name of the tracker.
        step: the step that the script states.
        count: the step that the tracker counts itself, used if nothing else is known.
    """
    iteration = observed_step(run)
    if iteration is None:
        return (count if step is None else step), {}
    if step is None or step == iteration:
        return iteration, {}
    if step == iteration + 1:
        return type(iteration)(step), {}
    return iteration, {f"{tool}_step": step}


def log_media(run: Run, name: str, media: Any, step: int | None, step_column: Mapping[str, int]) -> None:
    """Record media where `place_row` puts them, each item with the script's step.

    In an observed loop, a script may log several times under one name until the next iteration. All of it is shown.

    Args:
        run: the run that records the media.
        name: the name of the media.
        media: one or several media values.
        step: the step of the record.
        step_column: the column for the script's step.
    """
    is_observed = observed_step(run) is not None
    items = [copy.copy(value) for value in (media if isinstance(media, (list, tuple)) else [media])]
    for item in items:
        item.meta = {**item.meta, **step_column}
        item.joined_step = None if step is None or not is_observed else int(step)
    run.log({name: items}, step)


def run_to_join() -> Run | None:
    """Return the run that is being recorded, or None."""
    try:
        return current_run()
    except NoRunError:
        return None


def as_scalar(value: Any) -> Any:
    """Return an array with one element without its dimensions; other values unchanged."""
    return value.reshape(()) if getattr(value, "ndim", 0) and num_values(value) == 1 else value


def num_values(array: Any) -> int:
    """Return the number of elements of an array or a tensor."""
    return int(array.numel() if hasattr(array, "numel") else getattr(array, "size", 0))


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
    numbers = {"counts": [as_number(count) for count in counts], "edges": [as_number(edge) for edge in edges]}
    run.event("histogram", step=step, tag=tag, **numbers, **more)


def as_number(value: Any) -> Any:
    """Return a scalar of a library as a number; other values unchanged."""
    return value.item() if hasattr(value, "item") else value
