"""What a loop marks itself, with the spans and callbacks of Tachograph: it is not to be told a second time."""

from __future__ import annotations

from collections.abc import Collection

from tachograph.integrations._common.job import Names
from tachograph.recorder import Run
from tachograph.spans import TrainingRecorder, current_span

__all__ = ["is_inside", "is_marked_by_hand"]

_ITERATION = Names.TRAINING_SINGLE_ITERATION


def is_inside(names: Collection[Names]) -> bool:
    """Tell whether the present place is inside a span of one of these names."""
    span = current_span.get()
    while span is not None:
        if span.stop_s is None and span.name in names:
            return True
        span = span._parent
    return False


def is_marked_by_hand(run: Run | None) -> bool:
    """Tell whether the loop marks the present iteration itself: by a span around it, or by callbacks."""
    span = current_span.get()
    while span is not None:  # written out, for it is asked at every step
        if span.name is _ITERATION and span.stop_s is None:
            return True
        span = span._parent
    recorder = run.span_recorder if run is not None else None
    if not isinstance(recorder, TrainingRecorder) or not recorder.detached:
        return False
    loose = recorder.detached.get(str(_ITERATION))
    return loose is not None and loose.active
