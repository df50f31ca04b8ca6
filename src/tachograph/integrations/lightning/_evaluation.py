"""The hooks of `TachographCallback` for validation, test and prediction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from tachograph.integrations._common.governor import OverheadGovernor, timed_callback
from tachograph.integrations._common.integration_run import Names
from tachograph.integrations.lightning._bases import LightningSubclass
from tachograph.integrations.lightning._metrics import LoggedMetrics, prefix_metrics
from tachograph.integrations.lightning._trainer_run import TrainerRun
from tachograph.spans import Span, SpanScope, recorder_of, testing_loop, timed_span, validation_loop

__all__ = ["EvaluationHooks", "guarded_hook"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def guarded_hook(function: _Function) -> _Function:
    """Guard a hook of the callback, and skip it if another callback of ours records the trainer."""
    call = timed_callback("Lightning")(function)

    @functools.wraps(function)
    def hook(self: EvaluationHooks, *args: Any, **kwargs: Any) -> None:
        if not self._is_inactive:
            call(self, *args, **kwargs)

    return hook  # type: ignore[return-value]


class EvaluationHooks(LightningSubclass):
    """Records validation, test and prediction as spans, and their results."""

    _trainer_run: TrainerRun
    _metrics: LoggedMetrics
    _is_inactive: bool
    _evaluation: Span | None
    _batch_start_s: float

    @property
    def governor(self) -> OverheadGovernor:
        """Decides which steps are recorded in detail; every hook adds its time to it."""
        return self._trainer_run.job.governor

    def _begin_evaluation(self, trainer: Any, scope: SpanScope) -> None:
        self._metrics.skip(trainer)
        run = self._trainer_run.run
        if run is None or recorder_of(run).find_open(scope.name) is not None:  # the user's own code has opened one
            return
        self._evaluation = self._trainer_run.job.begin_span(scope)

    def _end_evaluation(self, trainer: Any, error: BaseException | None = None) -> dict[str, Any]:
        """End the open span, and return the metrics logged since it was started."""
        span, self._evaluation = self._evaluation, None
        self._trainer_run.job.end_span(span, error=error)
        if self._trainer_run.timer is not None and span is not None and span.start_s is not None:
            self._trainer_run.timer.pause(span.start_s)
        return self._metrics.read_new(trainer)

    def _record_batch(self, name: Names) -> None:
        span = self._evaluation
        if span is not None and span.recorder is not None and not span.recorder.is_closed:
            span.recorder.add_finished_span(name, self._batch_start_s, perf_counter(), span)

    @guarded_hook
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the span of a validation, or of the sanity check before training."""
        self._flush_pending(trainer)
        if self._trainer_run.run is None:  # a run that the user has finished stays finished
            self._begin_run(trainer, pl_module)
        self._begin_evaluation(trainer, validation_loop())
        if trainer.sanity_checking and self._evaluation is not None:
            self._evaluation.add_attribute("sanity_check", True)

    @guarded_hook
    def on_validation_batch_start(self, *_args: Any, **_kwargs: Any) -> None:
        """Start timing a validation batch."""
        self._batch_start_s = perf_counter()

    @guarded_hook
    def on_validation_batch_end(self, trainer: Any, *_args: Any, **_kwargs: Any) -> None:
        """Record a validation batch."""
        if not trainer.sanity_checking:
            self._record_batch(Names.VALIDATION_SINGLE_ITERATION)

    @guarded_hook
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End the span of a validation and record its results; the results of a sanity check are dropped."""
        results = self._end_evaluation(trainer)
        trainer_run = self._trainer_run
        if results and trainer_run.run is not None and not trainer.sanity_checking:
            metrics = prefix_metrics("val", results)
            trainer_run.run.log_validation(metrics, step=trainer_run.step, epoch=trainer.current_epoch, prefix="")

    @guarded_hook
    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the span of a test."""
        self._begin_run(trainer, pl_module)
        self._begin_evaluation(trainer, testing_loop())

    @guarded_hook
    def on_test_batch_start(self, *_args: Any, **_kwargs: Any) -> None:
        """Start timing a test batch."""
        self._batch_start_s = perf_counter()

    @guarded_hook
    def on_test_batch_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Record a test batch."""
        self._record_batch(Names.TESTING_SINGLE_ITERATION)

    @guarded_hook
    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """End the span of a test and record its results."""
        results = self._end_evaluation(trainer)
        trainer_run = self._trainer_run
        if results and trainer_run.run is not None:
            trainer_run.run.log_test(prefix_metrics("test", results), step=trainer_run.step, prefix="")

    @guarded_hook
    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the span of a prediction."""
        self._begin_run(trainer, pl_module)
        self._begin_evaluation(trainer, timed_span("prediction_loop"))

    @guarded_hook
    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """End the span of a prediction."""
        self._end_evaluation(trainer)

    def _begin_run(self, trainer: Any, module: Any) -> None:
        raise NotImplementedError

    def _flush_pending(self, trainer: Any) -> None:
        raise NotImplementedError
