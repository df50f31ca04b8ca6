"""A callback for Hugging Face's `Trainer` that records the start, the progress and the end of training.

It passes on raw numbers; the schemas of the events round them. Nothing is recorded if usage telemetry is off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Protocol

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.guard import guarded_callback
from tachograph.usage._manager import TelemetryManager
from tachograph.usage._metrics import RuntimeMetricsTracker

__all__ = ["TIME_SINCE_LAST", "TelemetryCallback"]

TIME_SINCE_LAST = 60
"""Seconds since the last report after which a multiple of the interval is reported early."""

_METRICS = {
    "loss": "loss",
    "eval_loss": "eval_loss",
    "ppl": "ppl",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "tokens/total": "tokens_total",
    "tokens/trainable": "tokens_trainable",
    "tokens/train_per_sec_per_gpu": "tokens_per_second_per_gpu",
}
"""Names of metrics in the trainer's logs, with their names in events."""

_TOTALS = {
    "total_time_seconds": "total_s",
    "total_steps": "total_steps",
    "steps_per_second": "steps_per_second",
    "epochs_completed": "epochs_completed",
    "average_epoch_time_seconds": "average_epoch_s",
}
"""Names in `RuntimeMetrics.to_dict`, with their names in `train-end`."""

_PAUSE_S = 10.0
"""Minimum time between two samples of devices with a peak counter. Reading eight of them takes a millisecond or two,
too much for a trainer that logs every step. A peak can only be missed if the training code resets the counter.
"""

_ALMOST = 1e-6
"""Tolerance for the trainer's epoch, which is a floating-point number."""

_guard_callback = guarded_callback("the trainer")


class _Manager(Protocol):
    """The part of `TelemetryManager` that the callback uses."""

    @property
    def enabled(self) -> bool: ...

    def send_event(self, name: str, properties: dict[str, Any], /) -> object: ...

    def add_exit_callback(self, callback: Callable[[], None], /) -> object: ...

    def remove_exit_callback(self, callback: Callable[[], None], /) -> object: ...


class TelemetryCallback(TrainerCallback):
    """Records the training of a `Trainer`: ``Trainer(…, callbacks=[TelemetryCallback()])``.

    Progress is recorded after the first step, then every 100 steps, and at multiples of 100 if a minute has passed.
    Numbers count this process only: after a resume, earlier steps and time do not count, and `start_step` is the step
    at which training resumed.

    Args:
        manager: records the events; by default the app's manager at the start of training.
    """

    report_interval_steps = 100
    """Steps between two reports of progress."""

    def __init__(self, manager: _Manager | None = None) -> None:
        self._manager = manager
        self._active_manager: _Manager | None = None
        """The manager of the current training."""
        self._tracker: RuntimeMetricsTracker | None = None
        """Set from the start of training to its end."""
        self._start_step = 0
        self._epoch: int | None = None
        self._last_report_step = 0
        self._last_report_s = 0.0
        self._metrics: dict[str, float] = {}
        self._metric_steps: dict[str, int] = {}
        self._train_loss: float | None = None

    # Start and end -------------------------------------------------------------------------------------------------

    @_guard_callback
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the start of training."""
        self._end_unfinished()
        self._active_manager = self._manager if self._manager is not None else TelemetryManager.get_instance()
        if not self._active_manager.enabled:
            return
        self._active_manager.add_exit_callback(self._end_unfinished)
        self._tracker = RuntimeMetricsTracker()
        self._start_step = self._last_report_step = state.global_step
        self._epoch, self._last_report_s = None, 0.0
        self._metrics, self._metric_steps, self._train_loss = {}, {}, None
        self._send(
            "train-start",
            start_step=state.global_step,
            max_steps=_planned_count(state.max_steps),
            num_epochs=_planned_count(state.num_train_epochs),
            resumed=state.global_step > 0,
            batch_size=_batch_size(args, state),
            gradient_accumulation=args.gradient_accumulation_steps,
            world_size=args.world_size,
        )

    @_guard_callback
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the end of training."""
        if self._tracker is not None:
            self._tracker.update_memory_metrics()
            self._end(self._tracker, state.global_step, "finished")

    @_guard_callback
    def _end_unfinished(self) -> None:
        """Record a training that did not finish: another one starts, or the process exits."""
        if self._tracker is not None:
            self._end(self._tracker, self._tracker.metrics.current_step or self._start_step, _outcome())

    def _end(self, tracker: RuntimeMetricsTracker, step: int, outcome: str) -> None:
        self._tracker = None
        if self._active_manager is not None:
            self._active_manager.remove_exit_callback(self._end_unfinished)
        totals = tracker.metrics.to_dict()
        self._send(
            "train-end",
            **{field: totals.get(name) for name, field in _TOTALS.items()},
            **_peaks(tracker),
            outcome=outcome,
            step=step,
            start_step=self._start_step,
            train_loss=self._train_loss,
            metrics=dict(self._metrics),
            metric_steps=dict(self._metric_steps),
        )

    # Epochs and steps ----------------------------------------------------------------------------------------------

    @_guard_callback
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start an epoch, or resume in the middle of one."""
        tracker = self._tracker
        if tracker is None:
            return
        num_epochs_done = state.epoch or 0.0
        epoch = int(num_epochs_done + _ALMOST)
        is_first = self._epoch is None
        if self._epoch is not None:
            epoch = max(epoch, self._epoch + 1)  # the trainer's count lags after an epoch that was cut short
        self._epoch = epoch
        if is_first and num_epochs_done - epoch > _ALMOST:  # a partial epoch is not timed
            tracker.metrics.current_epoch = epoch
            tracker.update_memory_metrics()
        else:
            tracker.start_epoch(epoch)

    @_guard_callback
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End an epoch, or stop in the middle of one."""
        tracker = self._tracker
        if tracker is None or self._epoch is None:
            return
        if (state.epoch or 0.0) >= self._epoch + 1 - _ALMOST:
            tracker.end_epoch(self._epoch)

    @_guard_callback
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count a step, and record progress if it is due. Logging, evaluation and saving follow."""
        tracker = self._tracker
        if tracker is None:
            return
        tracker.update_step(state.global_step)
        elapsed_s = tracker.metrics.elapsed_time
        if self._is_due(state.global_step, elapsed_s):
            self._report(tracker, state, elapsed_s)
        elif control.should_log:
            tracker.update_gpu_memory_metrics(_PAUSE_S)

    def _is_due(self, step: int, elapsed_s: float) -> bool:
        if step == self._start_step + 1 or step - self._last_report_step >= self.report_interval_steps:
            return True
        return step % self.report_interval_steps == 0 and elapsed_s - self._last_report_s >= TIME_SINCE_LAST

    def _report(self, tracker: RuntimeMetricsTracker, state: TrainerState, elapsed_s: float) -> None:
        step = state.global_step
        num_steps, since_s = step - self._last_report_step, elapsed_s - self._last_report_s
        self._last_report_step, self._last_report_s = step, elapsed_s
        tracker.update_memory_metrics()
        self._send(
            "train-progress",
            step=step,
            start_step=self._start_step,
            epoch=None if state.epoch is None else int(state.epoch),
            progress=state.epoch,
            steps_per_second=num_steps / since_s if since_s > 0 else None,
            elapsed_s=elapsed_s,
            since_last_report_s=since_s,
            cpu_memory=tracker.cpu_memory,
            gpu_memory=list(tracker.gpu_memory.values()),
            **_peaks(tracker),
            metrics=dict(self._metrics),
            metric_steps=dict(self._metric_steps),
        )

    @_guard_callback
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sample the memory: evaluation may need more than training."""
        tracker = self._tracker
        if tracker is not None:
            tracker.update_gpu_memory_metrics(_PAUSE_S)

    @_guard_callback
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the last value of each metric from a step, an evaluation or the summary of training."""
        if self._tracker is None or not logs:
            return
        for name, field in _METRICS.items():
            value = _number(logs.get(name))
            if value is not None:
                self._metrics[field], self._metric_steps[field] = value, state.global_step
        train_loss = _number(logs.get("train_loss"))
        if train_loss is not None:
            self._train_loss = train_loss

    # Common parts --------------------------------------------------------------------------------------------------

    def _send(self, event: str, **properties: Any) -> None:
        """Record an event. None and empty groups and lists are left out."""
        non_empty = {name: value for name, value in properties.items() if value is not None and value not in ({}, [])}
        if self._active_manager is not None:
            self._active_manager.send_event(event, non_empty)


def _peaks(tracker: RuntimeMetricsTracker) -> dict[str, Any]:
    metrics = tracker.metrics
    return {
        "peak_cpu_memory": metrics.peak_cpu_memory or None,
        "peak_gpu_memory": [peak_bytes for _index, peak_bytes in sorted(metrics.peak_gpu_memory.items())],
        "peak_gpu_memory_source": next(iter(metrics.gpu_peak_memory_source.values()), None),
    }


def _outcome() -> str:
    """Return how an unfinished training ended, as far as the interpreter knows."""
    error = getattr(sys, "last_type", None)  # the uncaught exception that ended the program
    return "unfinished" if error is None else "interrupted" if error is KeyboardInterrupt else "failed"


def _planned_count(count: int | None) -> int | None:
    """Return a number of planned steps or epochs; None if it is unlimited or not set."""
    return count if count is not None and 0 < count < sys.maxsize else None


def _batch_size(args: TrainingArguments, state: TrainerState) -> int:
    """Return the batch size per device; with `auto_find_batch_size`, the one that was found."""
    if args.auto_find_batch_size and state.train_batch_size:
        return int(state.train_batch_size // max(1, args.n_gpu))
    return int(args.per_device_train_batch_size)


def _number(value: Any) -> float | None:
    """Return a plain number, else None. A tensor is None: reading it could wait for a device."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)
