"""`RecorderCallbacks`: the callbacks as methods of a recorder. Their times are timestamps; the default is now."""

from __future__ import annotations

from tachograph.one_logger._span_edges import (
    SAVES,
    close_overlapping_iteration,
    close_overlapping_loop,
    end_span,
    find_open,
    find_save,
    start_span,
)
from tachograph.spans import (
    DISABLED_SPAN,
    Span,
    SpanName,
    SpanRecorder,
    SpanScope,
    StandardSpanName,
    TracingTimestamp,
    application,
    checkpoint_load,
    checkpoint_scope,
    dataloader_init,
    distributed_init,
    model_init,
    optimizer_init,
    step_of,
    stop_application,
    testing_loop,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from tachograph.spans import StandardTrainingJobSpanName as Names

__all__ = ["RecorderCallbacks"]


class RecorderCallbacks:
    """Starts and stops the spans of a training job in the run of one recorder."""

    @property
    def span_recorder(self) -> SpanRecorder:
        """The span recorder of the run."""
        raise NotImplementedError

    def on_app_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start the application span."""
        recorder = self.span_recorder
        scope = application(run=recorder.run)
        return start_span(recorder, scope, recorder.times.of_timestamp(start_time, "start_time"))

    def on_app_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the application span and all open spans, and finish the run if the application started it."""
        recorder = self.span_recorder
        span = find_open(recorder, StandardSpanName.APPLICATION)
        if span is not None:
            stop_application(span, recorder.times.of_timestamp(stop_time, "stop_time"))

    def on_distributed_init_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start the span of the distributed setup."""
        return self._start(distributed_init(), start_time)

    def on_distributed_init_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the span of the distributed setup."""
        self._end(stop_time, Names.DIST_INIT)

    def on_model_init_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start the span of the model construction."""
        return self._start(model_init(), start_time)

    def on_model_init_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the span of the model construction."""
        self._end(stop_time, Names.MODEL_INIT)

    def on_dataloader_init_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start the span of the data loader construction."""
        return self._start(dataloader_init(), start_time)

    def on_dataloader_init_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the span of the data loader construction."""
        self._end(stop_time, Names.DATA_LOADER_INIT)

    def on_load_checkpoint_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start the span of loading a checkpoint."""
        return self._start(checkpoint_load(), start_time)

    def on_load_checkpoint_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the span of loading a checkpoint."""
        self._end(stop_time, Names.CHECKPOINT_LOAD)

    def on_optimizer_init_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start the span of the optimizer construction."""
        return self._start(optimizer_init(), start_time)

    def on_optimizer_init_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the span of the optimizer construction."""
        self._end(stop_time, Names.OPTIMIZER_INIT)

    def on_validation_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start a validation loop."""
        return self._start(validation_loop(), start_time)

    def on_validation_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the validation loop."""
        self._end(stop_time, Names.VALIDATION_LOOP)

    def on_testing_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start a testing loop."""
        return self._start(testing_loop(), start_time)

    def on_testing_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the testing loop."""
        self._end(stop_time, Names.TESTING_LOOP)

    def on_training_loop_start(
        self,
        train_iterations_start: int | None = None,
        train_samples_start: int | None = None,
        train_iterations_target: int | None = None,
        train_samples_target: int | None = None,
        train_tokens_target: int | None = None,
        start_time: TracingTimestamp | None = None,
    ) -> Span:
        """Start a training loop; see `training_loop`. Stops a loop that is still open, unless it is in an iteration."""
        scope = training_loop(
            train_iterations_start, train_samples_start, train_iterations_target, train_samples_target
        )
        close_overlapping_loop(self.span_recorder)
        span = self._start(scope, start_time)
        if train_tokens_target is not None:
            span.add_attribute("train_tokens_target", train_tokens_target)
        return span

    def on_training_loop_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the training loop and report its last iterations."""
        self._end(stop_time, Names.TRAINING_LOOP)

    def on_training_single_iteration_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start an iteration of the training loop."""
        return self._start_iteration(training_iteration(), Names.TRAINING_LOOP, start_time)

    def on_training_single_iteration_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Complete an iteration of the training loop."""
        self._end(stop_time, Names.TRAINING_SINGLE_ITERATION)

    def on_validation_single_iteration_start(self, start_time: TracingTimestamp | None = None) -> Span:
        """Start an iteration of the validation loop."""
        return self._start_iteration(validation_iteration(), Names.VALIDATION_LOOP, start_time)

    def on_validation_single_iteration_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Complete an iteration of the validation loop."""
        self._end(stop_time, Names.VALIDATION_SINGLE_ITERATION)

    def on_save_checkpoint_start(
        self, current_iteration: int | None = None, start_time: TracingTimestamp | None = None
    ) -> Span:
        """Start the span of saving a checkpoint."""
        return self._start(checkpoint_scope(current_iteration), start_time)

    def on_save_checkpoint_success(
        self, current_iteration: int | None = None, timestamp: TracingTimestamp | None = None
    ) -> None:
        """Record that a checkpoint is complete; see `on_save_checkpoint_success`."""
        recorder = self.span_recorder
        at_s = recorder.times.of_timestamp(timestamp, "timestamp")
        span = find_save(recorder)
        recorder.add_checkpoint(step_of(current_iteration, recorder), span, at_s=at_s)

    def on_save_checkpoint_end(self, stop_time: TracingTimestamp | None = None) -> None:
        """Stop the span of saving a checkpoint: training continues."""
        self._end(stop_time, *SAVES)

    def _start(self, scope: SpanScope, start_time: TracingTimestamp | None) -> Span:
        recorder = self.span_recorder
        if not recorder.run.enabled:
            return DISABLED_SPAN
        return start_span(recorder, scope, recorder.times.of_timestamp(start_time, "start_time"))

    def _start_iteration(self, scope: SpanScope, loop: Names, start_time: TracingTimestamp | None) -> Span:
        recorder = self.span_recorder
        if not recorder.run.enabled:
            return DISABLED_SPAN
        close_overlapping_iteration(recorder, scope.name, loop)
        return scope.start(recorder, recorder.times.of_timestamp(start_time, "start_time"))

    def _end(self, stop_time: TracingTimestamp | None, *names: SpanName) -> None:
        recorder = self.span_recorder
        if recorder.run.enabled:
            end_span(recorder, recorder.times.of_timestamp(stop_time, "stop_time"), *names)
