"""A validation that is followed from outside: by the batches that are asked for in it."""

from __future__ import annotations

from tachograph.integrations._common.job import Job, Names
from tachograph.integrations._common.manual_spans import is_inside
from tachograph.spans import Span, validation_loop

__all__ = ["Validation"]

_EVALUATIONS = frozenset({Names.VALIDATION_LOOP, Names.TESTING_LOOP})


class Validation:
    """The validation that goes on, if one does."""

    def __init__(self) -> None:
        self._span: Span | None = None
        self._batch_s = 0.0
        """When the present batch was asked for."""

    @property
    def is_open(self) -> bool:
        """Whether one goes on."""
        return self._span is not None

    def begin(self, job: Job, start_s: float) -> None:
        """Begin one, unless nothing was learnt yet, or the loop has marked it itself."""
        if job.is_in_loop and not is_inside(_EVALUATIONS):
            self._span = job.begin_span(validation_loop(), start_s)
        self._batch_s = start_s

    def batch_done(self, now_s: float) -> None:
        """Say that a batch is done, and the next is asked for."""
        span = self._span
        if span is not None and span.recorder is not None and not span.recorder.is_closed:
            span.recorder.add_finished_span(Names.VALIDATION_SINGLE_ITERATION, self._batch_s, now_s, span)
        self._batch_s = now_s

    def end(self, job: Job, now_s: float) -> None:
        """End it."""
        span, self._span = self._span, None
        job.end_span(span, at_s=now_s)
